"""Installing the chart: what helm is asked, and what is said when it fails. A script stands in for helm."""

from pathlib import Path

import pytest
import yaml

from headrace_local import helm
from headrace_local.errors import LocalError


def script(folder: Path, text: str) -> str:
    path = folder / "helm"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_values_go_in_by_stdin_and_helm_waits(tmp_path: Path):
    fake = script(tmp_path, f'cd {tmp_path}; echo "$@" > argv; cat > values; echo "$HELM_CACHE_HOME" > home')
    values = {"image": {"tag": "dev"}, "replicas": 1}
    helm.install(fake, values, kubeconfig=Path("/k"), home=tmp_path / "h", chart=Path("/chart"), timeout_seconds=9)
    argv = (tmp_path / "argv").read_text().split()
    assert argv[:4] == ["upgrade", "headrace", "/chart", "--install"]
    assert {"--kubeconfig=/k", "--wait", "--timeout=9s", "--namespace=headrace-system"} <= set(argv)
    assert yaml.safe_load((tmp_path / "values").read_text()) == values
    assert (tmp_path / "home").read_text().strip() == str(tmp_path / "h" / "cache")


def test_a_failure_carries_helms_words(tmp_path: Path):
    fake = script(tmp_path, 'cat > /dev/null; echo "Error: context deadline exceeded" >&2; exit 1')
    with pytest.raises(LocalError, match="could not install") as caught:
        helm.install(fake, {}, kubeconfig=Path("/k"), home=tmp_path, chart=Path("/chart"))
    assert caught.value.detail == "Error: context deadline exceeded"
    assert "headrace-system get pods" in caught.value.todo


def test_helm_that_ends_without_reading_its_values(tmp_path: Path):
    fake = script(tmp_path, "echo broken >&2; exit 2")
    with pytest.raises(LocalError) as caught:
        helm.install(fake, {"long": "x" * 200_000}, kubeconfig=Path("/k"), home=tmp_path, chart=Path("/chart"))
    assert "exit code 2" in caught.value.why


def test_a_chart_that_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(helm, "__file__", str(tmp_path / "a" / "b" / "helm.py"))
    with pytest.raises(LocalError, match="chart is missing"):
        helm.chart_dir()
