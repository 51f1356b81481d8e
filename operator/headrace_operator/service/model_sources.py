"""Where a model comes from: what its pod needs to get it, and what the engine is told to serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_api.v1alpha1.conditions import Reason
from headrace_api.v1alpha1.inferenceservice import ModelSpec
from headrace_operator.errors import SpecRefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Additions to the engine's pod, as Kubernetes JSON, and the model as the engine gets it."""

    argument: str  # path or hub id
    revision: str | None = None
    init_containers: tuple[Mapping[str, Any], ...] = ()
    volumes: tuple[Mapping[str, Any], ...] = ()
    mounts: tuple[Mapping[str, Any], ...] = ()
    env: tuple[Mapping[str, Any], ...] = ()


def model_source(model: ModelSpec) -> ModelSource:
    """Source of `spec.model`. Raises `SpecRefusedError` for what this release cannot serve from."""
    scheme, place = model.uri.split("://", 1)
    if model.tokenizer is not None:
        raise _refused("spec.model.tokenizer: the tokenizer is read from beside the weights; leave the field out")
    if model.revision is not None and scheme != "hf":
        raise _refused(f"spec.model.revision: {model.uri} has no revisions, only hf:// has; leave the field out")
    source = _SOURCES.get(scheme)
    if source is None:
        raise _refused(
            f"spec.model.uri: {model.uri}: {scheme}:// is not supported yet; use file:///PATH for a folder that the "
            "pod sees, or hf://OWNER/NAME"
        )
    return source(model, place)


def _folder(model: ModelSpec, path: str) -> ModelSource:
    if not path.startswith("/"):
        raise _refused(f"spec.model.uri: {model.uri}: needs an absolute path, with three slashes: file:///{path}")
    return ModelSource(argument=path)


def _hub(model: ModelSpec, place: str) -> ModelSource:
    return ModelSource(argument=place.strip("/"), revision=model.revision)


_SOURCES: Mapping[str, Callable[[ModelSpec, str], ModelSource]] = {"file": _folder, "hf": _hub}


def _refused(message: str) -> SpecRefusedError:
    return SpecRefusedError(Reason.UNSUPPORTED_MODEL, message)
