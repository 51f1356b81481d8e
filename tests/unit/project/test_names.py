"""One name, one thing: no class name stands twice in the project, private ones included."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]


def classes() -> dict[str, list[str]]:
    """Where each class name is defined. Generated stubs are exempt."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.glob("*/headrace_*/**/*.py")):
        if path.stem.endswith("_pb2"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(ROOT).as_posix())
    return found


def test_no_class_name_means_two_things() -> None:
    found = classes()
    assert len(found) > 500
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
