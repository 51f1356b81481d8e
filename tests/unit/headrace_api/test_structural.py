"""The translation to structural schemas, the generated files, and the rules that the table and the CRDs share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import BaseModel, Field

from headrace_api import generate
from headrace_api.base import Model, Quantity, Timestamp
from headrace_api.crd import DEFINITIONS, custom_resource_definition
from headrace_api.structural import NotStructural, structural_schema
from headrace_core.knobs.table import KNOBS, KnobKind

ROOT = Path(__file__).parents[3]


class Part(Model):
    """A part."""

    size: Annotated[float, Field(gt=0, lt=1)]
    """How big,
    of one."""


class Whole(Model):
    """A whole."""

    part: Part | None = None
    """Its part."""
    parts: list[Part] = Field(default_factory=list)
    kind: Literal["A"] = "A"
    amount: Quantity | None = None
    mixed: list[bool | int | str] = Field(default_factory=list)
    labels: dict[str, str] = Field(default_factory=dict)
    frozen: Annotated[int, Field(json_schema_extra={"x-headrace-frozen-default": True})] = 3
    at: Timestamp | None = None


def test_translation() -> None:
    schema = structural_schema(Whole)
    part = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {
                "description": "How big, of one.",
                "type": "number",
                "minimum": 0,
                "exclusiveMinimum": True,
                "maximum": 1,
                "exclusiveMaximum": True,
            }
        },
    }
    properties = schema["properties"]
    assert properties["part"] == part | {"description": "Its part."}
    assert properties["parts"]["items"] == part | {"description": "A part."}
    assert properties["kind"] == {"type": "string", "enum": ["A"]}
    assert properties["amount"]["x-kubernetes-int-or-string"] is True
    assert "anyOf" not in properties["amount"]
    assert properties["mixed"]["items"] == {"x-kubernetes-preserve-unknown-fields": True}
    assert properties["labels"] == {"type": "object", "additionalProperties": {"type": "string"}}
    assert properties["frozen"] == {"type": "integer", "default": 3}
    assert properties["at"] == {"type": "string", "format": "date-time"}
    assert "required" not in schema


class Shape(BaseModel):
    point: tuple[int, int]


class Either(BaseModel):
    value: Part | Whole


class Anything(BaseModel):
    value: Any


@pytest.mark.parametrize(
    ("model", "place"), [(Shape, "Shape.point"), (Either, "Either.value"), (Anything, "Anything.value")]
)
def test_a_type_without_a_structural_form_is_an_error_that_names_it(model: type[BaseModel], place: str) -> None:
    with pytest.raises(NotStructural, match=place):
        structural_schema(model)


def nodes(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(schema, dict):
        return
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        yield from nodes(schema.get(key), f"{path}.{key}")


CRDS = [custom_resource_definition(definition) for definition in DEFINITIONS]


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd["spec"]["names"]["kind"])
def test_every_field_is_typed_and_described(crd: dict[str, Any]) -> None:
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path, node in nodes(root):
        assert not {"$ref", "title", "anyOf", "oneOf", "const", "allOf"} & set(node), path
        open_ended = node.get("x-kubernetes-int-or-string") or node.get("x-kubernetes-preserve-unknown-fields")
        assert "type" in node or open_ended, path
        leaf = path.rsplit(".", 1)[-1]
        if path.startswith((".spec", ".status")) and leaf not in {"items", "additionalProperties"}:
            assert node.get("description", "").strip(), f"{path} has no description"


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd["spec"]["names"]["kind"])
def test_only_fields_that_freeze_at_creation_have_a_default(crd: dict[str, Any]) -> None:
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    defaults = {path: node["default"] for path, node in nodes(root) if "default" in node}
    assert defaults == ({".spec.replicas": 1} if crd["spec"]["names"]["kind"] == "InferenceService" else {})


def test_knob_fields_match_the_table() -> None:
    root = CRDS[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields = root["properties"]["spec"]["properties"]["engine"]["properties"]["config"]["properties"]
    assert list(fields) == [knob.camel for knob in KNOBS]
    types = {KnobKind.INT: "integer", KnobKind.FLOAT: "number", KnobKind.BOOL: "boolean", KnobKind.CHOICE: "string"}
    for knob in KNOBS:
        field = fields[knob.camel]
        assert field["type"] == types[knob.kind]
        assert knob.doc in field["description"]
        assert field.get("minimum") == knob.minimum
        assert field.get("maximum") == (knob.maximum if knob.below is None else knob.below)
        assert field.get("exclusiveMaximum", False) is (knob.below is not None)
        assert tuple(field.get("enum", ())) == knob.choices


def test_generated_files_are_up_to_date() -> None:
    assert generate.stale_files(ROOT) == []


def test_check_finds_changed_missing_and_leftover_files(tmp_path: Path) -> None:
    generate.write(tmp_path)
    assert generate.stale_files(tmp_path) == []
    (tmp_path / generate.REASONS_PATH).write_text("edited by hand")
    (tmp_path / "crds/tuningruns.headrace.dev.yaml").unlink()
    (tmp_path / "helm/headrace/files/crds/old.yaml").write_text("")
    assert generate.stale_files(tmp_path) == [
        "crds/tuningruns.headrace.dev.yaml",
        "docs/reasons.md",
        "helm/headrace/files/crds/old.yaml",
    ]


def test_check_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "repository_root", lambda: tmp_path)
    assert generate.main(["--check"]) == 1
    assert "docs/reasons.md is not up to date: run `python -m headrace_api.generate`" in capsys.readouterr().err
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


def test_copies_are_identical_valid_yaml_and_small() -> None:
    for path in (ROOT / "crds").glob("*.yaml"):
        text = path.read_text()
        assert (ROOT / "helm/headrace/files/crds" / path.name).read_text() == text
        assert yaml.safe_load(text) in CRDS
        assert len(text.encode()) < 200 * 1024
