"""Run one more command inside a running container (CRI ExecSync): `python -I -S -c ... < plan.json`."""

from __future__ import annotations

import json
import os
import signal
import sys

from headrace_local.runtime.inner import files, identity, lives, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headrace_local.runtime.plans import EnterPlan

_NAMESPACES = {"pid": syscalls.CLONE_NEWPID, "uts": syscalls.CLONE_NEWUTS, "mnt": syscalls.CLONE_NEWNS}
#: The shell's codes for "found but cannot be run" and "not found".
_CANNOT_RUN, _NOT_FOUND = 126, 127


def main() -> int:
    """Enter the container that the plan on stdin names, run the command, return its exit code."""
    plan: EnterPlan = json.load(sys.stdin)
    pid = plan["pid"]
    namespaces = [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), flag) for name, flag in _NAMESPACES.items()]
    if lives.start_ticks(pid) != plan["start"]:
        raise ProcessLookupError(3, "the container has ended")
    for descriptor, flag in namespaces:
        syscalls.setns(descriptor, flag)
        os.close(descriptor)
    child = os.fork()
    if child == 0:
        _run(plan)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    return files.exit_code(os.waitpid(child, 0)[1])


def _run(plan: EnterPlan) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    try:
        identity.run(plan["command"])
    except FileNotFoundError as error:
        _fail(_NOT_FOUND, error, plan)
    except OSError as error:
        _fail(_CANNOT_RUN, error, plan)


def _fail(code: int, error: OSError, plan: EnterPlan) -> None:
    os.write(2, f'exec "{plan["command"]["argv"][0]}": {error.strerror}\n'.encode())
    os._exit(code)
