"""`docs/known-failures.md` names tests, and each of them exists under its path and name."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "known-failures.md").read_text()
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def exists(path: str, name: str) -> bool:
    file = ROOT / "tests" / path
    return file.is_file() and re.search(rf"^(?:async )?def {name}\(", file.read_text(), re.MULTILINE) is not None


def test_every_failure_names_a_test() -> None:
    assert len(ROWS) > 40
    assert [row for row in ROWS if not TEST.search(row)] == []


def test_each_test_exists() -> None:
    assert [f"{path}::{name}" for path, name in TEST.findall(PAGE) if not exists(path, name)] == []


def test_a_wrong_path_and_a_wrong_name_are_found() -> None:
    path, name = TEST.findall(PAGE)[0]
    assert exists(path, name)
    assert not exists(path, name[:-1])
    assert not exists(path.replace("/", "/x", 1), name)
