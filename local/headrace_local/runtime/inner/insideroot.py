"""Paths inside a new root. Symbolic links are followed as in the container, never out of the root."""

# pathlib is slow to import, and each container starts one of these interpreters:
# ruff: noqa: PTH103, PTH114, PTH115, PTH116, PTH118, PTH120

from __future__ import annotations

import os
import stat

_MAX_LINKS = 40


def resolve(root: str, path: str) -> str:
    """The path below `root` (absolute, as the container sees it) that `path` means there, with every link followed.

    Parts that do not exist are kept as they are. OSError (ELOOP) for circular links.
    """
    pending = [part for part in path.split("/") if part]
    done: list[str] = []
    links = 0
    while pending:
        part = pending.pop(0)
        if part == ".":
            continue
        if part == "..":
            if done:
                done.pop()
            continue
        here = os.path.join(root, *done, part)
        if not os.path.islink(here):
            done.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(40, "too many symbolic links", path)
        target = os.readlink(here)
        if target.startswith("/"):
            done = []
        pending = [piece for piece in target.split("/") if piece] + pending
    return "/" + "/".join(done)


def outside(root: str, path: str) -> str:
    """The container's `path` as seen from outside, with links followed inside the root."""
    return root.rstrip("/") + resolve(root, path)


def make_folder(root: str, path: str, mode: int = 0o755) -> str:
    """Make sure that the container's `path` is a folder; return its path from outside."""
    target = outside(root, path)
    os.makedirs(target, mode, exist_ok=True)
    return target


def make_file(root: str, path: str) -> str:
    """Make sure that the container's `path` exists and is not a folder; return its path from outside."""
    target = outside(root, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        if stat.S_ISDIR(os.stat(target).st_mode):
            raise IsADirectoryError(21, "a file should be mounted here, but this is a folder", path)
    except FileNotFoundError:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    return target
