"""The root that a container sees: planned here as data (pure), built by `inner.rootfs`.

The image is this machine: an overlay of `/` (and of every other real file system of the machine) that the container
may write to without touching the machine. Folders that no image would contain are hidden: the machine's temporary and
run-time folders, and the clusters' own state with its keys. What our own code needs from a hidden folder (a checkout in
/tmp), or from a folder covered by a volume (a pod's own /tmp), is mounted again in its place.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace_local.runtime.records import MountRecord

Step = dict[str, object]

#: File systems that are views into the kernel or hold nothing that would be in an image.
_NOT_AN_IMAGE = frozenset(
    [
        *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs"),
        *("fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs"),
        *("squashfs", "sysfs", "tmpfs", "tracefs"),
    ]
)
_MADE_HERE = ("/proc", "/sys", "/dev")


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A mount of the machine."""

    path: str
    kind: str
    is_folder: bool


@dataclass(frozen=True, slots=True)
class HiddenFolder:
    """A folder to show as empty, and the mode of the empty one."""

    path: str
    mode: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about the machine that the plan depends on.

    `needed` are the files and folders of our own Python, its packages and the models. With `mapped_root`, root is only
    root of a user namespace, and `top_folders` are the folders in `/`.
    """

    mounts: tuple[MountPoint, ...]
    needed: tuple[str, ...]
    hidden: tuple[HiddenFolder, ...]
    mapped_root: bool = False
    top_folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """What one container asks for. `devices` are (host path, container path)."""

    as_root: bool
    readonly_root: bool
    mounts: Sequence[MountRecord] = ()
    devices: Sequence[tuple[str, str]] = ()
    masked: Sequence[str] = ()
    readonly: Sequence[str] = ()


def plan_view(machine: Machine, request: ViewRequest) -> list[Step]:
    """The steps that make the container's root, in order."""
    hidden = _hidden(machine)
    further = _further_layers(machine, hidden)
    if machine.mapped_root:
        # In a user namespace the kernel refuses an overlay of a folder with other mounts in it, as `/` always has. So
        # each folder of `/` gets an overlay of its own.
        layers = [*_top_layers(machine, hidden, further), *further]
        steps: list[Step] = [{"do": "skeleton"}, *(_overlay(layer, userxattr=True) for layer in layers)]
    else:
        layers = ["/", *further]
        steps = [_overlay(layer, userxattr=False) for layer in layers]
    steps += [_bind(path, path, readonly=True) for path in _file_mounts(machine, hidden)]
    steps += [_hide(folder) for folder in hidden]
    steps += [{"do": "dev"}, {"do": "proc"}, {"do": "sys"}]
    # A mount inside another one must come after it, or it would be covered.
    for mount in sorted(request.mounts, key=lambda mount: _depth(mount.container_path)):
        steps.append(_bind(mount.host_path, mount.container_path, mount.readonly, deep=mount.recursive_readonly))
    inlaid = _inlaid(machine.needed, [*(folder.path for folder in hidden), *_volumes(request.mounts)])
    steps += [_overlay(path, userxattr=machine.mapped_root) for path in inlaid]
    inner = [folder for folder in machine.hidden if any(below(folder.path, path) for path in inlaid)]
    steps += [_hide(folder) for folder in inner]
    if not request.as_root:
        steps += _opened(machine.needed)
    steps += [_bind(source, target, readonly=False) for source, target in request.devices]
    steps += [{"do": "mask", "path": path} for path in request.masked]
    steps += [{"do": "readonly", "path": path} for path in request.readonly]
    if request.readonly_root:
        volumes = _volumes(request.mounts)
        # Folders covered by a volume can't be sealed, and the volume is writable on purpose.
        bare = [folder.path for folder in hidden if not any(below(folder.path, volume) for volume in volumes)]
        sealed = [*dict.fromkeys(["/", *layers]), *bare, *inlaid, *(folder.path for folder in inner)]
        steps.append({"do": "seal", "paths": sealed})
    return steps


def parse_mounts(mountinfo: str) -> list[tuple[str, str, str]]:
    """(mount point, file system type, source) of each line of /proc/self/mountinfo, in order."""
    found: list[tuple[str, str, str]] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        path = before.split()[4].encode().decode("unicode_escape").encode("latin-1").decode()
        kind, source, *_ = after.split()
        found.append((path, kind, source))
    return found


def parents(path: str) -> list[str]:
    """The folders above a path, outermost first, without the root."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[:count]) for count in range(1, len(parts))]


def below(path: str, folder: str) -> bool:
    """Whether the path is the folder or is inside it."""
    return folder in {"/", path} or path.startswith(folder.rstrip("/") + "/")


def _hidden(machine: Machine) -> list[HiddenFolder]:
    """The folders to hide, without those inside others."""
    chosen: list[HiddenFolder] = []
    for folder in machine.hidden:
        if not any(below(folder.path, other.path) for other in chosen):
            chosen.append(folder)
    return chosen


def _inlaid(needed: Iterable[str], covers: Sequence[str]) -> list[str]:
    """Needed paths inside a covered folder. A volume mounted at exactly such a path stays, as the pod asked for it."""
    return [path for path in needed if any(below(path, cover) and path != cover for cover in covers)]


def _volumes(mounts: Sequence[MountRecord]) -> list[str]:
    return [mount.container_path.rstrip("/") or "/" for mount in mounts]


def _shown(machine: Machine, hidden: Iterable[HiddenFolder]) -> Iterator[MountPoint]:
    """The machine's mounts except `/` that belong to the image: real file systems, and any that hold needed paths."""
    covered = [*_MADE_HERE, *(folder.path for folder in hidden)]
    for mount in {
        mount.path: mount for mount in machine.mounts
    }.values():  # the last mount at a place is the visible one
        if mount.path == "/" or any(below(mount.path, folder) for folder in covered):
            continue
        if mount.kind not in _NOT_AN_IMAGE or any(below(path, mount.path) for path in machine.needed):
            yield mount


def _further_layers(machine: Machine, hidden: Iterable[HiddenFolder]) -> list[str]:
    return sorted((mount.path for mount in _shown(machine, hidden) if mount.is_folder), key=_depth)


def _top_layers(machine: Machine, hidden: Iterable[HiddenFolder], further: Sequence[str]) -> list[str]:
    left_out = {*_MADE_HERE, *further, *(folder.path for folder in hidden)}
    return [path for path in machine.top_folders if path not in left_out]


def _overlay(lower: str, *, userxattr: bool) -> Step:
    return {"do": "overlay", "lower": lower, "userxattr": userxattr}


def _file_mounts(machine: Machine, hidden: Iterable[HiddenFolder]) -> list[str]:
    """Single mounted files, such as a container engine's /etc/resolv.conf."""
    return [mount.path for mount in _shown(machine, hidden) if not mount.is_folder]


def _opened(needed: Iterable[str]) -> list[Step]:
    """Steps that let users other than root read what is needed, and pass through its parent folders."""
    leaves = list(dict.fromkeys(needed))
    passed = dict.fromkeys(parent for path in leaves for parent in parents(path))
    steps: list[Step] = [{"do": "open", "path": path, "leaf": False} for path in passed if path not in leaves]
    return steps + [{"do": "open", "path": path, "leaf": True} for path in leaves]


def _hide(folder: HiddenFolder) -> Step:
    return {"do": "hide", "path": folder.path, "mode": folder.mode}


def _bind(source: str, target: str, readonly: bool, *, deep: bool = False) -> Step:
    return {"do": "bind", "source": source, "target": target, "readonly": readonly, "recursive_readonly": deep}


def _depth(path: str) -> int:
    return posixpath.normpath(path).count("/")
