"""InferenceService to the objects that it stands for, in the order in which they are applied."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_api import names
from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_operator.cluster.hashing import template_revision
from headrace_operator.rollout.revisions import ActiveRevision, tuned_data
from headrace_operator.service.effective_config import EffectiveConfig
from headrace_operator.service.pod import STARTUP_SECONDS, EngineObjects, engine_template
from headrace_operator.settings import Images


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceObjects:
    """Objects to apply, and the revision that their pods carry."""

    objects: tuple[dict[str, Any], ...]
    template_revision: str


def service_objects(
    service: InferenceService, config: EffectiveConfig, *, images: Images, token: str
) -> ServiceObjects:
    """Children of `service`. Raises `SpecRefusedError`.

    What a pod reads at its start comes before the Deployment that starts it.
    """
    name = service.metadata.name
    labels = names.service_labels(name)
    objects = EngineObjects(config_map=names.engine_config_map(name), admin_secret=names.admin_secret(name))
    template = engine_template(service, objects, images=images, labels=labels)
    revision = template_revision(template, config.boot(), token=token)
    template["metadata"]["labels"][names.REVISION_LABEL] = revision
    owned = Owned(service.metadata.namespace or "", labels, service.owner_reference())
    return ServiceObjects(
        objects=(
            owned.secret(objects.admin_secret, token),
            owned.config_map(objects.config_map, config.engine_json()),
            owned.service(names.service_name(name), names.stable_selector(name)),
            owned.deployment(
                names.stable_deployment(name),
                template,
                selector=names.stable_selector(name),
                replicas=service.spec.replicas,
                strategy=strategy(on_gpu=service.on_gpu),
            ),
        ),
        template_revision=revision,
    )


def tuned_config_map(service: InferenceService, record: ActiveRevision | None) -> dict[str, Any]:
    """ConfigMap NAME-tuned."""
    name = service.metadata.name
    owned = Owned(service.metadata.namespace or "", names.service_labels(name), service.owner_reference())
    return owned.make("v1", "ConfigMap", names.tuned_config_map(name), data=tuned_data(record))


def strategy(*, on_gpu: bool) -> dict[str, Any]:
    """How pods are replaced.

    With GPUs one pod goes before its successor comes: a surge pod needs a GPU that may not exist, and while it is
    unschedulable the old pod, which holds one, is never removed. Without GPUs the successor comes first.
    """
    surge, unavailable = (0, 1) if on_gpu else (1, 0)
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


@dataclass(frozen=True, slots=True)
class Owned:
    """Makes objects of one owner with the same labels."""

    namespace: str
    labels: Mapping[str, str]
    owner: Mapping[str, Any]

    def make(self, api_version: str, kind: str, name: str, **content: Any) -> dict[str, Any]:
        """Any object."""
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "labels": dict(self.labels),
            "ownerReferences": [dict(self.owner)],
        }
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}

    def secret(self, name: str, token: str) -> dict[str, Any]:
        """Secret with an admin token."""
        data = {names.ADMIN_TOKEN_KEY: base64.b64encode(token.encode()).decode()}
        return self.make("v1", "Secret", name, type="Opaque", data=data)

    def config_map(self, name: str, engine_json: Mapping[str, object]) -> dict[str, Any]:
        """ConfigMap with engine.json."""
        text = json.dumps(engine_json, indent=1, sort_keys=True) + "\n"
        return self.make("v1", "ConfigMap", name, data={names.CONFIG_KEY: text})

    def service(self, name: str, selector: Mapping[str, str]) -> dict[str, Any]:
        """Service in front of engine pods."""
        ports = [
            {"name": port, "port": number, "targetPort": port, "protocol": "TCP"}
            for port, number in ((names.HTTP_PORT_NAME, names.HTTP_PORT), (names.ADMIN_PORT_NAME, names.ADMIN_PORT))
        ]
        return self.make("v1", "Service", name, spec={"selector": dict(selector), "ports": ports})

    def deployment(
        self,
        name: str,
        template: Mapping[str, Any],
        *,
        selector: Mapping[str, str],
        replicas: int,
        strategy: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Deployment of engine pods. The selector is immutable, hence only identity and no revision is in it."""
        spec = {
            "replicas": replicas,
            "selector": {"matchLabels": dict(selector)},
            "strategy": dict(strategy),
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": STARTUP_SECONDS + 120,
            "template": dict(template),
        }
        return self.make("apps/v1", "Deployment", name, spec=spec)
