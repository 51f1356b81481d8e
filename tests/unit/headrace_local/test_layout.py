"""Slots: their files, ports and addresses never meet another slot's."""

import ipaddress
from pathlib import Path

import pytest

from headrace_local.layout import MAX_SLOT, PODS_PER_SLOT, Slot, default_slot


def slot(number: int) -> Slot:
    return Slot(number, Path(f"/state/local/slot-{number}"), Path("/cache"))


def test_slot_0_has_the_documented_ports_and_ranges():
    zero = slot(0)
    assert list(zero.ports.values()) == list(range(16400, 16408))
    assert (zero.service_cidr, zero.pod_cidr) == ("127.96.0.0/16", "127.97.0.0/16")
    assert zero.kubernetes_service_ip == "127.96.0.1"
    assert zero.prometheus_url == "http://127.0.0.1:16407"


def test_no_two_slots_share_a_port_or_an_address():
    slots = [slot(number) for number in range(MAX_SLOT + 1)]
    ports = [port for each in slots for port in each.ports.values()]
    assert len(set(ports)) == len(ports)
    assert max(ports) < 32768, "below the range from which the kernel takes outgoing ports"
    ranges = [ipaddress.ip_network(cidr) for each in slots for cidr in (each.service_cidr, each.pod_cidr)]
    assert len(set(ranges)) == len(ranges)
    assert all(each.is_loopback for each in ranges)


@pytest.mark.parametrize("index", [0, 1, 252, 253, 5000, PODS_PER_SLOT - 1])
def test_pod_addresses_lie_in_the_pod_range(index: int):
    address = ipaddress.ip_address(slot(3).pod_address(index))
    assert address in ipaddress.ip_network(slot(3).pod_cidr)
    assert address.packed[-1] not in (0, 1, 255)


def test_pod_addresses_differ():
    assert len({slot(0).pod_address(index) for index in range(2000)}) == 2000


@pytest.mark.parametrize("index", [-1, PODS_PER_SLOT])
def test_a_pod_index_outside_is_refused(index: int):
    with pytest.raises(ValueError, match="outside 0 to"):
        slot(0).pod_address(index)


@pytest.mark.parametrize("number", [-1, MAX_SLOT + 1])
def test_a_slot_that_does_not_exist_is_refused(number: int):
    with pytest.raises(ValueError, match=rf"--slot takes 0 to {MAX_SLOT}"):
        slot(number)


def test_folders_are_the_users_own_unless_moved():
    home = default_slot(2, {"HOME": "/home/ada"})
    assert home.state_dir == Path("/home/ada/.local/state/headrace/local/slot-2")
    assert home.cache_dir == Path("/home/ada/.cache/headrace")
    moved = default_slot(0, {"HOME": "/home/ada", "HEADRACE_STATE": "/s", "HEADRACE_CACHE": "/c"})
    assert (moved.state_dir, moved.cache_dir) == (Path("/s/local/slot-0"), Path("/c"))


def test_another_process_finds_the_same_slot_by_its_environment():
    mine = default_slot(7, {"HEADRACE_STATE": "/somewhere", "HEADRACE_CACHE": "/else"})
    assert default_slot(7, mine.environment) == mine
