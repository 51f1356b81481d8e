"""The pod around the engine: what a model source and a person add to it."""

from typing import Any

import pytest
from operator_resources import IMAGES, service

from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_operator.errors import SpecRefusedError
from headrace_operator.service.model_sources import ModelSource
from headrace_operator.service.pod import EngineObjects, engine_template

FOLDER = ModelSource(argument="/models/tiny")
OBJECTS = EngineObjects(config_map="chat-engine", admin_secret="chat-admin")


def pod(source: ModelSource = FOLDER, **spec: Any) -> dict[str, Any]:
    made = engine_template(InferenceService.parse(service(**spec)), source, OBJECTS, images=IMAGES, labels={"a": "b"})
    assert made["metadata"]["labels"] == {"a": "b"}
    return made["spec"]


def test_everything_that_a_model_source_needs_reaches_the_pod() -> None:
    source = ModelSource(
        argument="/weights",
        init_containers=({"name": "fetch", "image": "fetcher"},),
        volumes=({"name": "weights", "emptyDir": {}},),
        mounts=({"name": "weights", "mountPath": "/weights", "readOnly": True},),
        env=({"name": "WEIGHTS_TOKEN", "value": "t"},),
    )
    made = pod(source)
    (container,) = made["containers"]
    assert made["initContainers"] == list(source.init_containers)
    assert made["volumes"][-1] == source.volumes[0]
    assert container["volumeMounts"][-1] == source.mounts[0]
    assert source.env[0] in container["env"]
    assert "/weights" in container["command"]
    with pytest.raises(SpecRefusedError, match="WEIGHTS_TOKEN is set by the operator"):
        pod(source, engine={"env": [{"name": "WEIGHTS_TOKEN", "value": "mine"}]})


def test_a_pod_that_needs_no_preparation_has_no_init_containers() -> None:
    assert "initContainers" not in pod()


@pytest.mark.parametrize("name", ["POD_IP", "HEADRACE_ADMIN_TOKEN"])
def test_variables_that_the_operator_sets_cannot_be_overridden(name: str) -> None:
    with pytest.raises(SpecRefusedError, match=f"{name} is set by the operator"):
        pod(engine={"env": [{"name": name, "value": "x"}]})


def test_a_person_may_choose_another_home() -> None:
    env = pod(engine={"env": [{"name": "HOME", "value": "/data"}]})["containers"][0]["env"]
    assert [variable["value"] for variable in env if variable["name"] == "HOME"] == ["/data"]


def test_a_person_may_choose_another_image() -> None:
    assert pod()["containers"][0]["image"] == IMAGES.engine
    assert pod(engine={"image": "mine:1"})["containers"][0]["image"] == "mine:1"


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, {}),
        ({"cpu": 2}, {"requests": {"cpu": "2"}, "limits": {}}),
        ({"cpu": "1500m"}, {"requests": {"cpu": "1500m"}, "limits": {}}),
        ({"cpu": "0.0001"}, {"requests": {"cpu": "1m"}, "limits": {}}),
        ({"memory": "16Gi"}, {"requests": {"memory": "16Gi"}, "limits": {"memory": "16Gi"}}),
        ({"memory": "16G"}, {"requests": {"memory": "16G"}, "limits": {"memory": "16G"}}),
        ({"gpu": {"count": 0}}, {}),
        ({"gpu": {"count": 2}}, {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}),
        (
            {"gpu": {"count": 1, "type": "amd.com/gpu"}},
            {"requests": {"amd.com/gpu": "1"}, "limits": {"amd.com/gpu": "1"}},
        ),
    ],
)
def test_resources_are_in_the_api_servers_own_form(resources: dict[str, Any], expected: dict[str, Any]) -> None:
    assert pod(resources=resources)["containers"][0]["resources"] == expected
