"""Whether, and how, this machine lets us use mount namespaces: as root, or in a user namespace.

We find out by trying it in a child process: a container, a seccomp profile or an LSM may forbid what the kernel's
version and sysctls promise.
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
#: Number of users in the uid_map of a process in the initial user namespace.
_EVERY_USER = 4294967295
_OVERLAY_SCRIPT = (
    'mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work" "$1/merged" && '
    'mount -t overlay overlay -o "$2,upperdir=$1/upper,workdir=$1/work" "$1/merged" && '
    'test -n "$(ls "$1/merged")"'
)
# In a user namespace the kernel refuses an overlay over a root below which other file systems are mounted, so the
# runtime makes one for each top-level folder there; that has to work.
_OVERLAY_OPTIONS = {"ROOT": "lowerdir=/", "USER_NAMESPACE": "userxattr,lowerdir=/usr"}


class Isolation(Enum):
    """How the node's processes may mount; the value is the options of `unshare`."""

    ROOT = ("--mount",)
    USER_NAMESPACE = ("--user", "--map-root-user", "--mount")


_NAMES = {Isolation.ROOT: "as root", Isolation.USER_NAMESPACE: "as root of a user namespace"}


@dataclass(frozen=True, slots=True)
class Tried:
    """Result of a trial: whether it worked, and the output."""

    ok: bool
    said: str


def try_command(argv: Sequence[str]) -> Tried:
    """Run a command that should end by itself. One that is missing or hangs counts as failed."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TRY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Tried(ok=False, said=str(error))
    return Tried(ok=done.returncode == 0, said=(done.stderr or done.stdout).strip())


def try_unshare(isolation: Isolation) -> Tried:
    """Try to make the namespaces; they end with the trial."""
    return try_command(["unshare", *isolation.value, "true"])


def try_overlay(isolation: Isolation) -> Tried:
    """Try a writable overlay over the machine's files, in its own namespaces, invisible from outside."""
    folder = tempfile.mkdtemp(prefix="headrace-overlay-")
    options = _OVERLAY_OPTIONS[isolation.name]
    try:
        return try_command(["unshare", *isolation.value, "sh", "-c", _OVERLAY_SCRIPT, "sh", folder, options])
    finally:
        Path(folder).rmdir()


def find_isolation() -> Isolation:
    """How to isolate the node's processes; LocalError with the kernel's messages if nothing works.

    As root, root is tried first; since a container may lack root's right to mount, a user namespace is tried next.
    """
    candidates = list(Isolation) if os.geteuid() == 0 else [Isolation.USER_NAMESPACE]
    said = []
    for isolation in candidates:
        tried = try_unshare(isolation)
        tried = try_overlay(isolation) if tried.ok else tried
        if tried.ok:
            return isolation
        said.append(f"{_NAMES[isolation]}: {tried.said or 'failed without a message'}")
    raise LocalError(
        "This machine does not let us make the file system view for pods.",
        why=f"Tried as user {os.geteuid()}: an overlay over the machine's files in its own mount namespace.",
        detail="\n".join(said),
        todo=(
            "Run it as root (in a container: a privileged one; with the kernel's overlay module loaded). "
            "Or use an existing cluster: --context NAME."
        ),
    )


def is_mapped_root(uid_map: str) -> bool:
    """Whether root here is only root of a user namespace, where other users do not exist."""
    return all(int(line.split()[2]) < _EVERY_USER for line in uid_map.splitlines())


def enter_argv(isolation: Isolation, holder_pid: int) -> list[str]:
    """The command prefix that runs a process of the node in the namespaces that the holder keeps open."""
    user = ["--user", "--preserve-credentials"] if isolation is Isolation.USER_NAMESPACE else []
    return ["nsenter", f"--target={holder_pid}", *user, "--mount", "--"]


def holder_argv(isolation: Isolation, command: Sequence[str]) -> list[str]:
    """The command line that runs `command`, which must stay, in new namespaces."""
    return ["unshare", *isolation.value, "--", *command]
