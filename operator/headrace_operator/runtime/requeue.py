"""What a pass over one object asks of the queue."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_operator.protocols import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """When the key is due again, in seconds; `failed` says why it backs off instead."""

    after: float | None = None
    failed: str = ""
    gone: bool = False
    wake: tuple[Key, ...] = ()  # other keys that this pass concerns
