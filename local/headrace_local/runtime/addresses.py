"""Pod addresses of one slot (pure)."""

from __future__ import annotations

from collections.abc import Collection

from headrace_local.layout import PODS_PER_SLOT, Slot
from headrace_local.runtime.errors import CriError


def next_address(slot: Slot, cursor: int, taken: Collection[str]) -> tuple[str, int]:
    """The first free pod address from index `cursor` on, and the cursor for the next call.

    Continuing after the last address, instead of taking the lowest free one, leaves an address unused for as long as
    possible after its pod has ended: clients that still use it get a refused connection, not another pod.
    CriError when all addresses are taken.
    """
    for step in range(PODS_PER_SLOT):
        index = (cursor + step) % PODS_PER_SLOT
        address = slot.pod_address(index)
        if address not in taken:
            return address, (index + 1) % PODS_PER_SLOT
    raise CriError(f"all {PODS_PER_SLOT} pod addresses of {slot.pod_cidr} are in use: delete pods first")
