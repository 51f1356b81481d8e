"""The resources that the demo applies, written to build/demo so that a person can read and re-apply them. Pure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from headrace_api import names
from headrace_core.knobs.table import KNOB_BY_NAME
from headrace_local.demo import story as told
from headrace_local.demo.story import Story

NAMESPACE = "demo"
SERVICE = "chat"
RUN = "chat-tuning"

Manifest = dict[str, Any]


def namespace() -> Manifest:
    """The demo's namespace, with the restricted pod security standard enforced on its pods."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def inference_service(story: Story, model: Path) -> Manifest:
    """The service, deliberately configured with a prefill chunk far too large for its inter-token SLO."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.INFERENCE_SERVICE_KIND,
        "metadata": {"name": SERVICE, "namespace": NAMESPACE},
        "spec": {
            "model": {"uri": f"file://{model}", "name": SERVICE},
            "engine": {
                "kind": "Headrace",
                "config": bad_config(),
                "extraArgs": ["--threads", str(story.threads)],
            },
            "replicas": 1,
            "resources": {"gpu": {"count": 1}, "cpu": "500m", "memory": "2Gi"},
            "slo": {
                "ttft": {"percentile": 95, "threshold": duration(story.ttft)},
                "itl": {"percentile": 99, "threshold": duration(story.itl)},
                "attainment": story.attainment,
                "minRequests": told.MIN_REQUESTS,
            },
        },
    }


def bad_config() -> Manifest:
    """A whole prompt in one step: good for throughput, ruinous for every request that is decoding meanwhile."""
    return {KNOB_BY_NAME[name].camel: value for name, value in told.BAD_KNOBS.items()}


def tuning_run(story: Story) -> Manifest:
    """The search over the scheduler's knobs, verified and applied in place."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.TUNING_RUN_KIND,
        "metadata": {"name": RUN, "namespace": NAMESPACE},
        "spec": {
            "serviceRef": {"name": SERVICE},
            "objective": "Goodput",
            "knobs": [
                {"name": "prefillChunkSize", "min": 32, "max": 128, "log": True},
                {"name": "maxNumBatchedTokens", "choices": [128, 256]},
                {"name": "maxNumSeqs", "choices": [8, 16, 32]},
                {"name": "decodeRatio", "choices": [0.0, 0.25, 0.5]},
            ],
            "overridePinned": True,
            "sampler": {"kind": "TPE", "seed": 7},
            "budget": {"trials": story.trials},
            "workload": workload(story),
            "target": "Shadow",
            "verification": {"blocks": story.blocks, "minEffect": 0.02, "confidence": 0.9},
            "apply": "Auto",
        },
    }


def workload(story: Story) -> Manifest:
    """The load of each trial: short chats and a few long prompts, open loop."""
    return {
        "profile": "Synthetic",
        "rate": story.rate,
        "duration": f"{story.window}s",
        "warmup": f"{story.warmup}s",
        "promptTokens": {
            "short": {"mean": told.SHORT_PROMPT},
            "long": {"mean": told.LONG_PROMPT},
            "longShare": told.LONG_SHARE,
        },
        "outputTokens": {"mean": told.OUTPUT_TOKENS},
        "seed": 11,
    }


def duration(seconds: float) -> str:
    """Whole milliseconds, as a Kubernetes duration."""
    return f"{math.ceil(seconds * 1000)}ms"
