"""The texts of a comparison: the 46 built-in ones (`texts.jsonl`), or a file of JSON lines."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from headrace_bench.errors import BenchError
from headrace_core.observations import Passage

BUILT_IN = "built-in"


def read_texts(source: str) -> tuple[Passage, ...]:
    """The built-in texts, or those of a JSONL file. Raises `BenchError` naming file and line."""
    if source == BUILT_IN:
        content, where = (resources.files(__package__) / "texts.jsonl").read_text(encoding="utf-8"), "texts.jsonl"
    else:
        where = f"--prompts {source}"
        try:
            content = Path(source).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BenchError(f"{where}: cannot be read as UTF-8: {error}") from error
    # Not splitlines(): JSON strings may hold Unicode line separators, which it would split at.
    lines = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    texts = tuple(_parse(line, f"{where}, line {number}", number) for number, line in lines)
    if not texts:
        raise BenchError(f'{where}: holds no text; one JSON object a line is expected, such as {{"text": "…"}}')
    names = [text.name for text in texts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BenchError(f"{where}: the id {twice[0]!r} is used twice; each text needs an id of its own, or none")
    return texts


def _parse(line: str, where: str, number: int) -> Passage:
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise BenchError(f"{where}: is not JSON: {error}") from error
    text = value.get("text", value.get("prompt")) if isinstance(value, dict) else None
    if not isinstance(text, str) or not text:
        raise BenchError(f'{where}: an object with a non-empty string "text" is expected, and "id" if you like')
    return Passage(str(value.get("id", f"line-{number}")), text)
