"""From a CRI ContainerConfig to our own values (pure): environment, command, user, capabilities, mounts."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_local.runtime.errors import CriRefusedError
from headrace_local.runtime.fileview import ViewRequest
from headrace_local.runtime.images import Image
from headrace_local.runtime.records import MountRecord

_CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"),
    *("LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER"),
    *("SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE"),
    *("SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP"),
    *("MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF"),
    "CHECKPOINT_RESTORE",
)
_NUMBER = {name: number for number, name in enumerate(_CAPABILITIES)}
#: What container runtimes give to a container by default.
_DEFAULT = frozenset(
    [
        *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP"),
        *("NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
    ]
)


@dataclass(frozen=True, slots=True)
class User:
    """The numeric user and groups that a container runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def command_line(config: Any) -> list[str]:
    """The command and its arguments. CriRefusedError if there is none, since our images have no entry point."""
    line = [*config.command, *config.args]
    if not line:
        raise CriRefusedError(
            f'container "{config.metadata.name}" has no command: on the embedded cluster the image is this machine, '
            "which has no entry point; set `command` in the pod"
        )
    return line


def environment(config: Any, image_env: Mapping[str, str], hostname: str) -> dict[str, str]:
    """The image's variables and the pod's, which take precedence."""
    asked = {pair.key: pair.value.decode("utf-8", "surrogateescape") for pair in config.envs}
    return {**image_env, "HOSTNAME": hostname, **asked}


def image_environment(prefix: str, cache: str) -> dict[str, str]:
    """Variables that our images would set. `prefix`: the virtual environment in place of the image's Python."""
    system = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
    return {
        "PATH": ":".join([f"{prefix}/bin", *system]),
        "HOME": "/tmp",  # noqa: S108 -- the container's own
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HEADRACE_CACHE": cache,
    }


def user_of(security: Any, image: Image, passwd: str) -> User:
    """The user that the pod asks for, or else the image's; `passwd` is the content of /etc/passwd."""
    groups = tuple(security.supplemental_groups)
    if security.HasField("run_as_user"):
        uid, group_of_user = security.run_as_user.value, None
    elif security.run_as_username:
        uid, group_of_user = _by_name(security.run_as_username, passwd)
    else:
        uid, group_of_user = image.uid or 0, image.uid
    if security.HasField("run_as_group"):
        return User(uid, security.run_as_group.value, groups)
    return User(uid, group_of_user or 0, groups)


def capabilities(security: Any) -> list[int]:
    """The numbers of the capabilities that the container keeps. CriRefusedError for unknown names."""
    if security.privileged:
        return list(_NUMBER.values())
    added = _names(security.capabilities.add_capabilities)
    dropped = _names(security.capabilities.drop_capabilities)
    kept = set(_NUMBER) if "ALL" in added else set() if "ALL" in dropped else set(_DEFAULT)
    if unknown := (added | dropped) - set(_NUMBER) - {"ALL"}:
        raise CriRefusedError(f"unknown capabilities: {', '.join(sorted(unknown))}")
    return sorted(_NUMBER[name] for name in (kept - dropped) | (added - {"ALL"}))


def mount_records(config: Any) -> tuple[MountRecord, ...]:
    """The pod's mounts. CriRefusedError for image volumes."""
    if images := [mount.container_path for mount in config.mounts if mount.image.image]:
        raise CriRefusedError(f"image volumes are not supported by the embedded cluster: {', '.join(images)}")
    return tuple(
        MountRecord(mount.container_path, mount.host_path, mount.readonly, mount.recursive_read_only)
        for mount in config.mounts
    )


def view_request(config: Any, user: User, mounts: tuple[MountRecord, ...]) -> ViewRequest:
    """The container's wishes for its file view."""
    security = config.linux.security_context
    return ViewRequest(
        as_root=user.uid == 0,
        readonly_root=security.readonly_rootfs,
        mounts=mounts,
        devices=[(device.host_path, device.container_path) for device in config.devices],
        masked=() if security.privileged else tuple(security.masked_paths),
        readonly=() if security.privileged else tuple(security.readonly_paths),
    )


def stop_signal(name: str) -> int:
    """The number of a CRI stop signal (`SIGTERM`, `SIGRTMINPLUS3`, `RUNTIME_DEFAULT`)."""
    if name == "RUNTIME_DEFAULT":
        return int(signal.SIGTERM)
    for prefix, sign in (("SIGRTMINPLUS", 1), ("SIGRTMAXMINUS", -1)):
        if name.startswith(prefix):
            return (signal.SIGRTMIN if sign > 0 else signal.SIGRTMAX) + sign * int(name.removeprefix(prefix))
    return int(signal.Signals[name])


def _by_name(name: str, passwd: str) -> tuple[int, int]:
    for line in passwd.splitlines():
        fields = line.split(":")
        if fields[0] == name:
            return int(fields[2]), int(fields[3])
    raise CriRefusedError(f'user "{name}" is not in /etc/passwd of this machine; use runAsUser with a number')


def _names(given: Iterable[str]) -> set[str]:
    return {name.upper().removeprefix("CAP_") for name in given}
