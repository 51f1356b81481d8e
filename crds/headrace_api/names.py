"""Every name that two parts must agree on: group, labels, ports, children, field managers, keys.

Only constants and pure functions; nothing here imports the models.
"""

from __future__ import annotations

from typing import Final

GROUP = "headrace.dev"
VERSION = "v1alpha1"
API_VERSION: Final = "headrace.dev/v1alpha1"

INFERENCE_SERVICE_KIND: Final = "InferenceService"
INFERENCE_SERVICE_PLURAL = "inferenceservices"
TUNING_RUN_KIND: Final = "TuningRun"
TUNING_RUN_PLURAL = "tuningruns"

# Labels, on children and pods.
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "headrace"
SERVICE_LABEL = f"{GROUP}/service"
TRACK_LABEL = f"{GROUP}/track"
TUNING_RUN_LABEL = f"{GROUP}/tuning-run"
REVISION_LABEL = f"{GROUP}/revision"

TRACK_STABLE = "stable"
TRACK_TRIAL = "trial"

# Field managers of server-side apply.
OPERATOR_MANAGER = "headrace-operator"
TUNER_MANAGER = "headrace-tuner"

# Ports of an engine pod and of its Service.
HTTP_PORT = 8000
HTTP_PORT_NAME = "http"
ADMIN_PORT = 8001
ADMIN_PORT_NAME = "admin"

# Where an engine pod finds things.
ENGINE_CONTAINER = "engine"
TUNER_CONTAINER = "tuner"
CONFIG_DIR = "/etc/headrace"
CONFIG_KEY = "engine.json"
CONFIG_PATH = f"{CONFIG_DIR}/{CONFIG_KEY}"
POD_IP_ENV = "POD_IP"
ADMIN_TOKEN_ENV = "HEADRACE_ADMIN_TOKEN"  # noqa: S105  (the variable's name)
ADMIN_TOKEN_KEY = "token"  # noqa: S105  (the key in the Secret)

# Keys of the other config maps.
TUNED_KEY = "tuned.json"
STUDY_KEY = "study.json"
TRIAL_KEY_PREFIX = "trial-"
VERIFY_KEY_PREFIX = "verify-"

GPU_RESOURCE = "nvidia.com/gpu"

# Names of our objects end up in label values (63 characters) with suffixes and the hashes of ReplicaSets and pods.
MAX_NAME_LENGTH = 44


def stable_deployment(service: str) -> str:
    """Deployment of the stable track."""
    return service


def service_name(service: str) -> str:
    """Service in front of the stable track."""
    return service


def engine_config_map(service: str) -> str:
    """ConfigMap with the engine's boot config, key `CONFIG_KEY`."""
    return f"{service}-engine"


def admin_secret(service: str) -> str:
    """Secret with the token of the admin port, key `ADMIN_TOKEN_KEY`."""
    return f"{service}-admin"


def tuned_config_map(service: str) -> str:
    """ConfigMap with the proposal in force, key `TUNED_KEY`."""
    return f"{service}-tuned"


def trial_name(run: str) -> str:
    """Deployment, Service and ConfigMap of a tuning run's trial pod."""
    return f"{run}-trial"


def trial_admin_secret(run: str) -> str:
    """Secret with the token of the trial pod's admin port."""
    return f"{run}-trial-admin"


def tuner_name(run: str) -> str:
    """Job, ServiceAccount, Role and RoleBinding of a tuning run."""
    return f"{run}-tuner"


def records_config_map(run: str) -> str:
    """ConfigMap in which the Job keeps its records."""
    return f"{run}-records"


def trial_key(number: int) -> str:
    """Key of one ended trial in the records, e.g. `trial-0007.json`."""
    return f"{TRIAL_KEY_PREFIX}{number:04d}.json"


def trial_number(key: str) -> int | None:
    """Number of the trial that a key of the records belongs to, or None for another key."""
    return _number(key, TRIAL_KEY_PREFIX)


def verification_key(number: int) -> str:
    """Key of one ended window of the verification in the records, e.g. `verify-0003.json`."""
    return f"{VERIFY_KEY_PREFIX}{number:04d}.json"


def verification_number(key: str) -> int | None:
    """Number of the verification window that a key of the records belongs to, or None for another key."""
    return _number(key, VERIFY_KEY_PREFIX)


def _number(key: str, prefix: str) -> int | None:
    digits = key.removeprefix(prefix).removesuffix(".json")
    return int(digits) if key.startswith(prefix) and key.endswith(".json") and digits.isdigit() else None


def service_labels(service: str, track: str = TRACK_STABLE) -> dict[str, str]:
    """Labels of the children of an InferenceService that belong to one track."""
    return {MANAGED_BY_LABEL: MANAGED_BY, SERVICE_LABEL: service, TRACK_LABEL: track}


def trial_labels(service: str, run: str) -> dict[str, str]:
    """Labels of a tuning run's trial pod and of what belongs to it."""
    return {**service_labels(service, TRACK_TRIAL), TUNING_RUN_LABEL: run}


def stable_selector(service: str) -> dict[str, str]:
    """Labels by which the Service, the Deployment and `/scale` find the stable pods."""
    return {SERVICE_LABEL: service, TRACK_LABEL: TRACK_STABLE}


def selector_string(labels: dict[str, str]) -> str:
    """`labels` in the form of the API server's query parameter, sorted by key."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
