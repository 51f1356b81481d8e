"""Become the container's user and exec its command; does not return on success."""

from __future__ import annotations

import os
import signal
import sys
import warnings  # noqa: F401 -- os.execvpe imports it, which would fail in the container's root

from headrace_local.runtime.inner import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headrace_local.runtime.plans import CommandPlan

_LAST_CAPABILITY = 63


def run(command: CommandPlan) -> None:
    """Drop to the command's user, rights and folder, then exec it. OSError when the command cannot be run."""
    # The folder is entered before the user changes, as container runtimes do; without access to it, exec fails.
    os.chdir(command["cwd"])
    os.umask(0o022)
    if command["honour_user"]:
        _become(command)
    if command["no_new_privileges"]:
        syscalls.no_new_privileges()
    syscalls.die_with_parent(signal.SIGKILL)  # after the change of user, which clears it
    # The interpreter ignores these two; the container's process must start with everything at its default.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(command["argv"][0], command["argv"], command["env"])  # noqa: S606 -- running commands is what a runtime is for


def _become(command: CommandPlan) -> None:
    kept = set(command["capabilities"])
    for number in range(_LAST_CAPABILITY + 1):
        if number not in kept:
            syscalls.drop_from_bounding_set(number)
    uid, gid = command["uid"], command["gid"]
    os.setgroups(command["groups"])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)  # from root to another user: the kernel clears the capabilities
