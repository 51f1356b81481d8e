"""A process that is never mistaken for a later one with the same pid."""

import dataclasses
import os
import signal
import subprocess

from headrace_local.process_id import ProcessId


def test_our_own_process_is_alive():
    mine = ProcessId.of(os.getpid())
    assert mine is not None
    assert mine.alive()
    assert not mine.wait(0)


def test_signals_and_waiting_reach_only_the_process_meant():
    with subprocess.Popen(["sleep", "60"]) as process:
        sleeper = ProcessId.of(process.pid)
        assert sleeper is not None
        for other in ({"start_ticks": sleeper.start_ticks + 1}, {"boot_id": "another"}):
            stranger = dataclasses.replace(sleeper, **other)
            assert not stranger.alive()
            assert not stranger.send(signal.SIGKILL)
            assert stranger.wait(0)
        assert sleeper.alive()
        assert not sleeper.wait(0)
        assert sleeper.send(signal.SIGTERM)
        assert sleeper.wait(10)
    assert not sleeper.alive()
    assert not sleeper.send(signal.SIGKILL)


def test_no_process_has_pid_0():
    assert ProcessId.of(0) is None
    assert not ProcessId(0, 0, "boot").send(signal.SIGTERM)
