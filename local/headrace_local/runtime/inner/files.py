"""Small files shared by two processes, and exit codes."""

# pathlib is slow to import, and each container starts one of these interpreters:
# ruff: noqa: PTH105, PTH123

from __future__ import annotations

import json
import os


def write_json(path: str, content: object) -> None:
    """Write the content atomically: readers see the old or the new file, even after a crash."""
    partial = f"{path}.{os.getpid()}"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(partial, path)


def exit_code(status: int) -> int:
    """The exit code for a wait status; 128 + signal number for a killed process."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
