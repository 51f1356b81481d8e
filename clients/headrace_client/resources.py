"""The kinds of objects that Headrace uses, and their paths in the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_api import names
from headrace_client.errors import Invalid


@dataclass(frozen=True, slots=True)
class ApiResource:
    """One resource of the API; `group` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str = "", *, subresource: str = "") -> str:
        """URL path of the collection, or of one object; all namespaces if `namespace` is None."""
        if self.namespaced and name and not namespace:
            raise ValueError(f"{self.kind} {name}: a namespace is needed")
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        parts = [part for part in (name, subresource) if part]
        return "/".join([root + scope, self.plural, *parts])


NAMESPACES = ApiResource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = ApiResource("", "v1", "nodes", "Node", namespaced=False)
PODS = ApiResource("", "v1", "pods", "Pod")
SERVICES = ApiResource("", "v1", "services", "Service")
CONFIG_MAPS = ApiResource("", "v1", "configmaps", "ConfigMap")
SECRETS = ApiResource("", "v1", "secrets", "Secret")
SERVICE_ACCOUNTS = ApiResource("", "v1", "serviceaccounts", "ServiceAccount")
PERSISTENT_VOLUME_CLAIMS = ApiResource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
EVENTS = ApiResource("", "v1", "events", "Event")
DEPLOYMENTS = ApiResource("apps", "v1", "deployments", "Deployment")
REPLICA_SETS = ApiResource("apps", "v1", "replicasets", "ReplicaSet")
CONTROLLER_REVISIONS = ApiResource("apps", "v1", "controllerrevisions", "ControllerRevision")
JOBS = ApiResource("batch", "v1", "jobs", "Job")
ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = ApiResource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = ApiResource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
POD_DISRUPTION_BUDGETS = ApiResource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
LEASES = ApiResource("coordination.k8s.io", "v1", "leases", "Lease")
ENDPOINT_SLICES = ApiResource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
RUNTIME_CLASSES = ApiResource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
PRIORITY_CLASSES = ApiResource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
CUSTOM_RESOURCE_DEFINITIONS = ApiResource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
POD_MONITORS = ApiResource("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor")
PROMETHEUS_RULES = ApiResource("monitoring.coreos.com", "v1", "prometheusrules", "PrometheusRule")
HTTP_ROUTES = ApiResource("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute")
INFERENCE_SERVICES = ApiResource(
    names.GROUP, names.VERSION, names.INFERENCE_SERVICE_PLURAL, names.INFERENCE_SERVICE_KIND
)
TUNING_RUNS = ApiResource(names.GROUP, names.VERSION, names.TUNING_RUN_PLURAL, names.TUNING_RUN_KIND)

ALL_RESOURCES: tuple[ApiResource, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, ApiResource)
)

_BY_KIND: Mapping[tuple[str, str], ApiResource] = {(item.api_version, item.kind): item for item in ALL_RESOURCES}


def resource_of(body: Mapping[str, Any]) -> ApiResource:
    """Resource of an object by its apiVersion and kind. Raises `Invalid` for one that is not listed here."""
    key = (str(body.get("apiVersion", "")), str(body.get("kind", "")))
    if key not in _BY_KIND:
        raise Invalid(f"apiVersion {key[0]!r}, kind {key[1]!r}: not a kind that headrace_client.resources lists")
    return _BY_KIND[key]
