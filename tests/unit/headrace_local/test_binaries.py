"""Where programs are found, and that other releases are not used."""

from pathlib import Path

import pytest

from headrace_local.binaries import BinarySource, ask_version, cached_path, find, find_all
from headrace_local.go_modules import (
    PROGRAMS,
    build_argv,
    go_directive,
    modules_dir,
    pinned_version,
    program,
    required_version,
)

SCHEDULER = program("kube-scheduler")
PINNED = pinned_version(SCHEDULER)
MINOR = ".".join(PINNED.split(".")[:2])


def fake(folder: Path, says: str, name: str = "kube-scheduler") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


class Machine:
    """A machine with an assets folder, a PATH and a cache, all in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.assets, self.bin, self.cache = folder / "assets", folder / "bin", folder / "cache"
        self.environment = {"KUBEBUILDER_ASSETS": str(self.assets), "PATH": str(self.bin)}

    def cached(self) -> Path:
        path = cached_path(SCHEDULER, PINNED, self.cache)
        return fake(path.parent, "not asked")

    def find(self):
        return find(SCHEDULER, self.cache, self.environment)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_assets_come_first(machine: Machine):
    expected = fake(machine.assets, f"Kubernetes v{MINOR}.0")
    fake(machine.bin, f"Kubernetes v{PINNED}")
    machine.cached()
    found = machine.find()
    assert (found.source, found.path, found.version) == (BinarySource.ASSETS, expected, f"{MINOR}.0")


def test_then_path(machine: Machine):
    expected = fake(machine.bin, f"Kubernetes v{PINNED}")
    machine.cached()
    assert (machine.find().source, machine.find().path) == (BinarySource.PATH, expected)


def test_then_the_cache(machine: Machine):
    expected = machine.cached()
    assert (machine.find().source, machine.find().path) == (BinarySource.CACHE, expected)


def test_otherwise_it_is_missing_and_the_path_is_where_it_will_be(machine: Machine):
    found = machine.find()
    assert found.source is BinarySource.MISSING
    assert found.path == machine.cache / "bin" / f"kubernetes-{PINNED}" / "kube-scheduler"


@pytest.mark.parametrize("says", ["Kubernetes v1.11.4", "nothing of use"])
def test_another_release_is_passed_over_with_the_reason(machine: Machine, says: str):
    old = fake(machine.bin, says)
    machine.cached()
    found = machine.find()
    assert found.source is BinarySource.CACHE
    assert str(old) in found.passed_over[0]
    assert MINOR in found.passed_over[0]


def test_one_that_fails_when_asked_is_passed_over(machine: Machine):
    fake(machine.bin, "x").write_text(f"#!/bin/sh\necho v{PINNED}\nexit 1\n")
    assert machine.find().source is BinarySource.MISSING


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ("Kubernetes v1.36.3", "1.36.3"),
        ("etcd Version: 3.6.16\nGit SHA: x\nGo Version: go1.26.8", "3.6.16"),
        ("v3.20", "3.20"),
        ("Client Version: v1.32.4-dispatcher\nKustomize Version: v5.5.0", "1.32.4"),
        ("prometheus, version 2.42.0+ds (branch: debian/sid)\n  go version: go1.19.8", "2.42.0"),
        ("prometheus, version  (branch: , revision: x)\n  go version: go1.26.8", None),
    ],
)
def test_versions_are_parsed_from_the_programs_output(tmp_path: Path, says: str, version: str | None):
    assert ask_version(fake(tmp_path, says), ()) == version


def test_every_program_has_a_pinned_version():
    programs = "etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl helm prometheus"
    assert list({entry.name: pinned_version(entry) for entry in PROGRAMS}) == programs.split()
    assert [b.program.name for b in find_all(Path("/nowhere"), {}, ["helm"])] == ["helm"]


def test_every_program_is_a_tool_of_its_module():
    for entry in PROGRAMS:
        assert entry.package in (modules_dir() / entry.module / "go.mod").read_text()


def test_reading_go_mod():
    text = "module m\n\ngo 1.26.0\n\nrequire (\n\ta.example/b v1.2.3 // indirect\n\ta.example/b/v2 v2.0.0-rc.1\n)\n"
    assert required_version(text, "a.example/b") == "1.2.3"
    assert required_version(text, "a.example/b/v2") == "2.0.0-rc.1"
    assert go_directive(text) == (1, 26)
    with pytest.raises(ValueError, match="does not require"):
        required_version(text, "c")
    with pytest.raises(ValueError, match="no `go` line"):
        go_directive("module m\n")


def test_kubernetes_is_told_its_version():
    argv = build_argv(SCHEDULER, "1.36.3", go="go", output=Path("/out/kube-scheduler"))
    flags = argv[argv.index("-ldflags") + 1]
    assert flags.startswith("-s -w ")
    assert "-X k8s.io/component-base/version.gitVersion=v1.36.3" in flags
    assert "-X k8s.io/component-base/version.gitMinor=36" in flags
    assert argv[-1] == "k8s.io/kubernetes/cmd/kube-scheduler"


def test_prometheus_links_only_kubernetes_discovery():
    argv = build_argv(program("prometheus"), "0.313.5", go="go", output=Path("/out/prometheus"))
    assert argv[argv.index("-tags") + 1] == "remove_all_sd,enable_kubernetes_sd"
    assert argv[argv.index("-ldflags") + 1] == "-s -w"
