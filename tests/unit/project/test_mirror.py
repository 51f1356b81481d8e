"""`tests/unit` mirrors the packages: each file tests one module, and lies where that module lies."""

from pathlib import Path

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "tests" / "unit"


def modules() -> set[str]:
    """Paths below the top-level folders, without their suffix: `headrace_core/scheduler/blocks`."""
    files = (path for path in ROOT.glob("*/headrace_*/**/*.py") if path.stem != "__init__")
    return {path.relative_to(ROOT).with_suffix("").as_posix().split("/", 1)[1] for path in files}


def module_of(path: Path, known: set[str]) -> str | None:
    """The module that a test file is for: `test_NAME.py`, or `test_NAME_ASPECT.py` where one file is not enough."""
    folder = path.parent.relative_to(UNIT).as_posix()
    words = path.stem.removeprefix("test_").split("_")
    names = (f"{folder}/{'_'.join(words[:end])}" for end in range(len(words), 0, -1))
    return next((name for name in names if name in known), None)


def test_each_file_is_for_a_module_that_lies_in_the_same_place() -> None:
    known = modules()
    files = [path for path in sorted(UNIT.glob("headrace_*/**/test_*.py"))]
    assert len(files) > 100
    lost = [path.relative_to(ROOT).as_posix() for path in files if module_of(path, known) is None]
    assert lost == []
