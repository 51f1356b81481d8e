"""What a node still lacks, in words."""

from typing import Any

import pytest

from headrace_local.node_setup import lacks, roles


def node(ready: str, gpus: str | None = None, message: str = "") -> dict[str, Any]:
    allocatable = {"cpu": "2"} | ({} if gpus is None else {"nvidia.com/gpu": gpus})
    return {
        "status": {"conditions": [{"type": "Ready", "status": ready, "message": message}], "allocatable": allocatable}
    }


@pytest.mark.parametrize(
    ("found", "gpus", "words"),
    [
        (None, 2, "the kubelet has not registered it yet"),
        ({"status": {}}, 2, "it has no Ready condition yet"),
        (node("False", message="runtime is down"), 2, "runtime is down"),
        (node("Unknown"), 2, "not Ready"),
        (node("True"), 2, "it offers 0 of 2 nvidia.com/gpu"),
        (node("True", "1"), 2, "it offers 1 of 2 nvidia.com/gpu"),
        (node("True", "2"), 2, ""),
        (node("True"), 0, ""),
    ],
)
def test_what_a_node_lacks(found: dict[str, Any] | None, gpus: int, words: str):
    assert lacks(found, gpus, has_account=True) == words


def test_a_ready_node_still_lacks_the_account_that_pods_run_as():
    assert lacks(node("True"), 0, has_account=False) == "the namespace default has no service account yet"


def test_roles_read_only():
    verbs = {verb for role in roles() for rule in role.get("rules", []) for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}
