"""A container's state, from its files and from /proc."""

import json
import os
import subprocess
from pathlib import Path

from headrace_local.runtime.inner.lives import start_ticks
from headrace_local.runtime.processes import ProcessId, boot_id, process_namespace, usage_by_namespace
from headrace_local.runtime.states import UNSEEN_EXIT, ContainerPhase, read_state


def write_state(folder: Path, *, pid: int, start: int, boot: str) -> None:
    state = {"boot": boot, "supervisor": [pid, start], "init": [pid, start], "started_at": 5}
    (folder / "state.json").write_text(json.dumps(state))


def test_nothing_written_is_created(tmp_path: Path):
    assert read_state(tmp_path).phase is ContainerPhase.CREATED


def test_a_living_launcher_is_running(tmp_path: Path):
    write_state(tmp_path, pid=os.getpid(), start=start_ticks(os.getpid()), boot=boot_id())
    state = read_state(tmp_path)
    assert (state.phase, state.started_at) == (ContainerPhase.RUNNING, 5)


def test_a_noted_end_counts_though_the_launcher_lives(tmp_path: Path):
    write_state(tmp_path, pid=os.getpid(), start=start_ticks(os.getpid()), boot=boot_id())
    ended = {"exit_code": 3, "reason": "Error", "message": "", "finished_at": 9}
    (tmp_path / "exit.json").write_text(json.dumps(ended))
    state = read_state(tmp_path)
    assert state.phase is ContainerPhase.EXITED
    assert state.exit is not None
    assert state.exit.exit_code == 3


def test_a_pid_that_somebody_else_has_now_is_not_ours(tmp_path: Path):
    write_state(tmp_path, pid=os.getpid(), start=start_ticks(os.getpid()) - 1, boot=boot_id())
    state = read_state(tmp_path)
    assert state.phase is ContainerPhase.EXITED
    assert state.exit is not None
    assert state.exit.exit_code == UNSEEN_EXIT
    assert read_state(tmp_path).exit == state.exit  # noted once, and not again with another time


def test_another_boot_ended_everything(tmp_path: Path):
    write_state(tmp_path, pid=os.getpid(), start=start_ticks(os.getpid()), boot="another")
    assert read_state(tmp_path).phase is ContainerPhase.EXITED


def test_signals_and_waiting_by_identity():
    with subprocess.Popen(["sleep", "60"]) as process:
        identity = ProcessId(process.pid, start_ticks(process.pid))
        stranger = ProcessId(process.pid, identity.start + 1)
        assert identity.alive
        assert not stranger.alive
        assert not stranger.signal(9)
        assert not identity.wait(0)
        assert identity.signal(15)
        assert identity.wait(10)
    assert not identity.alive
    assert not identity.signal(9)


def test_usage_is_counted_by_process_namespace():
    usage = usage_by_namespace()[process_namespace(os.getpid())]
    assert usage.processes >= 1
    assert usage.rss_bytes > 1 << 20
