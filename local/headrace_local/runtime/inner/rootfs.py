"""Builds the file view planned by `headrace_local.runtime.fileview`, in the container's own mount namespace."""

# pathlib is slow to import, and each container starts one of these interpreters:
# ruff: noqa: PTH101, PTH102, PTH103, PTH110, PTH112, PTH115, PTH116, PTH118, PTH211

from __future__ import annotations

import os
import stat
import sys

from headrace_local.runtime.inner import insideroot, syscalls

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
_SHM_BYTES = 64 << 20  # the usual default; to raise it, mount an emptyDir of medium Memory at /dev/shm


class FileView:
    """The container's root, built step by step; `folder` is the container's folder on this machine."""

    def __init__(self, folder: str) -> None:
        self.root = os.path.join(folder, "root")
        self._layer = os.path.join(folder, "layer")
        self._count = 0
        for path in (self.root, self._layer):
            os.makedirs(path, exist_ok=True)
        syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("headrace", self._layer, kind="tmpfs", options="mode=755")

    def build(self, steps: list[dict[str, object]]) -> None:
        """Carry out the steps in order. OSError with the path of the step that failed."""
        for step in steps:
            arguments = dict(step)
            getattr(self, f"do_{arguments.pop('do')}")(**arguments)

    def enter(self) -> None:
        """Make the view the root of this process and detach the machine's."""
        os.chdir(self.root)
        syscalls.pivot_root_here()

    # -- steps, named as in the plan ---------------------------------------------------------------------------------

    def do_skeleton(self) -> None:
        """A root in memory with the symbolic links of the machine's `/`. Folders get their own layers."""
        syscalls.mount("headrace", self.root, kind="tmpfs", options="mode=755")
        for entry in os.scandir("/"):
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), os.path.join(self.root, entry.name))

    def do_overlay(self, *, lower: str, userxattr: bool) -> None:
        """A copy-on-write view of the machine's folder `lower` at the same place."""
        at = insideroot.make_folder(self.root, lower) if lower != "/" else self.root
        upper, work = self._scratch("upper"), self._scratch("work")
        if lower != "/":
            os.chmod(upper, stat.S_IMODE(os.stat(lower).st_mode))
        options = f"lowerdir={_escape(lower)},upperdir={_escape(upper)},workdir={_escape(work)}"
        try:
            syscalls.mount("overlay", at, kind="overlay", options=options + (",userxattr" if userxattr else ""))
        except OSError as error:
            if lower == "/":
                raise
            # A file system that cannot be a lower layer is shown read-only.
            _say(f"{lower}: {error.strerror}; shown read-only")
            syscalls.mount(lower, at, flags=syscalls.MS_BIND | syscalls.MS_REC)
            syscalls.make_readonly(at, recursive=True)

    def do_hide(self, *, path: str, mode: int) -> None:
        """An empty folder over one that no image would contain (the machine's /tmp, /run, our own state)."""
        empty = self._scratch("empty")
        os.chmod(empty, mode)
        syscalls.mount(empty, insideroot.make_folder(self.root, path), flags=syscalls.MS_BIND)

    def do_open(self, *, path: str, leaf: bool) -> None:
        """Let all users pass through a folder of the view, and with `leaf` list it. The machine's own is unchanged."""
        here = insideroot.outside(self.root, path)
        try:
            mode = stat.S_IMODE(os.stat(here).st_mode)
        except FileNotFoundError:
            return
        wanted = mode | (0o055 if leaf else 0o011)  # group too: a user without a group of its own is in group 0
        if wanted == mode:
            return
        try:
            os.chmod(here, wanted)
        except OSError as error:  # shown read-only, as it could not be a layer
            _say(f"{path}: {error.strerror}; only its owner can read it")

    def do_proc(self) -> None:
        """A /proc of the container's own process namespace."""
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
        syscalls.mount("proc", insideroot.make_folder(self.root, "/proc"), kind="proc", flags=flags)

    def do_sys(self) -> None:
        """The machine's /sys, read-only."""
        at = insideroot.make_folder(self.root, "/sys")
        syscalls.mount("/sys", at, flags=syscalls.MS_BIND | syscalls.MS_REC)
        syscalls.make_readonly(at, recursive=True)

    def do_dev(self) -> None:
        """A minimal /dev: the harmless devices, its own terminals and shared memory."""
        dev = insideroot.make_folder(self.root, "/dev")
        syscalls.mount("headrace", dev, kind="tmpfs", flags=syscalls.MS_NOSUID, options="mode=755,size=65536k")
        for name in _DEVICES:
            self.do_bind(source=f"/dev/{name}", target=f"/dev/{name}", readonly=False, recursive_readonly=False)
        for name, target in _LINKS.items():
            os.symlink(target, os.path.join(dev, name))
        os.mkdir(os.path.join(dev, "pts"))
        options = "newinstance,ptmxmode=0666,mode=0620"
        flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
        syscalls.mount("devpts", os.path.join(dev, "pts"), kind="devpts", flags=flags, options=options)
        os.symlink("pts/ptmx", os.path.join(dev, "ptmx"))
        os.mkdir(os.path.join(dev, "shm"))
        options = f"mode=1777,size={_SHM_BYTES}"
        flags |= syscalls.MS_NODEV
        syscalls.mount("shm", os.path.join(dev, "shm"), kind="tmpfs", flags=flags, options=options)

    def do_bind(self, *, source: str, target: str, readonly: bool, recursive_readonly: bool) -> None:
        """A file or folder of the machine (a volume, a device) at a path of the container."""
        make = insideroot.make_folder if os.path.isdir(source) else insideroot.make_file
        at = make(self.root, target)
        syscalls.mount(source, at, flags=syscalls.MS_BIND | syscalls.MS_REC)
        if readonly:
            syscalls.make_readonly(at, recursive=recursive_readonly)

    def do_mask(self, *, path: str) -> None:
        """Hide a path that the container must not read, if it exists."""
        at = insideroot.outside(self.root, path)
        if os.path.isdir(at):
            syscalls.mount("headrace", at, kind="tmpfs", flags=syscalls.MS_RDONLY, options="mode=555,size=4k")
        elif os.path.exists(at):
            syscalls.mount("/dev/null", at, flags=syscalls.MS_BIND)

    def do_readonly(self, *, path: str) -> None:
        """Make a path read-only, if it exists."""
        at = insideroot.outside(self.root, path)
        if os.path.exists(at):
            syscalls.mount(at, at, flags=syscalls.MS_BIND | syscalls.MS_REC)
            syscalls.make_readonly(at)

    def do_seal(self, *, paths: list[str]) -> None:
        """Make the image's mounts read-only (`readOnlyRootFilesystem`); volumes stay as they are."""
        for path in paths:
            syscalls.make_readonly(insideroot.outside(self.root, path))

    def _scratch(self, name: str) -> str:
        self._count += 1
        path = os.path.join(self._layer, f"{self._count}-{name}")
        os.mkdir(path, 0o755)
        return path


def _escape(path: str) -> str:
    """A path escaped for the option string of overlayfs."""
    for special in ("\\", ":", ","):
        path = path.replace(special, "\\" + special)
    return path


def _say(message: str) -> None:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()
