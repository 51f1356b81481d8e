"""API keys of the serving port, from a file that can change while the server runs, as a mounted Secret does.

One key per line, `key` or `name:key`; `#` starts a comment line. Logs show only the name, or a short hash of the key.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace_engine.errors import SettingsError
from headrace_engine.http.calls import current_call
from headrace_engine.http.errors import ApiError, answer

log = logging.getLogger(__name__)
FLAG = "--api-key-file"
KEYS_VARIABLE = "HEADRACE_API_KEYS_FILE"
# Probes, Prometheus and the description of the API. Everything else needs a key, including routes added later.
OPEN_PATHS = frozenset({
    "/health", "/health/live", "/health/ready", "/health/startup", "/ping", "/metrics", "/version", "/openapi.json",
})  # fmt: skip
MAX_FILE_BYTES = 1 << 20
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63}):(.*)")
_KEY = re.compile(r"[\x21-\x7e]+")  # what a header can carry: visible ASCII without spaces


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key: its SHA-256 digest, and the label that logs may show."""

    label: str
    digest: bytes


class ApiKeys:
    """The keys of a file, reloaded whenever it changes. Raises `SettingsError` if it is invalid at the start.

    If it becomes invalid later, or vanishes for a moment while a mount is swapped, the last good keys stay in force.
    """

    def __init__(self, path: Path, *, source: str = FLAG) -> None:
        self._path = path
        self._source = source
        self._seen = self._signature()
        self._keys = read_keys(path, source=source)

    def label_of(self, key: str) -> str | None:
        """The label of a valid key, else None. Takes the same time for every wrong key."""
        self._refresh()
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        found = None
        for known in self._keys:
            if hmac.compare_digest(known.digest, digest):
                found = known.label
        return found

    def _refresh(self) -> None:
        signature = self._signature()
        if signature is None or signature == self._seen:
            return
        self._seen = signature
        try:
            self._keys = read_keys(self._path, source=self._source)
        except SettingsError as error:
            log.error("the API keys stay as they were: %s", error)
        else:
            log.info("API keys read again", extra={"keys": len(self._keys)})

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116  (once a call: Path.stat takes twice as long)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def keys_file(path: Path | None) -> ApiKeys | None:
    """The keys of the flag's file, else of the file that the environment names, else None. Raises `SettingsError`."""
    if path is not None:
        return ApiKeys(path)
    named = os.environ.get(KEYS_VARIABLE)
    return ApiKeys(Path(named), source=KEYS_VARIABLE) if named else None


def read_keys(path: Path, *, source: str = FLAG) -> tuple[ApiKey, ...]:
    """The keys of a file. Raises `SettingsError` naming the file, the line and the fix; it never shows a key."""
    where = f"{source} {path}"
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{where}: cannot be read: {error.strerror}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise SettingsError(f"{where}: has {len(raw)} bytes, at most {MAX_FILE_BYTES} are read: is it the right file?")
    keys: dict[bytes, ApiKey] = {}
    for number, line in enumerate(raw.decode("utf-8", "surrogateescape").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key = _parse(text, f"{where}, line {number}")
        if key.digest in keys:
            raise SettingsError(f"{where}, line {number}: the key is there twice; give each client one of its own")
        keys[key.digest] = key
    if not keys:
        raise SettingsError(f"{where}: holds no key, so no client could call: add one key per line, as key or name:key")
    return tuple(keys.values())


def _parse(text: str, where: str) -> ApiKey:
    named = _NAMED.fullmatch(text)
    label, key = (named[1], named[2].strip()) if named else ("", text)
    if not _KEY.fullmatch(key):
        problem = "has no key after its name" if not key else "holds a character that no HTTP header can carry in a key"
        raise SettingsError(f"{where}: {problem}; use visible ASCII without spaces, as in name:sk-0123abcd")
    digest = hashlib.sha256(key.encode()).digest()
    return ApiKey(label or f"sha256:{digest.hex()[:8]}", digest)


class KeyGuard:
    """ASGI: 401 without a valid key, except for `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, *, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, or answer it with 401."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            label, refusal = self._check(Headers(scope=scope).get("authorization"))
            if refusal is not None:
                await answer(refusal)(scope, receive, send)
                return
            if (call := current_call()) is not None:
                call.key = label
        await self._app(scope, receive, send)

    def _check(self, header: str | None) -> tuple[str | None, ApiError | None]:
        if header is None:
            return None, _unauthorized("this server needs an API key: send the header Authorization: Bearer KEY")
        scheme, _, given = header.partition(" ")
        label = self._keys.label_of(given.strip()) if scheme.lower() == "bearer" else None
        return label, None if label else _unauthorized("the API key in the Authorization header is not valid here")


def _unauthorized(message: str) -> ApiError:
    return ApiError(
        401, message, kind="authentication_error", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"}
    )
