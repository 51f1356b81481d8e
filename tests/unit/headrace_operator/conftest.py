"""Puts the doubles of this folder on the path: test folders are not packages."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from operator_world import World


@pytest.fixture
def world() -> World:
    return World()
