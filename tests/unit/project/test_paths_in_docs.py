"""Files and folders that the pages for people name are there, and so are the targets of links."""

import os
import re
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = re.compile(r"`([^`\n]+)`")
BUILT = frozenset({"__pycache__", "dist", "build", "node_modules"})
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


@cache
def names() -> frozenset[str]:
    """Every file and folder of the repository, but for what is built or installed into it."""
    found: set[str] = set()
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in BUILT and (name == ".ci" or not name.startswith("."))]
        found.update(str(Path(folder, name).relative_to(ROOT)) for name in (*folders, *files))
    return frozenset(found)


def looks_like_ours(text: str) -> bool:
    """Whether a piece of code in a page is meant as a path of this repository."""
    if not re.fullmatch(r"[\w./*-]+", text) or text.startswith("/"):
        return False
    first, slash, _ = text.partition("/")
    return text.endswith(".py") or bool(slash and (first in names() or first.startswith("headrace_")))


def exists(text: str) -> bool:
    """A path may be given from the root of the repository or from any folder of it on, and with `*`."""
    return any(PurePosixPath(name).match(text.rstrip("/")) for name in names())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_in_a_page_exist(page: Path) -> None:
    named = {text.partition("::")[0] for text in CODE.findall(page.read_text())}
    assert sorted(text for text in named if looks_like_ours(text) and not exists(text)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_to_files(page: Path) -> None:
    targets = {target for target in LINK.findall(page.read_text()) if "://" not in target}
    assert sorted(target for target in targets if not (page.parent / target).exists()) == []


def test_what_counts_as_a_path() -> None:
    assert looks_like_ours("headrace_engine/openai/schema.py")
    assert looks_like_ours("crds/*.yaml")
    assert exists("crds/*.yaml")
    assert exists("headrace_core/scheduler/")
    assert not exists("headrace_core/scheduler/gone.py")
    assert not looks_like_ours("/v1/models")
    assert not looks_like_ours("org/name")
