"""`docs/known-failures.md` names tests that exist, and every number that a test mentions is on the page."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "known-failures.md").read_text()
NUMBERS = set(re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE))


def test_each_test_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) >= len(NUMBERS) > 40
    missing = [f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / "tests" / path).read_text()]
    assert missing == []


def test_each_number_that_a_test_mentions_is_on_the_page() -> None:
    texts = [path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py")) if path != Path(__file__)]
    mentioned = {number for text in texts for number in re.findall(r"(?:[Kk]nown failure |test_case_)(\d+)", text)}
    assert mentioned
    assert mentioned - NUMBERS == set()
