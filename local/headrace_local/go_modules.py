"""The Go modules that pin the cluster's programs: which programs, which versions, and how to build one.

Versions are only in the go.mod files (`local/go/*/go.mod`, `headrace_local/go` in a wheel).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace_local.errors import LocalError

_REQUIRE = re.compile(r"^\s*(?:require\s+)?(\S+)\s+v(\d\S*)", re.MULTILINE)
_GO_DIRECTIVE = re.compile(r"^go\s+(\d+)\.(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Program:
    """One program: `module` is the folder of its go.mod, `package` the Go package to build.

    `version_argv` are the arguments with which it prints its version.
    """

    name: str
    module: str
    requirement: str
    package: str
    version_argv: Sequence[str] = ("--version",)
    tags: str = ""


def _kubernetes(name: str, *version_argv: str) -> Program:
    return Program(
        name, "kubernetes", "k8s.io/kubernetes", f"k8s.io/kubernetes/cmd/{name}", version_argv or ("--version",)
    )


PROGRAMS: tuple[Program, ...] = (
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
    _kubernetes("kube-apiserver"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kube-scheduler"),
    _kubernetes("kubelet"),
    _kubernetes("kubectl", "version", "--client"),
    Program("helm", "helm", "helm.sh/helm/v3", "helm.sh/helm/v3/cmd/helm", ("version", "--short")),
    Program(
        "prometheus",
        "prometheus",
        "github.com/prometheus/prometheus",
        "github.com/prometheus/prometheus/cmd/prometheus",
        tags="remove_all_sd,enable_kubernetes_sd",
    ),
)
API_SERVER_PROGRAMS = ("etcd", "kube-apiserver")


def program(name: str) -> Program:
    """The program called `name`; KeyError if there is none."""
    return {entry.name: entry for entry in PROGRAMS}[name]


def modules_dir() -> Path:
    """The folder of the Go modules: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).parent
    for candidate in (package / "go", package.parent / "go"):
        if (candidate / "kubernetes" / "go.mod").is_file():
            return candidate
    raise LocalError(
        "The Go modules that pin the cluster's programs are missing.",
        why=f"There is no go/kubernetes/go.mod in {package} or beside it.",
        todo="Reinstall headrace, or put the programs on PATH or into $KUBEBUILDER_ASSETS.",
    )


def required_version(go_mod: str, requirement: str) -> str:
    """The version (without its `v`) at which the text of a go.mod requires `requirement`; ValueError if it does not."""
    for path, version in _REQUIRE.findall(go_mod):
        if path == requirement:
            return str(version)
    raise ValueError(f"go.mod does not require {requirement}")


def go_directive(go_mod: str) -> tuple[int, int]:
    """The minimum Go version (major, minor) of the module; ValueError if the text has no `go` line."""
    match = _GO_DIRECTIVE.search(go_mod)
    if match is None:
        raise ValueError("go.mod has no `go` line")
    return int(match[1]), int(match[2])


def pinned_version(entry: Program, modules: Path | None = None) -> str:
    """The version at which this distribution pins the program, such as `1.36.3`."""
    text = ((modules or modules_dir()) / entry.module / "go.mod").read_text()
    return required_version(text, entry.requirement)


def build_argv(entry: Program, version: str, *, go: str, output: Path) -> list[str]:
    """The `go build` command line (to be run in the module's folder); `-v` prints a line per compiled package."""
    flags = " ".join(["-s -w", *_version_flags(entry, version)])
    return [go, "build", "-v", "-trimpath", "-tags", entry.tags, "-ldflags", flags, "-o", str(output), entry.package]


def _version_flags(entry: Program, version: str) -> list[str]:
    if entry.module != "kubernetes":
        return []
    # Without these a component has version v0.0.0-master, which kubectl refuses to parse.
    major, minor, *_ = version.split(".")
    base = "-X k8s.io/component-base/version"
    return [
        f"{base}.gitVersion=v{version}",
        f"{base}.gitMajor={major}",
        f"{base}.gitMinor={minor}",
        f"-X k8s.io/client-go/pkg/version.gitVersion=v{version}",
    ]
