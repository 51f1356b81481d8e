"""Installs the chart with the real helm, and shows helm's output if that fails."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from headrace_local.errors import LocalError

RELEASE = "headrace"
NAMESPACE = "headrace-system"


def chart_dir() -> Path:
    """The chart's folder: inside the package in a wheel, `helm/headrace` in a checkout. LocalError if in neither."""
    package = Path(__file__).parent
    for candidate in (package / "chart", package.parent.parent / "helm" / "headrace"):
        if (candidate / "Chart.yaml").is_file():
            return candidate
    raise LocalError(
        "The chart is missing.",
        why=f"There is no Chart.yaml in {package / 'chart'} or in helm/headrace of a checkout.",
        todo="Reinstall headrace.",
    )


def install_argv(helm: str, chart: Path, *, kubeconfig: Path, namespace: str, timeout_seconds: int) -> list[str]:
    """`helm upgrade --install`, with the values on stdin; it returns when everything is ready."""
    return [
        helm,
        "upgrade",
        RELEASE,
        str(chart),
        "--install",
        f"--namespace={namespace}",
        "--create-namespace",
        f"--kubeconfig={kubeconfig}",
        "--values=-",
        "--wait",
        f"--timeout={timeout_seconds}s",
    ]


def install(
    helm: str,
    values: Mapping[str, Any],
    *,
    kubeconfig: Path,
    home: Path,
    chart: Path | None = None,
    namespace: str = NAMESPACE,
    timeout_seconds: int = 120,
) -> None:
    """Install or upgrade the release and wait until it is ready; LocalError with helm's output if it fails.

    `home` is a folder for helm's cache and settings, so that the user's own are neither read nor written.
    """
    argv = install_argv(
        helm, chart or chart_dir(), kubeconfig=kubeconfig, namespace=namespace, timeout_seconds=timeout_seconds
    )
    folders = {f"HELM_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
    done = subprocess.run(
        argv,
        input=yaml.safe_dump(dict(values)),
        env={**os.environ, **folders},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise LocalError(
            f"helm could not install {RELEASE}.",
            why=f"Its output (exit code {done.returncode}):",
            detail=(done.stderr or done.stdout).strip(),
            todo=(
                f"`kubectl -n {namespace} get pods,events` shows what did not become ready; "
                "the chart's values are described in helm/headrace/values.yaml."
            ),
        )
