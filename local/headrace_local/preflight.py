"""Checks before a cluster is started: each says what is missing, why it matters and what to do.

A check returns a PreflightProblem or None and changes nothing; functions that look at the machine are arguments.
"""

from __future__ import annotations

import ipaddress
import shutil
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace_local.errors import LocalError
from headrace_local.isolation import Isolation, find_isolation
from headrace_local.layout import BASE_PORT, MAX_SLOT, PORTS_PER_SLOT, Slot

OTHER_CLUSTER = "Or use an existing cluster: --context NAME."
COMMANDS = ("unshare", "nsenter", "mount", "umount", "sleep")
#: A Unix socket's path has at most 107 bytes. Ours is the slot's folder plus this.
LONGEST_SOCKET = "/kubelet/device-plugins/headrace-gpu.sock"
SOCKET_PATH_BYTES = 107


@dataclass(frozen=True, slots=True)
class PreflightProblem:
    """One reason why the cluster can't be started."""

    what: str
    why: str
    todo: str


def check_platform(platform: str) -> PreflightProblem | None:
    """Linux only: pods are Linux namespaces."""
    if platform == "linux":
        return None
    return PreflightProblem(
        f"The embedded cluster runs on Linux, and this is {platform}.",
        "Its pods are processes in Linux mount and PID namespaces; its kubelet reads /proc and /sys.",
        "Use a Linux machine or VM. " + OTHER_CLUSTER,
    )


def check_commands(names: Iterable[str], which: Callable[[str], str | None] = shutil.which) -> PreflightProblem | None:
    """The system programs that the node's processes need are on PATH."""
    missing = [name for name in names if which(name) is None]
    if not missing:
        return None
    return PreflightProblem(
        f"Not on PATH: {', '.join(missing)}.",
        "The cluster needs them to make its namespaces and mounts.",
        "Install util-linux (and coreutils) from your distribution.",
    )


def check_ports(slot: Slot, is_free: Callable[[int], bool]) -> PreflightProblem | None:
    """Every port of the slot is free."""
    taken = {purpose: port for purpose, port in slot.ports.items() if not is_free(port)}
    if not taken:
        return None
    listed = ", ".join(f"{port} ({purpose})" for purpose, port in taken.items())
    return PreflightProblem(
        f"In use on 127.0.0.1: {listed}.",
        f"Slot {slot.number} uses the ports from {slot.base_port} (= {BASE_PORT} + {PORTS_PER_SLOT} x slot) on, "
        "and something else is listening there.",
        f"Use another slot: --slot {slot.number + 1 if slot.number < MAX_SLOT else 0}. "
        f"Or stop what is listening there (`ss -ltnp 'sport = :{next(iter(taken.values()))}'` names it).",
    )


def check_loopback(slot: Slot, can_bind: Callable[[str], bool]) -> PreflightProblem | None:
    """Any address in 127.0.0.0/8 can be listened on; Services and pods get addresses from there."""
    address = str(ipaddress.ip_address(slot.pod_address(0)))
    if can_bind(address):
        return None
    return PreflightProblem(
        f"This machine can't listen on {address}.",
        f"Services get addresses from {slot.service_cidr} and pods from {slot.pod_cidr}, all on the loopback device.",
        "Check that `ip addr show lo` has 127.0.0.1/8 and is up. " + OTHER_CLUSTER,
    )


def check_socket_paths(slot: Slot) -> PreflightProblem | None:
    """The state folder's path is short enough for Unix sockets below it."""
    longest = f"{slot.state_dir}{LONGEST_SOCKET}"
    if len(longest.encode()) <= SOCKET_PATH_BYTES:
        return None
    return PreflightProblem(
        f"The path of the state folder is too long: {slot.state_dir}",
        f"Sockets lie below it, and Linux allows {SOCKET_PATH_BYTES} bytes for a socket's path; "
        f"{longest} has {len(longest.encode())}.",
        "Set HEADRACE_STATE to a shorter folder.",
    )


def check_writable(folders: Sequence[Path]) -> PreflightProblem | None:
    """State and cache folders can be written."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            return PreflightProblem(
                f"{folder} can't be written.",
                str(error),
                "Set HEADRACE_STATE and HEADRACE_CACHE to folders of your own, with several GB free.",
            )
    return None


def check_owner(state_dir: Path, user: int) -> None:
    """Refuse to work on a cluster that another user started: LocalError names the user."""
    owner = state_dir.stat().st_uid
    if user not in (owner, 0):
        raise LocalError(
            f"{state_dir} belongs to user {owner}, and you are user {user}.",
            why="You can't stop another user's processes or undo their mounts.",
            todo=f"Run the command as user {owner} (sudo), or set HEADRACE_STATE to a folder of your own.",
        )


def can_bind_anywhere(address: str) -> bool:
    """Whether a server could listen on the address, on a port that the kernel picks."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            return False
    return True


def preflight(slot: Slot, *, platform: str, is_free: Callable[[int], bool]) -> Isolation:
    """Run every check; return the isolation to use. LocalError for the first problem."""
    _refuse(check_platform(platform))
    _refuse(check_commands(COMMANDS))
    _refuse(check_socket_paths(slot))
    _refuse(check_writable([slot.state_dir, slot.cache_dir]))
    isolation = find_isolation()
    _refuse(check_loopback(slot, can_bind_anywhere))
    _refuse(check_ports(slot, is_free))
    return isolation


def _refuse(problem: PreflightProblem | None) -> None:
    if problem is not None:
        raise LocalError(problem.what, why=problem.why, todo=problem.todo)
