"""Where a model may come from, and what its pod gets for it."""

import pytest

from headrace_api.v1alpha1.conditions import Reason
from headrace_api.v1alpha1.inferenceservice import ModelSpec
from headrace_operator.errors import SpecRefusedError
from headrace_operator.service.model_sources import ModelSource, model_source

SERVED = {
    "file:///models/tiny": ModelSource(argument="/models/tiny"),
    "file:///models/tiny.gguf": ModelSource(argument="/models/tiny.gguf"),
    "hf://org/model": ModelSource(argument="org/model"),
    "hf://org/model/": ModelSource(argument="org/model"),
}


@pytest.mark.parametrize("uri", SERVED)
def test_a_source_is_a_value(uri: str) -> None:
    assert model_source(ModelSpec(uri=uri)) == SERVED[uri]


def test_a_hub_model_has_revisions() -> None:
    assert model_source(ModelSpec(uri="hf://org/model", revision="v2")).revision == "v2"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"uri": "file://models/tiny"}, "three slashes: file:///models/tiny"),
        ({"uri": "pvc://claim/path"}, "pvc:// is not supported yet"),
        ({"uri": "s3://bucket/path"}, "s3:// is not supported yet"),
        ({"uri": "file:///models/tiny", "revision": "v2"}, "has no revisions"),
        ({"uri": "s3://bucket/path", "revision": "v2"}, "has no revisions"),
        ({"uri": "hf://org/model", "tokenizer": "hf://org/other"}, "spec.model.tokenizer"),
    ],
)
def test_what_cannot_be_served_is_refused_with_what_can(spec: dict[str, str], message: str) -> None:
    with pytest.raises(SpecRefusedError, match=message) as error:
        model_source(ModelSpec(**spec))
    assert error.value.reason is Reason.UNSUPPORTED_MODEL
