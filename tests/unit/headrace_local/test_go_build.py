"""Building with a real Go compiler: files after success, messages after failure."""

import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from headrace_local import go_build
from headrace_local.go_build import BuildError, build_lock, build_one, ensure_go, go_version
from headrace_local.go_modules import Program
from headrace_local.progress import QuietSteps

GO = shutil.which("go")
needs_go = pytest.mark.skipif(GO is None, reason="no Go compiler on PATH; the cluster's own builds fetch one")
TINY = Program("tiny", "tiny", "headrace.test/tiny", ".")


class Details:
    """A step that keeps its details."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def detail(self, text: str) -> None:
        self.said.append(text)


def module(folder: Path, code: str) -> Path:
    (folder / "tiny").mkdir()
    (folder / "tiny" / "go.mod").write_text("module headrace.test/tiny\n\ngo 1.21\n")
    (folder / "tiny" / "main.go").write_text(code)
    return folder


@needs_go
def test_a_program_is_built_and_put_in_place(tmp_path: Path):
    # The path makes it a program that no cache of compiled packages has.
    modules = module(tmp_path, f'package main\n\nfunc main() {{ println("flows", len("{tmp_path}") > 0) }}\n')
    target = tmp_path / "cache" / "bin" / "tiny-1" / "tiny"
    step = Details()
    build_one(TINY, "1", target, go=str(GO), modules=modules, step=step, environment=os.environ)
    done = subprocess.run([target], capture_output=True, text=True, check=True)
    assert done.stderr == "flows true\n"
    assert list(target.parent.iterdir()) == [target], "no scratch folder is left"
    assert step.said[-1] == "1 packages"


@needs_go
def test_a_failed_build_says_what_where_why_and_what_to_do(tmp_path: Path):
    modules = module(tmp_path, "package main\n\nfunc main() { dam() }\n")
    target = tmp_path / "cache" / "tiny"
    with pytest.raises(BuildError) as caught:
        build_one(TINY, "1", target, go=str(GO), modules=modules, step=Details(), environment=os.environ)
    assert caught.value.what == "tiny could not be built."
    assert str(modules / "tiny") in caught.value.why
    assert "build -v -trimpath" in caught.value.why
    assert "undefined: dam" in caught.value.detail
    assert "GOPROXY" in caught.value.todo
    assert not target.exists()


def test_a_compiler_that_is_not_there(tmp_path: Path):
    modules = module(tmp_path, "package main\n")
    with pytest.raises(BuildError, match="could not be built"):
        build_one(TINY, "1", tmp_path / "out", go="/no/go", modules=modules, step=Details(), environment=os.environ)


def fake_go(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "go"
    path.write_text(f"#!/bin/sh\necho 'go version go{version} linux/amd64'\n")
    path.chmod(0o755)
    return path


def test_go_on_path_is_taken_if_it_is_new_enough(tmp_path: Path):
    found = fake_go(tmp_path / "bin", "1.26.8")
    assert go_version(str(found)) == (1, 26)
    environment = {"PATH": str(tmp_path / "bin")}
    assert ensure_go(tmp_path / "cache", (1, 26), environment, QuietSteps()) == str(found)


def test_an_old_go_is_passed_over_for_the_kept_toolchain(tmp_path: Path):
    fake_go(tmp_path / "bin", "1.19.8")
    kept = fake_go(tmp_path / "cache" / "toolchain" / "go" / "bin", "1.26.6")
    assert ensure_go(tmp_path / "cache", (1, 26), {"PATH": str(tmp_path / "bin")}, QuietSteps()) == str(kept)


def test_a_toolchain_that_can_not_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(go_build, "_installer", lambda _environment: ["/bin/sh", "-c", "echo no route; exit 1"])
    with pytest.raises(BuildError, match="toolchain could not be installed") as caught:
        ensure_go(tmp_path / "cache", (1, 26), {"PATH": "/nowhere"}, QuietSteps())
    assert caught.value.detail == "no route"
    assert "Install Go 1.26" in caught.value.todo


def test_a_go_command_without_output_has_version_zero(tmp_path: Path):
    assert go_version(str(tmp_path / "none")) == (0, 0)


def test_a_second_build_waits_for_the_first(tmp_path: Path):
    inside, release, order = threading.Event(), threading.Event(), []

    def first() -> None:
        with build_lock(tmp_path, QuietSteps()):
            inside.set()
            release.wait(10)
            order.append("first")

    class Waiting(QuietSteps):
        def step(self, title: str):
            assert "another build" in title
            release.set()
            return super().step(title)

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(10)
    with build_lock(tmp_path, Waiting()):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
