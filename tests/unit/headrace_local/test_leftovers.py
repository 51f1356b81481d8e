"""Finding and removing what a cluster leaves; mounts only as far as this machine lets us make any."""

import os
import subprocess
from pathlib import Path

import pytest

from headrace_local.layout import Slot
from headrace_local.leftovers import Leftovers, find_leftovers, mounts_under, remove_state, unmount_under

MOUNTS = """\
/dev/vda / ext4 rw 0 0
tmpfs /state/slot-1/kubelet/pods/a/volumes/token tmpfs rw 0 0
tmpfs /state/slot-10/kubelet tmpfs rw 0 0
tmpfs /state/slot-1/with\\040blank tmpfs rw 0 0
overlay /state/slot-1 overlay rw 0 0
"""


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    return Slot(60, tmp_path / "local" / "slot-60", tmp_path)


def test_mounts_of_the_slot_are_found_the_newest_first_and_no_others():
    assert mounts_under(Path("/state/slot-1"), MOUNTS) == [
        Path("/state/slot-1"),
        Path("/state/slot-1/with blank"),
        Path("/state/slot-1/kubelet/pods/a/volumes/token"),
    ]


def test_removing_keeps_the_logs(slot: Slot):
    for folder in (slot.logs_dir, slot.kubelet_root / "pods"):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    slot.kubeconfig.touch()
    (slot.state_dir / "link").symlink_to(slot.logs_dir)
    remove_state(slot)
    assert [path.name for path in slot.state_dir.iterdir()] == ["logs"]
    assert (slot.logs_dir / "file").exists()


def test_removing_goes_through_folders_that_nobody_may_enter(slot: Slot):
    work = slot.state_dir / "runtime" / "work"
    work.mkdir(parents=True)
    (work / "file").touch()
    work.chmod(0)
    remove_state(slot)
    assert not (slot.state_dir / "runtime").exists()


def test_removing_nothing_is_fine(slot: Slot):
    remove_state(slot)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting outside a namespace needs root")
def test_a_mount_is_found_and_undone_even_if_it_is_busy(slot: Slot):
    point = slot.state_dir / "kubelet" / "a volume"
    point.mkdir(parents=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "headrace-test", str(point)], check=False)
    if made.returncode != 0:
        pytest.skip("this container allows no mounts")
    with (point / "busy").open("w"):
        assert find_leftovers(slot).mounts == (point,)
        assert unmount_under(slot.state_dir) == [point]
    assert not find_leftovers(slot)


def test_leftovers_are_said_line_by_line():
    left = Leftovers(((7, "sleep 600"),), (Path("/m"),), (("kubelet", 16405),))
    assert left.lines() == ["process 7: sleep 600", "mount /m", "port 16405 (kubelet)"]
    assert left
    assert not Leftovers()


def test_taken_ports_are_reported_when_asked_for(slot: Slot):
    left = find_leftovers(slot, lambda port: port != slot.prometheus_port)
    assert left.ports == (("Prometheus", slot.prometheus_port),)
