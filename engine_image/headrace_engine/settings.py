"""Settings of `headrace serve`: defaults < engine.json (`--config`) < flags. Read once, checked as a whole."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_core.evidence.slo import SloSet
from headrace_core.knobs.resolve import ConfigError, EngineConfig, resolve
from headrace_core.knobs.table import KnobValue
from headrace_engine.errors import SettingsError

if TYPE_CHECKING:
    from headrace_engine.http.auth import ApiKeys
    from headrace_engine.model.weights import WeightSource

TOKEN_VARIABLE = "HEADRACE_ADMIN_TOKEN"  # noqa: S105  (a name, not a secret)
GENERATION_CONFIGS = ("auto", "none")
TOOL_CALL_PARSERS = ("auto", "hermes", "llama3_json", "none")
ORIGIN = re.compile(r"https?://[^/\s,]+")
FILE_KEYS = frozenset({"revision", "config", "ceilings", "slo"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFile:
    """The contents of engine.json, as the operator writes it."""

    revision: str = ""
    config: Mapping[str, Any]
    ceilings: Mapping[str, int]
    slo: SloSet | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Everything that a server needs to start. Times in seconds."""

    source: WeightSource
    config: EngineConfig
    device: str
    host: str
    port: int
    admin_port: int
    served_name: str
    revision: str
    slo: SloSet | None
    admin_token: str | None
    drain_timeout: float
    threads: int
    json_logs: bool
    api_keys: ApiKeys | None = None
    access_log: bool = True
    log_prompts: bool = False
    tool_call_parser: str = "auto"
    record: Path | None = None
    generation_config: str = "auto"
    allowed_origins: tuple[str, ...] = ()

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address or localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_engine_file(path: Path | None) -> EngineFile:
    """Read engine.json. Raises `SettingsError` naming file and key."""
    if path is None:
        return EngineFile(config={}, ceilings={})
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"--config {path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"--config {path}: is not JSON: {error}") from error
    if not isinstance(values, dict) or (unknown := sorted(set(values) - FILE_KEYS)):
        detail = f"unknown {', '.join(unknown)}" if isinstance(values, dict) else "not an object"
        raise SettingsError(f"--config {path}: {detail}; an object with {', '.join(sorted(FILE_KEYS))} is expected")
    try:
        slo = values.get("slo")
        return EngineFile(
            revision=str(values.get("revision") or ""),
            config=dict(values.get("config") or {}),
            ceilings={name: int(value) for name, value in (values.get("ceilings") or {}).items()},
            slo=None if slo is None else SloSet.from_dict(slo),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise SettingsError(f"--config {path}: {error}") from error


def engine_config(
    file: EngineFile, flags: Mapping[str, KnobValue], *, active_num_seqs: int | None, device: str
) -> EngineConfig:
    """The full config. `flags` holds only flags that were set. Raises `SettingsError` with every problem, by flag name.

    `active_num_seqs` (`--scheduler-max-num-seqs`) is the active cap under the boot value max_num_seqs.
    """
    values = dict(file.config) | dict(flags)
    ceilings = {**file.ceilings, **{name: int(flags[name] or 0) for name in file.ceilings if name in flags}}
    if active_num_seqs is not None:
        try:
            boot = resolve(values, device=device, ceilings=ceilings or None)
        except ConfigError as error:
            raise _named(error) from error
        ceilings = {**boot.ceilings, **ceilings}
        values["max_num_seqs"] = active_num_seqs
    try:
        return resolve(values, device=device, ceilings=ceilings or None)
    except ConfigError as error:
        raise _named(error) from error


def _named(error: ConfigError) -> SettingsError:
    return SettingsError("; ".join(f"--{item.knob.replace('_', '-')}: {item.message}" for item in error.problems))


def one_of(choices: Sequence[str], flag: str, value: str) -> str:
    """Return `value` if it is one of `choices`; otherwise raise `SettingsError` naming the flag."""
    if value not in choices:
        raise SettingsError(f"{flag} {value}: must be {', '.join(choices)}")
    return value


def origins_of(text: str | None) -> tuple[str, ...]:
    """Origins from a comma-separated list, or from a JSON list as in vLLM. Raises `SettingsError`."""
    if text is None:
        return ()
    try:
        given = json.loads(text) if text.lstrip().startswith("[") else text.split(",")
        origins = tuple(str(origin).strip() for origin in given)
    except ValueError as error:
        raise SettingsError(f"--allowed-origins {text}: is not JSON: {error}") from error
    wrong = next((origin for origin in origins if origin != "*" and not ORIGIN.fullmatch(origin)), None)
    if wrong is not None or not origins:
        raise SettingsError(
            f"--allowed-origins {text}: {wrong or 'nothing'!r} is not an origin: use * or URLs without a path, such "
            "as https://chat.example.org"
        )
    return origins


def admin_token(path: Path | None) -> str | None:
    """The token from the file, else from the environment, else None. Raises `SettingsError`."""
    if path is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise SettingsError(f"--admin-token-file {path}: cannot be read: {error.strerror}") from error
    if not token:
        raise SettingsError(f"--admin-token-file {path}: is empty: write the token into it")
    return token
