"""The mount namespace in which the node's processes run: `python -m headrace_local.nodespace --slot N`.

The kubelet has paths compiled in (its device plugin folder, the links to container logs), and as root it sets kernel
parameters of the machine. So runtime, kubelet and device plugin share a mount namespace in which those paths are the
slot's own and those parameters already read as the kubelet wants them: slots do not collide, nothing on the machine is
changed, and the kubelet's volumes disappear from the machine's mounts with the last process of the node.

`unshare [--user --map-root-user] --mount` starts this module inside the fresh namespace; it makes the mounts and
becomes `sleep infinity`, which keeps the namespace open for `nsenter --mount`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace_local.isolation import is_mapped_root
from headrace_local.layout import Slot, default_slot
from headrace_local.runtime.inner import syscalls

#: Source of the mounts that are made here; `runtime.fileview` leaves such mounts out of what containers see.
MOUNT_SOURCE = "headrace-node"

DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins"
LOG_LINKS = "/var/log/containers"
#: What the kubelet would set (`setupKernelTunables`) if it did not find these values already.
KERNEL_PARAMETERS = {
    "/proc/sys/vm/overcommit_memory": "1",
    "/proc/sys/vm/panic_on_oom": "0",
    "/proc/sys/kernel/panic": "10",
    "/proc/sys/kernel/panic_on_oops": "1",
    "/proc/sys/kernel/keys/root_maxkeys": "1000000",
    "/proc/sys/kernel/keys/root_maxbytes": "25000000",
}


@dataclass(frozen=True, slots=True)
class Overlay:
    """Put a writable layer over a folder of the machine, so that folders can be made in it."""

    path: str


@dataclass(frozen=True, slots=True)
class Folder:
    """Make a folder."""

    path: str


@dataclass(frozen=True, slots=True)
class Bind:
    """Show a folder of ours at a path."""

    source: str
    path: str


@dataclass(frozen=True, slots=True)
class Shadow:
    """Show a file with this content at a path."""

    path: str
    content: str


Step = Overlay | Folder | Bind | Shadow


def holder_command(slot: Slot) -> list[str]:
    """The command for `unshare ... --mount` to run. It is ready when its process is called `sleep`."""
    return [sys.executable, "-P", "-m", "headrace_local.nodespace", "--slot", str(slot.number)]


def plan(slot: Slot, exists: Callable[[str], bool]) -> list[Step]:
    """The mounts to be made, in order (pure; `exists` is asked about the machine's paths)."""
    steps: list[Step] = []
    for path, source in ((DEVICE_PLUGINS, slot.device_plugins_dir), (LOG_LINKS, slot.run_dir / "log-links")):
        if not exists(path):
            above = next(str(folder) for folder in Path(path).parents if exists(str(folder)))
            if not _holds(above, slot) and Overlay(above) not in steps:
                steps.append(Overlay(above))
            steps.append(Folder(path))
        steps.append(Bind(str(source), path))
    steps += [Shadow(path, content) for path, content in KERNEL_PARAMETERS.items() if exists(path)]
    return steps


def carry_out(steps: list[Step], scratch: Path) -> None:
    """Make the mounts; `scratch` is a folder of the slot that gets a file system in memory."""
    scratch.mkdir(parents=True, exist_ok=True)
    # Root of a user namespace may not set the trusted.* attributes that overlays use by default.
    notes = ",userxattr" if is_mapped_root(Path("/proc/self/uid_map").read_text(encoding="ascii")) else ""
    syscalls.mount(MOUNT_SOURCE, str(scratch), kind="tmpfs", options="mode=755")
    for number, step in enumerate(steps):
        own = scratch / str(number)
        match step:
            case Overlay(path):
                for name in ("upper", "work"):
                    (own / name).mkdir(parents=True)
                options = f"lowerdir={path},upperdir={own}/upper,workdir={own}/work{notes}"
                syscalls.mount(MOUNT_SOURCE, path, kind="overlay", options=options)
            case Folder(path):
                Path(path).mkdir(parents=True, exist_ok=True)
            case Bind(source, path):
                Path(source).mkdir(parents=True, exist_ok=True)
                syscalls.mount(source, path, flags=syscalls.MS_BIND)
            case Shadow(path, content):
                own.write_text(content + "\n", encoding="ascii")
                syscalls.mount(str(own), path, flags=syscalls.MS_BIND)


def _holds(folder: str, slot: Slot) -> bool:
    """Whether the slot's own files are below the folder: then no layer may hide what the node writes there."""
    return any(path.is_relative_to(folder) for path in (slot.state_dir, slot.cache_dir))


def main() -> None:
    """Make the mounts and stay as `sleep infinity`; a traceback on stderr if the kernel refuses one."""
    parser = argparse.ArgumentParser(prog="python -m headrace_local.nodespace", description=__doc__)
    parser.add_argument("--slot", type=int, default=0, help="number of the embedded cluster")
    slot = default_slot(parser.parse_args().slot)
    carry_out(plan(slot, lambda path: Path(path).exists()), slot.run_dir / "nodespace")
    os.execvp("sleep", ["sleep", "infinity"])  # noqa: S606 -- keeps the namespace open


if __name__ == "__main__":
    main()
