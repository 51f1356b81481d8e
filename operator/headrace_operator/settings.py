"""What the operator is started with: flags and environment, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headrace_core.errors import HeadraceError

MIN_TOKEN_LENGTH = 16


class LogFormat(StrEnum):
    """Format of the log lines."""

    JSON = "json"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Default images of engine and tuner, and how they are pulled."""

    engine: str
    tuner: str
    pull_policy: str = "IfNotPresent"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Everything that can be set. Empty `namespaces` means the whole cluster."""

    images: Images
    root_token: str
    prometheus_url: str = ""
    namespaces: tuple[str, ...] = ()
    log_format: LogFormat = LogFormat.JSON
    log_level: str = "INFO"
    health_address: str = "0.0.0.0:8080"
    metrics_address: str = "0.0.0.0:8081"
    workers: int = 4
    resync_seconds: float = 420.0


class OperatorSettingsError(HeadraceError):
    """A setting that cannot be used; the message says which, why and what to do."""


def read_token(path: Path | None, value: str) -> str:
    """Root token from a file, else from the environment. Raises `OperatorSettingsError`."""
    token, where = value, "HEADRACE_ROOT_TOKEN"
    if path is not None:
        where = str(path)
        try:
            token = path.read_text()
        except OSError as error:
            raise OperatorSettingsError(
                f"root token: {path} cannot be read ({error.strerror}): mount the Secret there"
            ) from None
    token = token.strip()
    if len(token) < MIN_TOKEN_LENGTH:
        raise OperatorSettingsError(
            f"root token from {where}: {len(token)} characters, at least {MIN_TOKEN_LENGTH} are needed: give "
            "--root-token-file or HEADRACE_ROOT_TOKEN; every service's admin token is derived from it"
        )
    return token
