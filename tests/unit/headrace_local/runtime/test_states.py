"""A container's state, from its files and from /proc."""

import json
import os
from pathlib import Path

from headrace_local.process_id import boot_id
from headrace_local.runtime.inner.lives import start_ticks
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
