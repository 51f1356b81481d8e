"""Errors of the clients, one small tree per server. A foreign exception is mapped once, at the I/O edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace_core.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for a refusal, as the API server lists it."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class KubeError(HeadraceError):
    """A call to the API server failed. `status` is the HTTP code, or 0 if there was no answer."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", causes: Sequence[Cause] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason
        self.causes = tuple(causes)


class NotFound(KubeError):  # noqa: N818  (named as the API server names them)
    """404: no such object, or no such resource (its CRD is not installed)."""


class Conflict(KubeError):  # noqa: N818
    """409: someone else changed the object or owns the field, or it exists already (`reason` AlreadyExists)."""


class Invalid(KubeError):  # noqa: N818
    """400 or 422: the API server refuses the object; `causes` lists every field."""


class Forbidden(KubeError):  # noqa: N818
    """401 or 403: these credentials do not allow the call."""


class Gone(KubeError):  # noqa: N818
    """410: the resource version is too old; list again."""


class Unavailable(KubeError):  # noqa: N818
    """No answer, 429 or 5xx, even after the retries."""


class KubeconfigError(KubeError):
    """No usable credentials; the message names the files or the server involved."""


class PrometheusError(HeadraceError):
    """A query failed; the message carries the address and the query."""


class EngineCallError(HeadraceError):
    """A call to an engine's admin port failed."""


class EngineUnavailable(EngineCallError):  # noqa: N818
    """No answer, or 5xx."""


class EngineDenied(EngineCallError):  # noqa: N818
    """401 or 403: wrong token, or admin routes are off."""


class StaleGeneration(EngineCallError):  # noqa: N818
    """409: the config changed since it was read."""


@dataclass(frozen=True, slots=True)
class KnobProblem:
    """One reason why an engine refuses a config."""

    knob: str
    message: str

    def __str__(self) -> str:
        return f"{self.knob}: {self.message}"


class EngineRefused(EngineCallError):  # noqa: N818
    """422: nothing changed; `problems` lists every reason."""

    def __init__(self, message: str, problems: Sequence[KnobProblem]) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class EndpointError(HeadraceError):
    """The address of an OpenAI server is wrong, or the server does not have the model; the message says which."""
