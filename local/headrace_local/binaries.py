"""The cluster's programs: found in `$KUBEBUILDER_ASSETS`, on PATH or in the cache, otherwise built from pinned modules.

A program outside the cache is run to ask its version, and used only if major and minor version are the pinned ones:
a kubelet newer than its API server, or flags of another release, would fail in confusing ways.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from headrace_local.go_build import build
from headrace_local.go_modules import PROGRAMS, Program, modules_dir, pinned_version
from headrace_local.progress import Steps

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
_VERSION = re.compile(r"(?<![\w.])v?(\d+\.\d+(?:\.\d+)?)")
_ASK_SECONDS = 20


class BinarySource(Enum):
    """Where a program was found."""

    ASSETS = f"${ASSETS_VARIABLE}"
    PATH = "PATH"
    CACHE = "cache"
    MISSING = "not built yet"


@dataclass(frozen=True, slots=True)
class Binary:
    """Where a program is, or if MISSING will be. `passed_over` says which files were not used and why."""

    program: Program
    version: str
    source: BinarySource
    path: Path
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Binaries:
    """Paths of programs that exist, by name."""

    paths: Mapping[str, Path]

    def __getitem__(self, name: str) -> str:
        return str(self.paths[name])


def find(entry: Program, cache_dir: Path, environment: Mapping[str, str], modules: Path | None = None) -> Binary:
    """The first usable file for the program, in the order assets, PATH, cache; MISSING if there is none."""
    version = pinned_version(entry, modules)
    passed_over: list[str] = []
    for source, path in _candidates(entry, environment):
        said = ask_version(path, entry.version_argv)
        if said is not None and _same_minor(said, version):
            return Binary(entry, said, source, path, tuple(passed_over))
        passed_over.append(f"{path} has version {said or 'unknown'}, needed is {'.'.join(version.split('.')[:2])}")
    cached = cached_path(entry, version, cache_dir)
    source = BinarySource.CACHE if cached.is_file() else BinarySource.MISSING
    return Binary(entry, version, source, cached, tuple(passed_over))


def find_all(cache_dir: Path, environment: Mapping[str, str], names: Sequence[str] = ()) -> list[Binary]:
    """`find` for every program, or for those named."""
    modules = modules_dir()
    wanted = [entry for entry in PROGRAMS if not names or entry.name in names]
    return [find(entry, cache_dir, environment, modules) for entry in wanted]


def ensure(cache_dir: Path, environment: Mapping[str, str], steps: Steps, names: Sequence[str] = ()) -> Binaries:
    """The paths of all programs, or of those named; missing ones are built first. LocalError if a build fails."""
    found = find_all(cache_dir, environment, names)
    missing = [binary for binary in found if binary.source is BinarySource.MISSING]
    if missing:
        build([(binary.program, binary.version, binary.path) for binary in missing], cache_dir, environment, steps)
    return Binaries({binary.program.name: binary.path for binary in found})


def cached_path(entry: Program, version: str, cache_dir: Path) -> Path:
    """Where the cache holds the program: `bin/<module>-<version>/<name>`."""
    return cache_dir / "bin" / f"{entry.module}-{version}" / entry.name


def ask_version(path: Path, argv: Sequence[str]) -> str | None:
    """The version that the program prints (`1.36.3`), or None if it prints none."""
    try:
        done = subprocess.run([str(path), *argv], capture_output=True, text=True, timeout=_ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stdout) if done.returncode == 0 else None
    return match[1] if match else None


def _candidates(entry: Program, environment: Mapping[str, str]) -> Iterator[tuple[BinarySource, Path]]:
    assets = environment.get(ASSETS_VARIABLE, "")
    if assets and (Path(assets) / entry.name).is_file():
        yield BinarySource.ASSETS, Path(assets) / entry.name
    on_path = shutil.which(entry.name, path=environment.get("PATH", ""))
    if on_path is not None:
        yield BinarySource.PATH, Path(on_path)


def _same_minor(said: str, pinned: str) -> bool:
    return said.split(".")[:2] == pinned.split(".")[:2]
