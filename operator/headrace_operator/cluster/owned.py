"""Makes the objects of one owner, with the same labels. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_api import names

DEADLINE_MARGIN = 120  # seconds for scheduling and pulling, on top of the engine's own start


@dataclass(frozen=True, slots=True)
class Owned:
    """Builder of one owner's objects; `owner` is its ownerReference."""

    namespace: str
    labels: Mapping[str, str]
    owner: Mapping[str, Any]

    def make(self, api_version: str, kind: str, name: str, **content: Any) -> dict[str, Any]:
        """An object of any kind; `content` holds its fields besides the metadata."""
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

    def config_map(self, name: str, data: Mapping[str, str]) -> dict[str, Any]:
        """ConfigMap."""
        return self.make("v1", "ConfigMap", name, data=dict(data))

    def service(self, name: str, selector: Mapping[str, str], ports: list[dict[str, Any]]) -> dict[str, Any]:
        """Service in front of engine pods."""
        return self.make("v1", "Service", name, spec={"selector": dict(selector), "ports": ports})

    def deployment(
        self,
        name: str,
        template: Mapping[str, Any],
        *,
        selector: Mapping[str, str],
        replicas: int,
        strategy: Mapping[str, Any],
        startup_seconds: int,
    ) -> dict[str, Any]:
        """Deployment of engine pods. The selector is immutable, so it holds only identity labels, no revision."""
        spec = {
            "replicas": replicas,
            "selector": {"matchLabels": dict(selector)},
            "strategy": dict(strategy),
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": startup_seconds + DEADLINE_MARGIN,
            "template": dict(template),
        }
        return self.make("apps/v1", "Deployment", name, spec=spec)
