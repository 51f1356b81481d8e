"""Statuses that we wrote and that the cache does not show yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace_operator.protocols import Key


class FreshStatus:
    """Keeps our own status writes until the cache shows them, so that no pass decides from a stale status."""

    def __init__(self) -> None:
        self._written: dict[Key, tuple[frozenset[tuple[str, str]], dict[str, Any]]] = {}  # outdated versions, newest

    def newest(self, key: Key, body: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """`body`, or the newer object that our own write made of it."""
        outdated, answer = self._written.get(key, (frozenset(), {}))
        if body is None or _version(body) not in outdated:
            self._written.pop(key, None)
            return body
        return answer

    def wrote(self, key: Key, body: Mapping[str, Any], answer: dict[str, Any]) -> None:
        """Note a status write: it was based on `body`, and `answer` is the object that the API server returned."""
        outdated, _ = self._written.get(key, (frozenset(), {}))
        if _version(answer) != _version(body):
            self._written[key] = (outdated | {_version(body)}, answer)


def _version(body: Mapping[str, Any]) -> tuple[str, str]:
    return body["metadata"]["uid"], body["metadata"].get("resourceVersion", "")
