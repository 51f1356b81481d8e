"""Parts of pod templates that meet the restricted Pod Security Standard: the engine's and the tuning Job's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from headrace_api import names
from headrace_api.quantity import format_quantity, parse_quantity
from headrace_api.v1alpha1.conditions import Reason
from headrace_api.v1alpha1.inferenceservice import InferenceService, ResourcesSpec
from headrace_operator.engines.base import EngineLaunch
from headrace_operator.engines.registry import DEFINITIONS
from headrace_operator.errors import SpecRefusedError
from headrace_operator.service.model_sources import ModelSource
from headrace_operator.settings import Images

USER = 65532
GRACE_SECONDS = 60  # running streams may finish
TMP = "/tmp"  # noqa: S108  (an emptyDir, the only place that the container can write to)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineObjects:
    """Names of the objects that one engine pod uses."""

    config_map: str
    admin_secret: str


def engine_template(
    service: InferenceService,
    source: ModelSource,
    objects: EngineObjects,
    *,
    images: Images,
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """Pod template of the engine with a model, without the revision label. Raises `SpecRefusedError`."""
    spec, engine = service.spec, DEFINITIONS[service.spec.engine.kind]
    ours = engine.container(
        EngineLaunch(
            model=source.argument,
            model_revision=source.revision,
            served_name=service.served_name,
            config_map=objects.config_map,
            admin_secret=objects.admin_secret,
        )
    )
    container = {
        "name": names.ENGINE_CONTAINER,
        "image": spec.engine.image or engine.image(images),
        "imagePullPolicy": images.pull_policy,
        "command": ours.command,
        "args": list(spec.engine.extra_args),
        "env": _env(service, [*ours.env, *source.env]),
        "ports": ours.ports,
        "resources": _resources(spec.resources),
        "securityContext": container_security(),
        # The kubelet copies the engine's exit message, or else its last log lines, into the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **ours.probes,
        "volumeMounts": [*ours.mounts, {"name": "tmp", "mountPath": TMP}, *source.mounts],
    }
    pod = {
        **_placement(service),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a namespace with many Services would fill the engine's environment
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": pod_security(),
        **({"initContainers": list(source.init_containers)} if source.init_containers else {}),
        "containers": [container],
        "volumes": [*ours.volumes, {"name": "tmp", "emptyDir": {}}, *source.volumes],
    }
    return {"metadata": {"labels": dict(labels)}, "spec": pod}


def _env(service: InferenceService, ours: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    given = [variable.to_kube() for variable in service.spec.engine.env]
    reserved = {variable["name"] for variable in ours}
    taken = [variable["name"] for variable in given if variable["name"] in reserved]
    if taken:
        raise SpecRefusedError(
            Reason.INVALID_SPEC, f"spec.engine.env: {', '.join(taken)} is set by the operator; remove it"
        )
    chosen = {variable["name"] for variable in given}
    return [*ours, *(variable for variable in home_env() if variable["name"] not in chosen), *given]


def home_env() -> list[dict[str, Any]]:
    """A home that can be written to, and a user name in case the image's password file has none for the uid."""
    return [{"name": "HOME", "value": TMP}, {"name": "USER", "value": "headrace"}]


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
    # As the API server writes it: millicores unless whole. It rounds a finer value up, so this does too.
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
