"""Small files that two processes share: written whole or not at all."""

# pathlib is slow to import, and each container starts one of these interpreters:
# ruff: noqa: PTH105, PTH123

from __future__ import annotations

import json
import os


def write_json(path: str, content: object) -> None:
    """Put the content at `path` in one step, so that no reader and no crash ever sees half of it."""
    partial = f"{path}.{os.getpid()}"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(partial, path)


def exit_code(status: int) -> int:
    """The exit code of a wait status, 128 + signal for a killed process."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
