"""The file behind `--record`: one line per scheduler call, written immediately, so that a crash loses none."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path

from headrace_engine.errors import SettingsError

log = logging.getLogger(__name__)


def open_recording(path: Path) -> Callable[[str], object]:
    """A function that appends a line to a new file: `path`, or a numbered name beside it if `path` exists.

    Only the owner can read the file, as it holds prompts and outputs as token ids. Raises `SettingsError`.
    """
    chosen = next(name for name in _names(path) if not name.exists())
    try:
        chosen.parent.mkdir(parents=True, exist_ok=True)
        chosen.touch(mode=0o600, exist_ok=False)
    except OSError as error:
        raise SettingsError(f"--record {path}: cannot write there: {error.strerror}; choose another file") from error
    log.info("recording the scheduler's calls, with prompts and outputs as token ids", extra={"file": str(chosen)})

    def write(line: str) -> None:
        # Opened for each line: that costs only microseconds per step, and leaves nothing to close.
        try:
            with chosen.open("a", encoding="utf-8") as stream:
                stream.write(line)
        except OSError as error:  # logged only once: the scheduler stops writing after an error
            log.error("the recording ends here: %s", error.strerror, extra={"file": str(chosen)})
            raise

    return write


def _names(path: Path) -> itertools.chain[Path]:
    return itertools.chain([path], (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(1)))
