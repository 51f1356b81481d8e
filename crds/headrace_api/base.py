"""The base of all models: frozen, camelCase outside, tolerant of the cluster's objects, strict with a person's.

A cluster may hold objects from a newer release, so `read` ignores unknown fields; `parse` refuses them, since a
misspelt field that is silently dropped costs a person an afternoon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    ValidationError,
)

from headrace_api.names import API_VERSION, MAX_NAME_LENGTH
from headrace_api.quantity import DURATION_PATTERN, parse_duration, parse_quantity


def camel(name: str) -> str:
    """Name of a field in the custom resource: `min_requests` -> `minRequests`, `ttft_p95` -> `ttftP95`."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def cel(rule: str, message: str, *, path: str = "") -> dict[str, JsonValue]:
    """One CEL rule of the CRD. `message` names the field and the rule; `path` points at a field below, e.g. `.slo`."""
    return {"rule": rule, "message": message, **({"fieldPath": path} if path else {})}


def rules(*cels: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """JSON-schema extra that carries CEL rules."""
    return {"x-kubernetes-validations": list(cels)}


def list_map(key: str) -> dict[str, JsonValue]:
    """JSON-schema extra of a list whose items are told apart by `key`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


NAME_RULES = rules(
    cel(
        f"self.metadata.name.size() <= {MAX_NAME_LENGTH} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        f"metadata.name must be at most {MAX_NAME_LENGTH} lower-case letters, digits and hyphens and start with a"
        " letter: Services and labels of the children carry it",
    )
)
ATOMIC_LIST: dict[str, JsonValue] = {"x-kubernetes-list-type": "atomic"}


class DocEnum(StrEnum):
    """Enum of words that are part of the API, each with its meaning in `doc` (docs/reasons.md is made from it)."""

    doc: str

    def __new__(cls, value: str, doc: str) -> Self:
        """Member with its documentation."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.doc = doc
        return member


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One reason why an object is refused: `path` such as `spec.slo.ttft.threshold`."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class InvalidResource(ValueError):  # noqa: N818  (the API server's own name for it)
    """An object that is not valid; `problems` lists every reason."""

    def __init__(self, what: str, problems: tuple[FieldProblem, ...]) -> None:
        super().__init__(f"{what} is not valid: " + "; ".join(str(problem) for problem in problems))
        self.what = what
        self.problems = problems


class Model(BaseModel):
    """Base of every model: frozen, camelCase keys in JSON, unknown fields ignored, no NaN or infinity."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="ignore",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def to_kube(self, *, only_set: bool = False) -> dict[str, Any]:
        """JSON-ready dict with camelCase keys and without nulls; `only_set` leaves the defaults out as well."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=only_set)


def _positive_duration(text: str) -> str:
    if parse_duration(text) <= 0:
        raise ValueError(f"must be a positive duration such as 800ms or 1m30s, got {text!r}")
    return text


def _quantity(value: int | str) -> int | str:
    if parse_quantity(value) < 0:
        raise ValueError(f"must not be negative, got {value}")
    return value


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC)


def _rfc3339(value: datetime) -> str:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


# CEL's `duration()` raises an error on text that the pattern refuses, so the rule checks the pattern first.
_DURATION_RULES = rules(
    cel(
        f"self.matches('{DURATION_PATTERN}') && duration(self) > duration('0s')",
        "must be a positive duration such as 800ms or 1m30s",
    )
)

_QUANTITY_RULES = rules(
    cel(
        "type(self) == int ? self >= 0 : isQuantity(self) && !quantity(self).isLessThan(quantity('0'))",
        "must be a quantity that is not negative, such as 500m, 4 or 16Gi",
    )
)

Duration = Annotated[
    str,
    AfterValidator(_positive_duration),
    Field(max_length=20, json_schema_extra=_DURATION_RULES),
]
Quantity = Annotated[
    int | str,
    AfterValidator(_quantity),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True, **_QUANTITY_RULES}),
]
Timestamp = Annotated[AwareDatetime, AfterValidator(_utc), PlainSerializer(_rfc3339, return_type=str, when_used="json")]
PreservedObject = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]


class ObjectMeta(Model):
    """The part of metav1.ObjectMeta that is read here."""

    name: str = ""
    namespace: str | None = None
    uid: str | None = None
    generation: int | None = None
    resource_version: str | None = None
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    owner_references: list[dict[str, Any]] = Field(default_factory=list)


class CustomResource(Model):
    """Base of the custom resources."""

    KIND: ClassVar[str]
    PLURAL: ClassVar[str]

    api_version: str
    kind: str
    metadata: ObjectMeta

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Self:
        """Model of an object from the cluster; unknown fields are ignored. Raises `InvalidResource`."""
        return _validated(cls, body, strict_spec=False)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """Model of what a person wrote; an unknown field of the spec is an error. Raises `InvalidResource`."""
        return _validated(cls, body, strict_spec=True)

    @classmethod
    def spec_model(cls) -> type[Model]:
        """Model of the spec."""
        model = cls.model_fields["spec"].annotation
        if not (isinstance(model, type) and issubclass(model, Model)):
            raise TypeError(f"{cls.__name__} declares no spec")
        return model

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace or ''}/{self.metadata.name}"

    def owner_reference(self) -> dict[str, Any]:
        """Reference that makes a child go when this object goes. Raises ValueError before the object has a uid."""
        if not self.metadata.uid:
            raise ValueError(f"{self.kind} {self.key} has no uid yet: read it from the API server first")
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.metadata.name,
            "uid": self.metadata.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }


ResourceT = TypeVar("ResourceT", bound=CustomResource)


def _validated(cls: type[ResourceT], body: Mapping[str, Any], *, strict_spec: bool) -> ResourceT:
    what = f"{cls.KIND} {_name_of(body)}"
    problems = _identity_problems(cls, body)
    if problems:
        raise InvalidResource(what, tuple(problems))
    try:
        if strict_spec:
            cls.spec_model().model_validate(body.get("spec"), extra="forbid")
    except ValidationError as error:
        raise InvalidResource(what, problems_of(error, prefix="spec")) from None
    try:
        return cls.model_validate(body)
    except ValidationError as error:
        raise InvalidResource(what, problems_of(error)) from None


def _identity_problems(cls: type[CustomResource], body: Mapping[str, Any]) -> list[FieldProblem]:
    wanted = {"apiVersion": API_VERSION, "kind": cls.KIND}
    return [
        FieldProblem(field, f"must be {value}, got {body.get(field)!r}")
        for field, value in wanted.items()
        if body.get(field) != value
    ]


def _name_of(body: Mapping[str, Any]) -> str:
    metadata = body.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return str(name or "(without a name)")


def problems_of(error: ValidationError, *, prefix: str = "") -> tuple[FieldProblem, ...]:
    """A pydantic error as problems with paths as kubectl shows them: `spec.knobs[0].min`."""
    return tuple(
        FieldProblem(
            _path((prefix, *detail["loc"]) if prefix else detail["loc"]), _message(detail["type"], detail["msg"])
        )
        for detail in error.errors(include_url=False, include_context=False)
    )


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".") or "(object)"


def _message(kind: str, text: str) -> str:
    if kind == "extra_forbidden":
        return "is not a field of this API version; check the spelling (kubectl explain shows the fields)"
    if kind == "missing":
        return "is required"
    return text.removeprefix("Value error, ")
