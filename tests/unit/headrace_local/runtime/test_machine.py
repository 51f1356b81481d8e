"""Facts about this machine."""

import sys
from pathlib import Path

from headrace_local.isolation import is_mapped_root
from headrace_local.layout import Slot
from headrace_local.runtime import machine


def test_only_the_first_user_namespace_knows_every_user():
    assert not is_mapped_root("         0          0 4294967295\n")
    assert is_mapped_root("         0       1000          1\n")


def test_our_python_its_links_and_its_packages_are_needed(tmp_path: Path):
    (tmp_path / "cache").mkdir()
    needed = machine.needed_paths(Slot(4, tmp_path / "slot-4", tmp_path / "cache"))

    def covered(path: str) -> bool:
        return any(Path(path).is_relative_to(folder) for folder in needed)

    assert covered(sys.executable)
    assert covered(str(Path(sys.executable).resolve()))
    assert covered(machine.__file__)
    assert covered(str(tmp_path / "cache"))
    assert "/" not in needed


def test_the_clusters_own_state_is_hidden(tmp_path: Path):
    found = machine.look(Slot(4, tmp_path / "local" / "slot-4", tmp_path))
    assert str(tmp_path / "local") in [folder.path for folder in found.hidden]
