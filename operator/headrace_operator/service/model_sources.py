"""Where a model comes from: `spec.model` to the argument of `headrace serve`, or why this release cannot."""

from __future__ import annotations

from headrace_api.v1alpha1.conditions import Reason
from headrace_api.v1alpha1.inferenceservice import ModelSpec
from headrace_operator.errors import SpecRefusedError


def model_argument(model: ModelSpec) -> str:
    """What the engine is told to serve: a path or a hub id. Raises `SpecRefusedError`."""
    scheme, rest = model.uri.split("://", 1)
    if model.tokenizer is not None:
        raise _refused("spec.model.tokenizer: the tokenizer is read from beside the weights; leave the field out")
    if model.revision is not None and scheme != "hf":
        raise _refused(f"spec.model.revision: {model.uri} has no revisions, only hf:// has; leave the field out")
    if scheme == "file":
        return _absolute(model.uri, rest)
    if scheme == "hf":
        return rest.strip("/")
    raise _refused(
        f"spec.model.uri: {model.uri}: {scheme}:// is not served from yet; use file:///PATH for a folder that the pod "
        "sees, or hf://OWNER/NAME"
    )


def model_command(model: ModelSpec) -> list[str]:
    """The same as arguments of `serve`, with the revision. Raises `SpecRefusedError`."""
    revision = [] if model.revision is None else ["--revision", model.revision]
    return [model_argument(model), *revision]


def _absolute(uri: str, path: str) -> str:
    if not path.startswith("/"):
        raise _refused(f"spec.model.uri: {uri}: needs an absolute path, with three slashes: file:///{path}")
    return path


def _refused(message: str) -> SpecRefusedError:
    return SpecRefusedError(Reason.UNSUPPORTED_MODEL, message)
