"""Which tests run when, and Hypothesis profiles: dev by default, ci and nightly by HYPOTHESIS_PROFILE.

Plain `pytest` runs what is marked quick: no torch, no model, no server, no cluster. A path or `-m` asks for more.
"""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))  # for modules that several folders share: test folders are not packages

# The mark of each folder's tests, unless a test has one of these itself; the rest is quick.
FOLDERS = {
    "unit/headrace_engine": "engine",
    "unit/headrace_local": "local",
    "contract": "contract",
    "apiserver": "apiserver",
    "chart": "apiserver",
    "e2e": "e2e",
    "gpu": "gpu",
}

# A noisy two-core machine makes deadlines and "too slow" checks say nothing about the code.
for name, examples in (("dev", 25), ("ci", 200), ("nightly", 5000)):
    settings.register_profile(
        name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def mark_of(path: Path) -> str:
    """The mark of a test file, or of a folder."""
    inside = path.relative_to(TESTS).as_posix() + "/"
    return next((mark for folder, mark in FOLDERS.items() if inside.startswith(f"{folder}/")), "quick")


def pytest_configure(config: pytest.Config) -> None:
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.markexpr:
        config.option.markexpr = "quick"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without torch, files of other marks could not even be imported."""
    is_slow = collection_path.is_relative_to(TESTS) and mark_of(collection_path) != "quick"
    return True if config.option.markexpr == "quick" and is_slow else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not any(item.get_closest_marker(mark) for mark in FOLDERS.values()):
            item.add_marker(mark_of(item.path))
