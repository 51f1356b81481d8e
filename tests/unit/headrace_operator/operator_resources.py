"""Makes small objects, as a person or the kubelet writes them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from headrace_api import names
from headrace_operator.settings import Images

NS = "default"
START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT_TOKEN = "0123456789abcdef0123456789abcdef"
IMAGES = Images(engine="headrace/engine:test", tuner="headrace/tuner:test")


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    """InferenceService as YAML would have it; `spec` overrides top-level fields."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.INFERENCE_SERVICE_KIND,
        "metadata": {"name": name, "namespace": NS, "uid": f"uid-of-{name}"},
        "spec": {"model": {"uri": "file:///models/tiny"}, "replicas": 1, **spec},
    }


def tuning_run(name: str = "tune", **spec: Any) -> dict[str, Any]:
    """TuningRun as YAML would have it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.TUNING_RUN_KIND,
        "metadata": {"name": name, "namespace": NS, "uid": f"uid-of-{name}"},
        "spec": {
            "serviceRef": {"name": "chat"},
            "knobs": [{"name": "prefillChunkSize", "min": 16.0, "max": 256.0, "step": 16.0}],
            "workload": {
                "rate": 4.0,
                "duration": "20s",
                "warmup": "3s",
                "promptTokens": {"short": {"mean": 32}},
                "outputTokens": {"mean": 16},
            },
            "budget": {"trials": 12},
            **spec,
        },
    }


def pod(name: str, labels: Mapping[str, str], *, ip: str = "", ready: bool = False, **status: Any) -> dict[str, Any]:
    """Pod as the kubelet reports it."""
    container = {"name": "engine", "restartCount": 0, "state": {"running": {}}, **status.pop("container", {})}
    conditions = [{"type": "Ready", "status": str(ready)}, *status.pop("conditions", [])]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NS, "uid": f"uid-of-{name}", "labels": dict(labels)},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": conditions,
            "containerStatuses": [container],
            **status,
        },
    }
