"""Whether, and how, this machine lets us use mount namespaces: as root, or in a user namespace.

The questions are put to the kernel by doing the thing in a child process; what a version or a sysctl promises is not
what a container, a seccomp profile or an LSM allows.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from headrace_local.errors import LocalError

TRY_SECONDS = 20
#: uid_map of a process that is in no user namespace but the first.
_EVERY_USER = 4294967295
_OVERLAY_SCRIPT = (
    'mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work" "$1/merged" && '
    'mount -t overlay overlay -o "$2,upperdir=$1/upper,workdir=$1/work" "$1/merged" && '
    'test -n "$(ls "$1/merged")"'
)
# In a user namespace the kernel refuses an overlay over a root below which other file systems are mounted, so the
# runtime lays one over each top-level folder there; that is what has to work.
_OVERLAY_OPTIONS = {"ROOT": "lowerdir=/", "USER_NAMESPACE": "userxattr,lowerdir=/usr"}


class Isolation(Enum):
    """Who we are when the node's processes mount things; the value is what `unshare` needs for it."""

    ROOT = ("--mount",)
    USER_NAMESPACE = ("--user", "--map-root-user", "--mount")


_NAMES = {Isolation.ROOT: "as root", Isolation.USER_NAMESPACE: "as root of a user namespace"}


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of a try: whether it worked, and what was said."""

    ok: bool
    said: str


def try_command(argv: Sequence[str]) -> Tried:
    """Run a command that ends by itself; a command that is missing or hangs did not work."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TRY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Tried(ok=False, said=str(error))
    return Tried(ok=done.returncode == 0, said=(done.stderr or done.stdout).strip())


def try_unshare(isolation: Isolation) -> Tried:
    """Make the namespaces and leave them again."""
    return try_command(["unshare", *isolation.value, "true"])


def try_overlay(isolation: Isolation) -> Tried:
    """Lay a writable tmpfs over the machine's files, in namespaces of its own; nothing of it is seen outside."""
    folder = tempfile.mkdtemp(prefix="headrace-overlay-")
    options = _OVERLAY_OPTIONS[isolation.name]
    try:
        return try_command(["unshare", *isolation.value, "sh", "-c", _OVERLAY_SCRIPT, "sh", folder, options])
    finally:
        Path(folder).rmdir()


def find_isolation() -> Isolation:
    """How the node's processes are to be isolated; LocalError with what the kernel said if it can't be done at all.

    Root comes first where we are root; a container may have taken root's right to mount, so user namespaces are tried
    after that.
    """
    candidates = list(Isolation) if os.geteuid() == 0 else [Isolation.USER_NAMESPACE]
    said = []
    for isolation in candidates:
        tried = try_unshare(isolation)
        tried = try_overlay(isolation) if tried.ok else tried
        if tried.ok:
            return isolation
        said.append(f"{_NAMES[isolation]}: {tried.said or 'failed without a word'}")
    raise LocalError(
        "This machine lets us make no file view for pods.",
        why=f"Tried as user {os.geteuid()}: an overlay over the machine's files in a mount namespace of its own.",
        detail="\n".join(said),
        todo=(
            "Run it as root (in a container: a privileged one; with the kernel's overlay module loaded). "
            "Or use a cluster that you have: --context NAME."
        ),
    )


def is_mapped_root(uid_map: str) -> bool:
    """Whether root here is only root of a user namespace, where other users do not exist."""
    return all(int(line.split()[2]) < _EVERY_USER for line in uid_map.splitlines())


def enter_argv(isolation: Isolation, holder_pid: int) -> list[str]:
    """The command prefix that puts a process of the node into the namespaces that the holder keeps open."""
    user = ["--user", "--preserve-credentials"] if isolation is Isolation.USER_NAMESPACE else []
    return ["nsenter", f"--target={holder_pid}", *user, "--mount", "--"]


def holder_argv(isolation: Isolation, command: Sequence[str]) -> list[str]:
    """`command`, which is to stay, in the fresh namespaces."""
    return ["unshare", *isolation.value, "--", *command]
