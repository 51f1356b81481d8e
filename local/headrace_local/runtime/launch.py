"""Starts the small interpreters of `inner`: a launcher per container, a helper per command inside one."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import headrace_local
from headrace_local.processes import STATE_MARKER
from headrace_local.runtime.errors import CriError, TimedOutError
from headrace_local.runtime.plans import EnterPlan

log = logging.getLogger(__name__)

_ROOT = str(Path(headrace_local.__file__).parent.parent)
# -S skips site-packages and so the start-up cost of every .pth file; the one folder needed is passed instead.
_CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from headrace_local.runtime.inner import {module}; sys.exit({call})"
)
_SUPERVISOR = _CODE.format(module="supervisor", call="supervisor.main(sys.argv[2])")
_ENTER = _CODE.format(module="enter", call="enter.main()")
# Of our environment only the marker is passed on by which `down` finds processes of the slot.
_ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    **{name: value for name, value in os.environ.items() if name == STATE_MARKER},
}
#: Output of one ExecSync is cut off after this many bytes, as in other runtimes.
MAX_OUTPUT = 16 << 20


class Launchers:
    """The launchers that this process started. They may outlive it; until then it must reap those that end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, folder: Path) -> None:
        """Start the container in this folder and wait until its command runs; CriError with the reason if it fails."""
        self.reap()
        with (folder / "launcher.log").open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _SUPERVISOR, _ROOT, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        with self._lock:
            self._running.append(process)
        assert process.stdout is not None  # noqa: S101 -- asked for above
        with process.stdout as answers:
            answer = answers.readline()
        if not answer:
            process.wait()
            raise CriError(f"the container's launcher failed: {_tail(folder / 'launcher.log')}")
        if error := json.loads(answer).get("error"):
            process.wait()
            raise CriError(error)

    def reap(self) -> None:
        """Reap the launchers that have ended."""
        with self._lock:
            self._running = [process for process in self._running if process.poll() is None]


def run_inside(plan: EnterPlan, timeout: float | None) -> tuple[int, bytes, bytes]:
    """Run a command inside a container: exit code, stdout, stderr. TimedOutError after `timeout` seconds."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _ENTER, _ROOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_ENVIRONMENT,
        cwd="/",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(json.dumps(plan).encode(), timeout)
    except subprocess.TimeoutExpired:
        # The whole group, since processes started by the command could hold the pipes open for ever.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise TimedOutError(f'"{plan["command"]["argv"][0]}" did not end within {timeout:g} s') from None
    return process.returncode, out[:MAX_OUTPUT], err[:MAX_OUTPUT]


def _tail(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
