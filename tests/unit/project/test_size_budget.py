"""The size budget: a file of at most 500 lines, a function of at most 60. Generated stubs are exempt."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = ("core", "crds", "clients", "cli", "engine_image", "operator", "tuner", "bench", "local", "tests")
MAX_FILE, MAX_FUNCTION = 500, 60


def sources() -> list[Path]:
    files = (path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in files if "headrace_local/cri/" not in path.as_posix())


def oversize(path: Path) -> list[str]:
    text = path.read_text()
    name = path.relative_to(ROOT)
    lines = text.count("\n")
    found = [f"{name}: {lines} lines, at most {MAX_FILE}"] if lines > MAX_FILE else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION:
                found.append(f"{name}:{node.lineno} {node.name}: {length} lines, at most {MAX_FUNCTION}")
    return found


def test_files_and_functions_stay_within_the_budget() -> None:
    assert sources(), "no sources found: the folders of this test are out of date"
    assert [line for path in sources() for line in oversize(path)] == []


@pytest.mark.parametrize("folder", SOURCES[:-1])
def test_top_level_folders_are_not_packages(folder: str) -> None:
    # With operator/__init__.py present, `import operator` in the checkout breaks the standard library.
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_module_shadows_the_standard_library() -> None:
    import sys

    names = [path for path in sources() if path.stem in sys.stdlib_module_names and path.stem != "__main__"]
    assert names == []
