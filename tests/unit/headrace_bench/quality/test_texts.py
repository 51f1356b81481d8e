"""The texts: built in, or from a file."""

import json
from pathlib import Path

import pytest

from headrace_bench.errors import BenchError
from headrace_bench.quality.texts import BUILT_IN, read_texts
from headrace_core.observations import Passage


def test_the_built_in_texts_are_many_and_of_many_kinds() -> None:
    texts = read_texts(BUILT_IN)
    assert len(texts) >= 40
    kinds = {text.name.partition("-")[0] for text in texts}
    assert {"prose", "code", "table", "numbers", "german", "chinese", "arabic", "maths", "chat"} <= kinds
    assert all(len(text.text) > 150 for text in texts)
    assert all(text.text == text.text.strip("\n") for text in texts)
    assert len({text.text for text in texts}) == len(texts)


def test_two_of_them_begin_alike_so_that_a_prefix_cache_is_used() -> None:
    first, second = (text for text in read_texts(BUILT_IN) if text.name.startswith("support-"))
    shared = next(at for at, pair in enumerate(zip(first.text, second.text, strict=False)) if pair[0] != pair[1])
    assert shared > 300


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_a_persons_lines_are_read_with_their_ids_or_numbers(tmp_path: Path) -> None:
    separator = json.dumps({"text": "one\u2028line"}, ensure_ascii=False)  # a line separator, but not to JSON
    path = write(tmp_path / "mine.jsonl", '{"text": "first", "id": "a"}', "", separator, '{"prompt": "third", "id": 7}')
    assert read_texts(path) == (Passage("a", "first"), Passage("line-3", "one\u2028line"), Passage("7", "third"))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("not json", "line 2: is not JSON"),
        ('["text"]', 'line 2: an object with a non-empty string "text" is expected'),
        ('{"text": ""}', 'line 2: an object with a non-empty string "text" is expected'),
        ('{"text": 5}', 'line 2: an object with a non-empty string "text" is expected'),
        ('{"text": "again", "id": "a"}', "the id 'a' is used twice"),
    ],
)
def test_a_line_that_is_none_is_named(line: str, complaint: str, tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", '{"text": "first", "id": "a"}', line)
    with pytest.raises(BenchError, match=complaint) as caught:
        read_texts(path)
    assert "mine.jsonl" in str(caught.value)


def test_a_file_that_is_not_there_or_empty_or_binary_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="cannot be read"):
        read_texts(str(tmp_path / "none.jsonl"))
    with pytest.raises(BenchError, match="holds no text"):
        read_texts(write(tmp_path / "empty.jsonl"))
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BenchError, match="cannot be read as UTF-8"):
        read_texts(str(tmp_path / "binary.jsonl"))
