"""The chart, rendered by the real helm."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace_local.binaries import BinarySource, find_all
from headrace_local.layout import default_slot

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "headrace"
OPERATOR_RULES = ROOT / "operator" / "headrace_operator" / "rbac.yaml"

# What the chart is rendered for where no cluster is asked; our helm is built without that default.
KUBE_VERSION = ("--kube-version", "1.36.3")

Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def helm() -> str:
    (binary,) = find_all(default_slot().cache_dir, os.environ, ["helm"])
    if binary.source is BinarySource.MISSING:
        pytest.skip("helm is not built: run `make binaries`")
    return str(binary.path)


@pytest.fixture
def render(helm: str) -> Render:
    def run(*settings: str) -> list[dict[str, Any]]:
        command = [
            helm,
            "template",
            "headrace",
            str(CHART),
            "--namespace",
            "headrace-system",
            "--kube-version",
            "1.36.3",
        ]
        for setting in settings:
            command += ["--set", setting]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    return run


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


def test_lint_is_clean(helm: str) -> None:
    done = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_crds_are_those_that_are_generated_and_are_kept_on_uninstall(render: Render) -> None:
    rendered = {crd["metadata"]["name"]: crd for crd in of_kind(render(), "CustomResourceDefinition")}
    generated = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    assert len(generated) == 2
    for crd in generated:
        ours = rendered[crd["metadata"]["name"]]
        assert ours["spec"] == crd["spec"]
        assert ours["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert of_kind(render("crds.install=false"), "CustomResourceDefinition") == []


def test_operator_gets_exactly_the_rights_it_names(render: Render) -> None:
    (role,) = of_kind(render(), "ClusterRole")
    assert role["rules"] == yaml.safe_load(OPERATOR_RULES.read_text())["rules"]
    assert not any(
        "*" in rule.get(field, []) for rule in role["rules"] for field in ("verbs", "resources", "apiGroups")
    )


def test_with_namespaces_there_is_no_cluster_wide_right(render: Render) -> None:
    documents = render("watchNamespaces={a,b}")
    assert of_kind(documents, "ClusterRole") == []
    assert of_kind(documents, "ClusterRoleBinding") == []
    assert sorted(role["metadata"]["namespace"] for role in of_kind(documents, "Role")) == ["a", "b"]
    (deployment,) = of_kind(documents, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"].count("--namespace") == 2


def test_operator_runs_restricted(render: Render) -> None:
    (deployment,) = of_kind(render(), "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_admin_secret_is_ours_unless_one_is_named(render: Render) -> None:
    (secret,) = of_kind(render(), "Secret")
    assert len(secret["data"]["token"]) >= 48
    documents = render("adminToken.existingSecret=mine")
    assert of_kind(documents, "Secret") == []
    (deployment,) = of_kind(documents, "Deployment")
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert any(volume.get("secret", {}).get("secretName") == "mine" for volume in volumes)


@pytest.mark.parametrize(
    ("setting", "word"),
    [("prometheus.url=ftp://x", "prometheus"), ("operator.logLevel=LOUD", "logLevel"), ("nope=1", "nope")],
)
def test_wrong_values_are_refused_with_their_name(helm: str, setting: str, word: str) -> None:
    command = [helm, "template", "headrace", str(CHART), *KUBE_VERSION, "--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert word in done.stderr
