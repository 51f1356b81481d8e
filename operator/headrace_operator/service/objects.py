"""Builds the objects of an InferenceService, in the order in which they are applied. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace_api import names
from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_operator.cluster.hashing import template_revision
from headrace_operator.cluster.owned import Owned
from headrace_operator.engines.base import WantedConfig
from headrace_operator.engines.registry import DEFINITIONS
from headrace_operator.service.model_sources import model_source
from headrace_operator.service.pod import EngineObjects, engine_template
from headrace_operator.settings import Images


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceObjects:
    """Objects to apply, and the revision that their pods carry."""

    objects: tuple[dict[str, Any], ...]
    template_revision: str


def service_objects(service: InferenceService, config: WantedConfig, *, images: Images, token: str) -> ServiceObjects:
    """Children of `service`. Raises `SpecRefusedError`.

    What a pod reads when it starts comes before the Deployment that starts it.
    """
    name, engine = service.metadata.name, DEFINITIONS[service.spec.engine.kind]
    labels = names.service_labels(name)
    objects = EngineObjects(config_map=names.engine_config_map(name), admin_secret=names.admin_secret(name))
    template = engine_template(service, model_source(service.spec.model), objects, images=images, labels=labels)
    revision = template_revision(template, engine.boot_values(config), token=token)
    template["metadata"]["labels"][names.REVISION_LABEL] = revision
    owned = Owned(service.metadata.namespace or "", labels, service.owner_reference())
    return ServiceObjects(
        objects=(
            owned.secret(objects.admin_secret, token),
            owned.config_map(objects.config_map, engine.config_data(config)),
            owned.service(names.service_name(name), names.stable_selector(name), engine.service_ports()),
            owned.deployment(
                names.stable_deployment(name),
                template,
                selector=names.stable_selector(name),
                replicas=service.spec.replicas,
                strategy=strategy(on_gpu=service.on_gpu),
                startup_seconds=engine.startup_seconds,
            ),
        ),
        template_revision=revision,
    )


def strategy(*, on_gpu: bool) -> dict[str, Any]:
    """How pods are replaced.

    With GPUs, a pod goes before its successor is made: a surge pod needs a GPU that may not exist, and while it is
    unschedulable the old pod, which holds one, is never removed. Without GPUs, the successor comes first.
    """
    surge, unavailable = (0, 1) if on_gpu else (1, 0)
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
