"""Objects of one owner."""

import base64

from headrace_operator.cluster.owned import DEADLINE_MARGIN, Owned

OWNER = {"kind": "InferenceService", "name": "chat", "uid": "u", "controller": True}
OWNED = Owned("default", {"a": "b"}, OWNER)


def test_every_object_names_its_owner_and_carries_its_labels() -> None:
    ports = [{"name": "http", "port": 80}]
    made = [
        OWNED.secret("s", "token"),
        OWNED.config_map("c", {"k": "v"}),
        OWNED.service("v", {"x": "y"}, ports),
        OWNED.deployment("d", {}, selector={"x": "y"}, replicas=2, strategy={"type": "Recreate"}, startup_seconds=60),
    ]
    for body in made:
        assert body["metadata"]["ownerReferences"] == [OWNER]
        assert (body["metadata"]["namespace"], body["metadata"]["labels"]) == ("default", {"a": "b"})
    assert base64.b64decode(made[0]["data"]["token"]) == b"token"
    assert made[1]["data"] == {"k": "v"}
    assert made[2]["spec"] == {"selector": {"x": "y"}, "ports": ports}
    assert made[3]["spec"]["progressDeadlineSeconds"] == 60 + DEADLINE_MARGIN


def test_objects_share_nothing_that_one_of_them_could_change() -> None:
    first, second = OWNED.config_map("a", {}), OWNED.config_map("b", {})
    first["metadata"]["labels"]["a"] = "changed"
    assert second["metadata"]["labels"] == {"a": "b"}
