"""Processes that outlive their starter: real small children, their logs, their ends."""

import dataclasses
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace_local.control_plane import port_is_free
from headrace_local.layout import Slot
from headrace_local.process_id import ProcessId
from headrace_local.processes import (
    STATE_MARKER,
    ProcessError,
    Processes,
    ProcessSpec,
    Record,
    command_of,
    log_tail,
    marked_processes,
)

READY = "import pathlib, sys, time; print('hello', flush=True); pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY
DIES = "import sys; print('the port is taken', file=sys.stderr); sys.exit(3)"
HANGS = "import time; print('waiting for etcd', flush=True); time.sleep(600)"
#: Its first thread ends (by the system call itself: Python's ways out end the process) and another holds a port.
LEADERLESS = f"""
import ctypes, pathlib, socket, sys, threading, time
listener = socket.create_server(("127.0.0.1", 0))
def serve():
    while pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    ready = pathlib.Path(sys.argv[1])
    ready.with_suffix(".port").write_text(str(listener.getsockname()[1]))
    ready.touch()
    time.sleep(600)
threading.Thread(target=serve).start()
ctypes.CDLL(None).syscall({60 if platform.machine() == "x86_64" else 93}, 0)
"""
WITH_CHILD = "import subprocess, sys; subprocess.Popen(['sleep', '600']); " + READY


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    slot = Slot(0, tmp_path / "local" / "slot-0", tmp_path / "cache")
    yield slot
    for left in marked_processes(slot.state_dir):
        left.send(signal.SIGKILL)


def spec(slot: Slot, code: str, *, name: str = "child", seconds: float = 20, grace: float = 5) -> ProcessSpec:
    ready = slot.ready_file(name)
    return ProcessSpec(
        name, [sys.executable, "-c", code, str(ready)], ready=ready.exists, ready_seconds=seconds, grace_seconds=grace
    )


def gone(identity: ProcessId) -> bool:
    return identity.wait(10)


def test_a_process_is_started_recorded_and_stopped(slot: Slot):
    processes = Processes(slot)
    record = processes.start(spec(slot, READY))
    assert processes.alive() == {"child": record}
    assert os.getsid(record.identity.pid) == record.identity.pid, "a Ctrl-C in the starter's terminal must not reach it"
    assert slot.log_file("child").read_text() == "hello\n"
    assert READY in command_of(record.identity)
    processes.stop_all()
    assert processes.records() == []
    assert not record.identity.alive()


def test_another_process_can_stop_it_by_the_record(slot: Slot):
    record = Processes(slot).start(spec(slot, READY))
    Processes(slot).stop(Processes(slot).records()[0])
    assert not record.identity.alive()


def test_a_process_lives_as_long_as_one_of_its_threads(slot: Slot):
    record = Processes(slot).start(spec(slot, LEADERLESS))
    identity, port = record.identity, int(slot.ready_file("child").with_suffix(".port").read_text())
    assert ProcessId.of(identity.pid) == identity
    assert identity.alive()
    assert not identity.wait(0)
    assert marked_processes(slot.state_dir) == [identity]
    Processes(slot).stop(record)
    assert not identity.alive()
    assert port_is_free(port)


def test_one_that_ends_early_is_reported_with_the_end_of_its_log(slot: Slot):
    with pytest.raises(ProcessError) as caught:
        Processes(slot).start(spec(slot, DIES))
    assert caught.value.what == "child ended before it was ready."
    assert caught.value.detail == "the port is taken"
    assert str(slot.log_file("child")) in caught.value.why
    assert Processes(slot).records() == []


def test_one_that_never_gets_ready_is_stopped_and_reported(slot: Slot):
    with pytest.raises(ProcessError, match="not ready within") as caught:
        Processes(slot).start(spec(slot, HANGS, seconds=1))
    assert caught.value.detail == "waiting for etcd"
    assert marked_processes(slot.state_dir) == []


def test_a_command_that_does_not_exist_is_reported(slot: Slot):
    with pytest.raises(ProcessError, match="can't be started"):
        Processes(slot).start(ProcessSpec("child", [str(slot.state_dir / "nothing")], ready=lambda: True))


def test_one_that_ignores_sigterm_is_killed(slot: Slot):
    processes = Processes(slot)
    record = processes.start(spec(slot, DEAF, grace=0.2))
    processes.stop(record)
    assert not record.identity.alive()


def test_a_recycled_pid_is_not_touched(slot: Slot):
    """The record's pid is a living process, but not the one that was recorded."""
    bystander = Processes(slot).start(spec(slot, READY, name="bystander"))
    for changed in ({"start_ticks": bystander.identity.start_ticks - 1}, {"boot_id": "another boot"}):
        identity = dataclasses.replace(bystander.identity, **changed)
        stale = Record("old", identity, ("old",), 1.0)
        slot.pid_file("old").write_text(stale.dump())
        Processes(slot).stop(stale)
        assert not identity.alive()
        assert bystander.identity.alive()
        assert not slot.pid_file("old").exists()


def test_stopping_goes_from_the_newest_to_the_oldest(slot: Slot, monkeypatch: pytest.MonkeyPatch):
    processes = Processes(slot)
    for name in ("first", "second", "third"):
        processes.start(spec(slot, READY, name=name))
        time.sleep(2 / os.sysconf("SC_CLK_TCK"))  # start times are counted in these ticks
    order: list[str] = []
    stop: Callable[[Processes, Record], None] = Processes.stop
    monkeypatch.setattr(Processes, "stop", lambda self, record: (order.append(record.name), stop(self, record)))
    processes.stop_all()
    assert order == ["third", "second", "first"]


def test_children_of_a_killed_process_are_found_by_the_marker(slot: Slot):
    record = Processes(slot).start(spec(slot, WITH_CHILD))
    record.identity.send(signal.SIGKILL)
    assert gone(record.identity)
    left = marked_processes(slot.state_dir)
    assert [command_of(identity) for identity in left] == ["sleep 600"]


def test_the_marker_of_another_slot_is_not_ours(slot: Slot, tmp_path: Path):
    other = Slot(1, tmp_path / "local" / "slot-0-more", tmp_path / "cache")
    record = Processes(other).start(spec(other, READY))
    assert marked_processes(slot.state_dir) == []
    assert marked_processes(other.state_dir) == [record.identity]
    Processes(other).stop_all()


def test_the_environment_is_passed_on_with_the_marker(slot: Slot):
    shown = dataclasses.replace(
        spec(slot, "import os; print(sorted(os.environ.items()), flush=True); " + READY), env={"A": "b"}
    )
    processes = Processes(slot)
    processes.start(shown)
    text = slot.log_file("child").read_text()
    assert "('A', 'b')" in text
    assert f"('{STATE_MARKER}', '{slot.state_dir}')" in text
    processes.stop_all()


def test_a_record_survives_its_file():
    record = Record("etcd", ProcessId(12, 345, "boot"), ("etcd", "--flag"), 15.0)
    assert Record.load(record.dump()) == record


def test_a_broken_record_is_left_out(slot: Slot):
    slot.pids_dir.mkdir(parents=True)
    slot.pid_file("half").write_text('{"name": "half"')
    assert Processes(slot).records() == []


def test_the_tail_of_a_log(tmp_path: Path):
    log = tmp_path / "log"
    assert log_tail(log) == ""
    log.write_text("".join(f"line {n}\n" for n in range(1000)))
    assert log_tail(log, 2) == "line 998\nline 999"
