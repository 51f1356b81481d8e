"""Pod templates, restricted by the Pod Security Standards: the engine's and the tuning Job's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from headrace_api import names
from headrace_api.quantity import format_quantity, parse_quantity
from headrace_api.v1alpha1.conditions import Reason
from headrace_api.v1alpha1.inferenceservice import InferenceService, ResourcesSpec
from headrace_operator.errors import SpecRefusedError
from headrace_operator.service.model_sources import model_command
from headrace_operator.settings import Images

USER = 65532
GRACE_SECONDS = 60  # running streams may finish
STARTUP_SECONDS = 1800  # a large model loads for many minutes; killing it then starts the load again
TMP = "/tmp"  # noqa: S108  (an emptyDir, the only place that the container can write to)
RESERVED_ENV = (names.POD_IP_ENV, names.ADMIN_TOKEN_ENV)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineObjects:
    """Names of the objects that one engine pod uses."""

    config_map: str
    admin_secret: str


def engine_template(
    service: InferenceService, objects: EngineObjects, *, images: Images, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Pod template of the engine, without the revision label. Raises `SpecRefusedError`."""
    spec = service.spec
    container = {
        "name": names.ENGINE_CONTAINER,
        "image": spec.engine.image or images.engine,
        "imagePullPolicy": images.pull_policy,
        "command": ["python", "-m", "headrace_engine", "serve", *model_command(spec.model), *_flags(service)],
        "args": list(spec.engine.extra_args),
        "env": _env(service, objects.admin_secret),
        "ports": [_port(names.HTTP_PORT_NAME, names.HTTP_PORT), _port(names.ADMIN_PORT_NAME, names.ADMIN_PORT)],
        "resources": _resources(spec.resources),
        "securityContext": container_security(),
        # The engine's last line says why it gave up; the kubelet copies it into the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": _probe("startup", period=2, failures=STARTUP_SECONDS // 2),
        "readinessProbe": _probe("ready", period=2, failures=3),
        "livenessProbe": _probe("live", period=10, failures=6),
        "volumeMounts": [
            {"name": "config", "mountPath": names.CONFIG_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": TMP},
        ],
    }
    pod = {
        **_placement(service),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a namespace with many Services would fill the engine's environment
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": objects.config_map}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    return {"metadata": {"labels": dict(labels)}, "spec": pod}


def _flags(service: InferenceService) -> list[str]:
    return [
        "--host",
        f"$({names.POD_IP_ENV})",
        "--port",
        str(names.HTTP_PORT),
        "--admin-port",
        str(names.ADMIN_PORT),
        "--config",
        names.CONFIG_PATH,
        "--served-model-name",
        service.served_name,
    ]


def _env(service: InferenceService, admin_secret: str) -> list[dict[str, Any]]:
    given = [variable.to_kube() for variable in service.spec.engine.env]
    taken = [variable["name"] for variable in given if variable["name"] in RESERVED_ENV]
    if taken:
        raise SpecRefusedError(
            Reason.INVALID_SPEC, f"spec.engine.env: {', '.join(taken)} is set by the operator; remove it"
        )
    chosen = {variable["name"] for variable in given}
    ours = [
        {"name": names.POD_IP_ENV, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
        {
            "name": names.ADMIN_TOKEN_ENV,
            "valueFrom": {"secretKeyRef": {"name": admin_secret, "key": names.ADMIN_TOKEN_KEY}},
        },
    ]
    return [*ours, *(variable for variable in home_env() if variable["name"] not in chosen), *given]


def home_env() -> list[dict[str, Any]]:
    """A home that can be written to, and a user name where the image's password file knows none for the uid."""
    return [{"name": "HOME", "value": TMP}, {"name": "USER", "value": "headrace"}]


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    # On a CPU a step can keep the interpreter busy for seconds: slow is not dead.
    return {
        "httpGet": {"path": f"/health/{path}", "port": names.HTTP_PORT_NAME, "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _resources(resources: ResourcesSpec) -> dict[str, Any]:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if resources.cpu is not None:
        requests["cpu"] = _cpu(resources.cpu)
    if resources.memory is not None:
        requests["memory"] = limits["memory"] = _memory(resources.memory)
    if resources.gpu is not None and resources.gpu.count > 0:
        requests[resources.gpu.type] = limits[resources.gpu.type] = str(resources.gpu.count)
    return {"requests": requests, "limits": limits} if requests else {}


def _cpu(value: int | str) -> str:
    number = parse_quantity(value)
    # The API server's own form: millicores unless whole. A finer value is rounded up, as it does.
    milli = (number * 1000).to_integral_value(rounding="ROUND_CEILING")
    return format_quantity(number if number == number.to_integral_value() else Decimal(milli) / 1000)


def _memory(value: int | str) -> str:
    text = str(value)
    return format_quantity(parse_quantity(value), binary=True) if text.endswith("i") else text


def _placement(service: InferenceService) -> dict[str, Any]:
    template = service.spec.template
    fields = {
        "nodeSelector": dict(template.node_selector),
        "tolerations": list(template.tolerations),
        "affinity": template.affinity,
        "runtimeClassName": template.runtime_class_name,
        "priorityClassName": template.priority_class_name,
    }
    return {name: value for name, value in fields.items() if value}


def pod_security() -> dict[str, Any]:
    """Security context of a pod: an ordinary user, the runtime's seccomp profile."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """Security context of a container: no privileges to gain, a read-only root."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
