"""Facts about this machine: its mounts, the paths of our Python, whether root is real. Read once, at the start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from headrace_local.isolation import is_mapped_root
from headrace_local.layout import Slot
from headrace_local.nodespace import DEVICE_PLUGINS, LOG_LINKS, MOUNT_SOURCE
from headrace_local.runtime.fileview import HiddenFolder, Machine, MountPoint, below, parse_mounts


def look(slot: Slot) -> Machine:
    """Read the facts that file views are planned with."""
    found = parse_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    return Machine(
        mounts=tuple(
            MountPoint(path, kind, Path(path).is_dir())
            for path, kind, source in found
            if source != MOUNT_SOURCE and path not in {DEVICE_PLUGINS, LOG_LINKS}
        ),
        needed=tuple(needed_paths(slot)),
        hidden=(
            HiddenFolder("/tmp", 0o1777),  # noqa: S108 -- to be hidden, not used
            HiddenFolder("/var/tmp", 0o1777),  # noqa: S108
            HiddenFolder("/run", 0o755),
            HiddenFolder(str(slot.state_dir.parent), 0o755),
        ),
        mapped_root=is_mapped_root(Path("/proc/self/uid_map").read_text(encoding="ascii")),
        top_folders=tuple(str(path) for path in sorted(Path("/").iterdir()) if path.is_dir() and not path.is_symlink()),
    )


def needed_paths(slot: Slot) -> list[str]:
    """The folders that a container needs to run our Python with our packages and models."""
    folders = [sys.prefix, sys.base_prefix, *sys.path, str(slot.cache_dir)]
    folders += [str(hop.parent) for hop in _hops(Path(sys.executable))]
    both = [form for folder in folders for form in (folder, os.path.realpath(folder))]
    return _outermost(path for path in both if path != "/" and Path(path).is_absolute() and Path(path).exists())


def _hops(path: Path) -> list[Path]:
    """The path and, link by link, those it points to."""
    hops = [path]
    while hops[-1].is_symlink():
        hops.append(hops[-1].parent / hops[-1].readlink())
    return hops


def _outermost(paths: Iterable[str]) -> list[str]:
    """The paths without those inside others."""
    chosen: list[str] = []
    for path in sorted(dict.fromkeys(os.path.normpath(path) for path in paths)):
        if not any(below(path, other) for other in chosen):
            chosen.append(path)
    return chosen
