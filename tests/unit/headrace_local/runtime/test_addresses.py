"""Pod addresses: in the slot's range, never one in use, and reused as late as possible."""

from pathlib import Path

import pytest

from headrace_local.layout import PODS_PER_SLOT, Slot
from headrace_local.runtime.addresses import next_address
from headrace_local.runtime.errors import CriError

SLOT = Slot(4, Path("/state/slot-4"), Path("/cache"))


def test_addresses_lie_in_the_range_of_the_slot():
    assert next_address(SLOT, 0, set()) == ("127.105.0.2", 1)


def test_a_living_address_is_skipped():
    assert next_address(SLOT, 0, {"127.105.0.2", "127.105.0.3"}) == ("127.105.0.4", 3)


def test_a_freed_address_comes_last():
    taken: set[str] = set()
    first, cursor = next_address(SLOT, 0, taken)
    second, _ = next_address(SLOT, cursor, taken)
    assert first != second


def test_the_search_wraps_around():
    address, cursor = next_address(SLOT, PODS_PER_SLOT - 1, set())
    assert cursor == 0
    assert next_address(SLOT, PODS_PER_SLOT - 1, {address})[0] == "127.105.0.2"


def test_running_out_says_what_to_do():
    everything = {SLOT.pod_address(index) for index in range(PODS_PER_SLOT)}
    with pytest.raises(CriError, match="delete pods"):
        next_address(SLOT, 7, everything)
