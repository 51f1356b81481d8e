"""Builds the Job of a TuningRun: the tuner's pod, its RBAC rules, and the ConfigMap of its records. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_api import names
from headrace_api.v1alpha1.tuningrun import TuningRun
from headrace_operator.cluster.owned import Owned
from headrace_operator.service.pod import GRACE_SECONDS, TMP, container_security, home_env, pod_security
from headrace_operator.settings import Images

RETRIES = 4  # an evicted tuner continues from its records


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUrls:
    """Base URLs that the Job is given: of the trial's and the service's engines, and of Prometheus."""

    trial: str
    trial_admin: str
    service: str
    prometheus: str


def job_objects(run: TuningRun, urls: JobUrls, *, images: Images) -> tuple[dict[str, Any], ...]:
    """The Job, its permissions, and the ConfigMap that it writes, made in advance so that it need not create one."""
    name, namespace = names.tuner_name(run.metadata.name), run.metadata.namespace or ""
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.TUNING_RUN_LABEL: run.metadata.name}
    owned = Owned(namespace, labels, run.owner_reference())
    group = "rbac.authorization.k8s.io"
    return (
        owned.make("v1", "ConfigMap", names.records_config_map(run.metadata.name)),
        owned.make("v1", "ServiceAccount", name, automountServiceAccountToken=True),
        owned.make(f"{group}/v1", "Role", name, rules=job_rules(run)),
        owned.make(
            f"{group}/v1",
            "RoleBinding",
            name,
            roleRef={"apiGroup": group, "kind": "Role", "name": name},
            subjects=[{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        ),
        owned.make("batch/v1", "Job", name, spec=_job_spec(run, urls, images, labels)),
    )


def job_rules(run: TuningRun) -> list[dict[str, Any]]:
    """All that the Job may do: read its run and its service, write its records."""
    return [
        _rule(names.GROUP, names.TUNING_RUN_PLURAL, run.metadata.name, ["get"]),
        _rule(names.GROUP, names.INFERENCE_SERVICE_PLURAL, run.spec.service_ref.name, ["get"]),
        _rule("", "configmaps", names.records_config_map(run.metadata.name), ["get", "create", "patch"]),
    ]


def _rule(group: str, resource: str, name: str, verbs: list[str]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": [resource], "resourceNames": [name], "verbs": verbs}


def _job_spec(run: TuningRun, urls: JobUrls, images: Images, labels: Mapping[str, str]) -> dict[str, Any]:
    token = {"name": names.trial_admin_secret(run.metadata.name), "key": names.ADMIN_TOKEN_KEY}
    container = {
        "name": names.TUNER_CONTAINER,
        "image": images.tuner,
        "imagePullPolicy": images.pull_policy,
        "command": ["python", "-m", "headrace_tuner", "run", *_job_flags(run, urls)],
        "env": [{"name": names.ADMIN_TOKEN_ENV, "valueFrom": {"secretKeyRef": token}}, *home_env()],
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": TMP}],
    }
    pod = {
        "serviceAccountName": names.tuner_name(run.metadata.name),
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    return {"backoffLimit": RETRIES, "template": {"metadata": {"labels": dict(labels)}, "spec": pod}}


def _job_flags(run: TuningRun, urls: JobUrls) -> list[str]:
    return [
        "--run",
        run.key,
        "--trial-url",
        urls.trial,
        "--trial-admin-url",
        urls.trial_admin,
        "--service-url",
        urls.service,
        "--prometheus-url",
        urls.prometheus,
    ]
