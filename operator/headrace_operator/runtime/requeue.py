"""What the queue should do after a pass over one object."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_operator.protocols import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """`after`: seconds until the key is due again. `failed`: why the pass failed, which makes the key back off."""

    after: float | None = None
    failed: str = ""
    gone: bool = False
    wake: tuple[Key, ...] = ()  # other keys that this pass concerns
