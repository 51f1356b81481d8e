"""Prometheus: its configuration (pure) and its command line.

It finds pods by Kubernetes discovery with its own user, and scrapes the pods managed by headrace on their port `http`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from headrace_local.binaries import Binaries
from headrace_local.layout import Slot
from headrace_local.pki import PROMETHEUS_USER, Pki
from headrace_local.probe import answers
from headrace_local.processes import ProcessSpec

PROMETHEUS = "prometheus"
SCRAPE_INTERVAL = "1s"
RETENTION = "12h"
JOB = "headrace-pods"

_POD_LABEL = "__meta_kubernetes_pod_label_"
#: Target label: source label. Every query of operator and tuner uses these target labels.
_RELABELS = {
    "namespace": "__meta_kubernetes_namespace",
    "pod": "__meta_kubernetes_pod_name",
    "pod_uid": "__meta_kubernetes_pod_uid",
    "service": f"{_POD_LABEL}headrace_dev_service",
    "track": f"{_POD_LABEL}headrace_dev_track",
    "tuning_run": f"{_POD_LABEL}headrace_dev_tuning_run",
}


def configuration(kubeconfig: Path) -> dict[str, Any]:
    """The content of prometheus.yml."""
    return {
        "global": {"scrape_interval": SCRAPE_INTERVAL, "scrape_timeout": SCRAPE_INTERVAL, "evaluation_interval": "5s"},
        "scrape_configs": [
            {
                "job_name": JOB,
                "kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": str(kubeconfig)}],
                "relabel_configs": [
                    _keep(f"{_POD_LABEL}app_kubernetes_io_managed_by", "headrace"),
                    _keep("__meta_kubernetes_pod_container_port_name", "http"),
                    # Succeeded and Failed pods keep their address, which may be another pod's by then.
                    _keep("__meta_kubernetes_pod_phase", "Pending|Running"),
                    *({"source_labels": [source], "target_label": target} for target, source in _RELABELS.items()),
                ],
            }
        ],
    }


def rbac() -> list[dict[str, Any]]:
    """Role of Prometheus' user: it may list and watch pods."""
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    return user_role(PROMETHEUS_USER, rules)


def user_role(user: str, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A ClusterRole and its binding to `user`, both named after it."""
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": user}, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": user},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": user},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        },
    ]


def prometheus_spec(slot: Slot, pki: Pki, binaries: Binaries) -> ProcessSpec:
    """Write prometheus.yml; return how to start Prometheus."""
    slot.prometheus_dir.mkdir(parents=True, exist_ok=True)
    config = slot.prometheus_dir / "prometheus.yml"
    config.write_text(yaml.safe_dump(configuration(pki.prometheus_kubeconfig), sort_keys=False))
    argv = [
        binaries["prometheus"],
        f"--config.file={config}",
        f"--storage.tsdb.path={slot.prometheus_dir / 'data'}",
        f"--storage.tsdb.retention.time={RETENTION}",
        f"--web.listen-address=127.0.0.1:{slot.prometheus_port}",
        "--log.level=warn",
    ]
    return ProcessSpec(PROMETHEUS, argv, ready=lambda: answers(f"{slot.prometheus_url}/-/ready"))


def _keep(source: str, regex: str) -> dict[str, Any]:
    return {"source_labels": [source], "regex": regex, "action": "keep"}
