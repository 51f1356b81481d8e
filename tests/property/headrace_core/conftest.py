"""Puts the harness of this folder on the path: test folders are not packages."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from core_harness import Harness


@pytest.fixture(scope="session")
def harness() -> type[Harness]:
    return Harness
