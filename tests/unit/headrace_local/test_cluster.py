"""`up` and `down`: what they find, clear away and leave."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_local import cluster
from headrace_local.binaries import Binaries
from headrace_local.cluster import SlotState
from headrace_local.errors import LocalError
from headrace_local.isolation import Isolation
from headrace_local.layout import Slot
from headrace_local.processes import Processes, ProcessSpec, marked_processes

LASTS = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"


@pytest.fixture
def slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slot]:
    slot = Slot(62, tmp_path / "local" / "slot-62", tmp_path / "cache")
    monkeypatch.setattr(cluster, "preflight", lambda *_, **__: Isolation.ROOT)
    monkeypatch.setattr(cluster.programs, "ensure", lambda *_: Binaries({}))
    yield slot
    cluster.down(slot)


def start(slot: Slot, name: str = "part") -> None:
    ready = slot.ready_file(name)
    Processes(slot).start(ProcessSpec(name, [sys.executable, "-c", LASTS, str(ready)], ready=ready.exists))


def test_nothing_there(slot: Slot):
    assert cluster.status(slot).state is SlotState.ABSENT
    report = cluster.down(slot)
    assert (report.stopped, report.killed, report.unmounted) == ((), (), ())


def test_half_a_cluster_is_broken_and_down_clears_it(slot: Slot):
    start(slot)
    found = cluster.status(slot)
    assert found.state is SlotState.BROKEN
    assert [process.name for process in found.processes] == ["part"]
    assert found.processes[0].seconds is not None
    assert 0 <= found.processes[0].seconds < 120
    assert cluster.down(slot).stopped == ("part",)
    assert cluster.status(slot).state is SlotState.ABSENT
    assert slot.log_file("part").exists(), "logs are kept"


def test_what_lost_its_record_is_killed(slot: Slot):
    start(slot)
    slot.pid_file("part").unlink()
    assert cluster.status(slot).state is SlotState.BROKEN
    report = cluster.down(slot)
    assert report.stopped == ()
    assert len(report.killed) == 1
    assert marked_processes(slot.state_dir) == []


def test_a_complete_summary_without_an_answering_api_server_is_broken(slot: Slot):
    start(slot)
    slot.summary_file.write_text(json.dumps({"gpus": 2, "processes": ["part"]}))
    assert cluster.status(slot).state is SlotState.BROKEN


def test_a_failing_up_takes_down_what_it_started(slot: Slot, monkeypatch: pytest.MonkeyPatch):
    def half_way(slot: Slot, *_: object, **__: object) -> None:
        start(slot)
        raise LocalError("the scheduler ended")

    monkeypatch.setattr(cluster, "_start_all", half_way)
    with pytest.raises(LocalError, match="the scheduler ended"):
        cluster.up(slot)
    assert cluster.status(slot).state is SlotState.ABSENT
    assert marked_processes(slot.state_dir) == []


def test_up_clears_a_broken_cluster_away_first(slot: Slot, monkeypatch: pytest.MonkeyPatch):
    start(slot, "old")
    seen: list[list[str]] = []
    monkeypatch.setattr(cluster, "_start_all", lambda slot, *_, **__: seen.append(list(Processes(slot).alive())))
    assert cluster.up(slot)
    assert seen == [[]]


def test_a_second_command_on_one_slot_is_refused(slot: Slot, monkeypatch: pytest.MonkeyPatch):
    def meanwhile(slot: Slot, *_: object, **__: object) -> None:
        with pytest.raises(LocalError, match="Another `headrace local up` or `down`"):
            cluster.down(slot)

    monkeypatch.setattr(cluster, "_start_all", meanwhile)
    assert cluster.up(slot)
