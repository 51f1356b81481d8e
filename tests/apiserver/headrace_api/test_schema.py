"""The CRDs on the real API server: what it refuses (and how it says so), takes, defaults and prunes."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from kube_patches import apply_status, merge_patch

from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_api.v1alpha1.knobs import EngineKnobs
from headrace_api.v1alpha1.tuningrun import TuningRun
from headrace_client import resources as res
from headrace_client.errors import Invalid
from headrace_client.kube import Kube
from headrace_core.knobs.resolve import ConfigError, resolve


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "file:///models/m"}, **spec},
    }


def run(name: str = "tune", **spec: Any) -> dict[str, Any]:
    base = {
        "serviceRef": {"name": "chat"},
        "knobs": [{"name": "prefillChunkSize", "min": 16, "max": 512, "log": True}],
        "workload": {"rate": 2, "promptTokens": {"short": {"mean": 32}}, "outputTokens": {"mean": 16}},
    }
    return {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": "TuningRun",
        "metadata": {"name": name},
        "spec": {**base, **spec},
    }


def in_namespace(body: dict[str, Any], namespace: str) -> dict[str, Any]:
    body = copy.deepcopy(body)
    body["metadata"]["namespace"] = namespace
    return body


def config(**knobs: Any) -> dict[str, Any]:
    return service(engine={"config": knobs})


def slo(**parts: Any) -> dict[str, Any]:
    return service(slo={"ttft": {"threshold": "1s"}, **parts})


def searched(**knob: Any) -> dict[str, Any]:
    return run(knobs=[knob])


# (object, field that the message names, words of the rule)
REFUSED = [
    (
        config(prefillChunkSize=512, maxNumBatchedTokens=256, maxNumSeqs=8),
        "config.prefillChunkSize",
        "must not exceed maxNumBatchedTokens",
    ),
    (config(maxNumBatchedTokens=8, maxNumSeqs=16), "config.maxNumBatchedTokens", "at least maxNumSeqs"),
    (config(decodeRatio=1.0), "config.decodeRatio", "less than 1"),
    (config(maxNumSeqs=0), "config.maxNumSeqs", "greater than or equal to 1"),
    (config(maxNumSeqs=True), "config.maxNumSeqs", "must be of type integer"),
    (config(schedulingPolicy="lifo"), "config.schedulingPolicy", 'supported values: "fcfs", "priority"'),
    (service(model={"uri": "http://x/y"}), "spec.model.uri", "must start with hf://"),
    (service(model={"uri": "hf://"}), "spec.model.uri", "name something after it"),
    (service(model={}), "spec.model.uri", "Required value"),
    (service(engine={"kind": "VLLM"}), "spec.engine.kind", "Headrace"),
    (service(replicas=-1), "spec.replicas", "greater than or equal to 0"),
    (service(resources={"memory": "lots"}), "spec.resources.memory", "must be a quantity"),
    (service(resources={"cpu": -1}), "spec.resources.cpu", "must be a quantity"),
    (service(engine={"env": [{"name": "A"}, {"name": "A"}]}), "spec.engine.env[1]", "Duplicate value"),
    (service(slo={}), "spec.slo", "at least one of ttft, itl, tpot, e2e"),
    (slo(ttft={"threshold": "0s"}), "spec.slo.ttft.threshold", "positive duration"),
    (slo(ttft={"threshold": "soon"}), "spec.slo.ttft.threshold", "positive duration"),
    (slo(ttft={"threshold": "-1s"}), "spec.slo.ttft.threshold", "positive duration"),
    (slo(ttft={"threshold": "1s", "percentile": 100}), "spec.slo.ttft.percentile", "less than 100"),
    (slo(ttft={"threshold": "1s", "percentile": 0}), "spec.slo.ttft.percentile", "greater than 0"),
    (slo(attainment=0), "spec.slo.attainment", "greater than 0"),
    (slo(attainment=1.01), "spec.slo.attainment", "less than or equal to 1"),
    (slo(window="0ms"), "spec.slo.window", "positive duration"),
    (service(name="Chat.v1"), "metadata.name", "lower case"),
    (service(name="1chat"), "metadata.name", "start with a letter"),
    (service(name="c" * 60), "metadata.name", "at most 44"),
    (searched(name="dtype", choices=["auto"]), "spec.knobs[0].name", "supported values"),
    (searched(name="prefillChunkSize"), "spec.knobs[0]", "set exactly one of min and max, or choices"),
    (
        searched(name="prefillChunkSize", min=1, max=2, choices=[1]),
        "spec.knobs[0]",
        "set exactly one of min and max, or choices",
    ),
    (searched(name="prefillChunkSize", min=1), "spec.knobs[0]", "min and max go together"),
    (searched(name="prefillChunkSize", min=8, max=8), "spec.knobs[0]", "min must be less than max"),
    (searched(name="preemptible", min=0, max=1), "spec.knobs[0]", "for knobs that are numbers"),
    (searched(name="prefillChunkSize", min=0, max=8), "spec.knobs[0]", "min is less than this knob allows"),
    (searched(name="decodeRatio", min=0, max=1), "spec.knobs[0]", "decodeRatio must stay below 1"),
    (searched(name="maxNumSeqs", min=1, max=10**6), "spec.knobs[0]", "max is more than this knob allows"),
    (searched(name="maxNumSeqs", min=1.5, max=8), "spec.knobs[0]", "whole numbers"),
    (searched(name="decodeRatio", min=0, max=0.5, log=True), "spec.knobs[0]", "log needs min above 0"),
    (searched(name="maxNumSeqs", min=1, max=8, log=True, step=1), "spec.knobs[0]", "step and log exclude each other"),
    (searched(name="maxNumSeqs", step=1, choices=[1]), "spec.knobs[0]", "step needs min and max"),
    (run(knobs=[]), "spec.knobs", "at least 1"),
    (run(knobs=[{"name": "maxNumSeqs", "min": 1, "max": 8}] * 2), "spec.knobs[1]", "Duplicate value"),
    (run(budget={}), "spec.budget", "budget needs trials or duration"),
    (run(budget={"trials": 0}), "spec.budget.trials", "greater than or equal to 1"),
    (run(budget={"duration": "0s"}), "spec.budget.duration", "positive duration"),
    (run(target="InPlace"), "spec.target", "Shadow"),
    (run(verification={"confidence": 1}), "spec.verification.confidence", "less than 1"),
    (
        run(
            workload={"rate": 1, "promptTokens": {"short": {"mean": 8}, "longShare": 0.5}, "outputTokens": {"mean": 8}}
        ),
        "spec.workload.promptTokens",
        "long and longShare go together",
    ),
    (run(serviceRef={}), "spec.serviceRef.name", "Required value"),
]


@pytest.mark.parametrize(("body", "field", "rule"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
async def test_refusal_names_field_and_rule(
    kube: Kube, namespace: str, body: dict[str, Any], field: str, rule: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await kube.create(in_namespace(body, namespace))
    assert field in refused.value.message
    assert rule in refused.value.message
    assert refused.value.status == 422


@pytest.mark.parametrize("body", [config(maxNumSeqs=True), service(engine={"env": [{"name": "A"}] * 2})])
async def test_apply_of_a_wrong_type_or_double_key_is_invalid_at_once(
    kube: Kube, namespace: str, body: dict[str, Any]
) -> None:
    with pytest.raises(Invalid, match=r"spec\.engine\.(config\.maxNumSeqs: expected numeric|env: duplicate)"):
        await kube.apply(in_namespace(body, namespace), field_manager="tests")


FULL_SERVICE = service(
    model={"uri": "hf://owner/name", "name": "m", "revision": "main", "tokenizer": "hf://owner/name"},
    engine={
        "kind": "Headrace",
        "image": "registry/engine:1",
        "config": {"maxNumSeqs": 8, "maxNumBatchedTokens": 256, "prefillChunkSize": 64, "decodeRatio": 0.25, "seed": 3},
        "extraArgs": ["--x"],
        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    },
    replicas=2,
    resources={"gpu": {"count": 1, "type": "nvidia.com/gpu"}, "cpu": 4, "memory": "16Gi"},
    template={"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}], "affinity": {"podAffinity": {}}},
    slo={
        "ttft": {"threshold": "800ms", "percentile": 95},
        "itl": {"threshold": "1m30s", "percentile": 99.9},
        "attainment": 0.95,
        "minRequests": 10,
        "window": "5m",
    },
)
FULL_RUN = run(
    objective="Throughput",
    slo={"e2e": {"threshold": "10s"}},
    knobs=[
        {"name": "prefillChunkSize", "min": 16, "max": 512, "log": True},
        {"name": "decodeRatio", "min": 0, "max": 0.9, "step": 0.1},
        {"name": "preemptible", "choices": [True, False]},
        {"name": "schedulingPolicy", "choices": ["fcfs"]},
        {"name": "maxNumSeqs", "choices": [4, 8]},
    ],
    overridePinned=True,
    sampler={"kind": "GP", "seed": 7},
    budget={"trials": 12, "duration": "30m"},
    verification={"blocks": 4, "minEffect": 0.05, "confidence": 0.95},
    apply="Auto",
    target="Shadow",
)


@pytest.mark.parametrize(
    "body", [service(), run(), FULL_SERVICE, FULL_RUN], ids=["service", "run", "full service", "full run"]
)
async def test_valid_object_comes_back_as_it_was(kube: Kube, namespace: str, body: dict[str, Any]) -> None:
    stored = await kube.apply(in_namespace(body, namespace), field_manager="tests")
    spec = {name: value for name, value in stored["spec"].items() if name in body["spec"]}
    assert spec == body["spec"]
    model = InferenceService if body["kind"] == "InferenceService" else TuningRun
    assert model.parse(stored).spec.to_kube(only_set=True) == stored["spec"]


async def test_only_replicas_are_defaulted(kube: Kube, namespace: str) -> None:
    stored = await kube.create(in_namespace(service(), namespace))
    assert stored["spec"] == {"model": {"uri": "file:///models/m"}, "replicas": 1}
    assert (await kube.create(in_namespace(run(), namespace)))["spec"] == run()["spec"]


async def test_unknown_fields_are_pruned_but_pod_parts_are_kept(kube: Kube, namespace: str) -> None:
    body = service(slo={"ttft": {"threshold": "1s", "extra": 1}}, template={"affinity": {"new": {"x": 1}}})
    stored = await kube.create(in_namespace(body, namespace))
    assert stored["spec"]["slo"] == {"ttft": {"threshold": "1s"}}
    assert stored["spec"]["template"]["affinity"] == {"new": {"x": 1}}


async def test_chunk_may_exceed_the_budget_where_chunking_is_off(kube: Kube, namespace: str) -> None:
    knobs = {"prefillChunkSize": 512, "maxNumBatchedTokens": 256, "maxNumSeqs": 8, "enableChunkedPrefill": False}
    await kube.create(in_namespace(config(**knobs), namespace))


IMMUTABLE = [
    {"serviceRef": {"name": "other"}},
    {"objective": "Throughput"},
    {"slo": {"e2e": {"threshold": "1s"}}},
    {"knobs": [{"name": "maxNumSeqs", "min": 1, "max": 8}]},
    {"sampler": {"seed": 1}},
    {"target": "Shadow"},
    {"verification": {"blocks": 2}},
    {"workload": {"rate": 3}},
]


@pytest.mark.parametrize("change", IMMUTABLE, ids=lambda change: next(iter(change)))
async def test_a_run_keeps_what_its_trials_depend_on(kube: Kube, namespace: str, change: dict[str, Any]) -> None:
    await kube.create(in_namespace(run(), namespace))
    with pytest.raises(Invalid, match=f"spec.{next(iter(change))}.*is immutable"):
        await merge_patch(kube, res.TUNING_RUNS, "tune", namespace, patch={"spec": change})


async def test_a_run_may_be_given_more_budget_and_be_applied(kube: Kube, namespace: str) -> None:
    await kube.create(in_namespace(run(), namespace))
    patch = {"spec": {"budget": {"trials": 50}, "apply": "Auto", "overridePinned": True}}
    assert (await merge_patch(kube, res.TUNING_RUNS, "tune", namespace, patch=patch))["spec"]["apply"] == "Auto"


async def test_scale_reads_and_writes_replicas_with_the_selector(kube: Kube, namespace: str) -> None:
    await kube.create(in_namespace(service(), namespace))
    status = in_namespace({**service(), "status": {"replicas": 1, "selector": "headrace.dev/service=chat"}}, namespace)
    del status["spec"]
    await apply_status(kube, status, field_manager="tests")
    scale = await kube.get(res.INFERENCE_SERVICES, "chat", namespace, subresource="scale")
    assert scale is not None
    assert scale["spec"] == {"replicas": 1}
    assert scale["status"] == {"replicas": 1, "selector": "headrace.dev/service=chat"}
    patch = {"spec": {"replicas": 3}}
    await merge_patch(kube, res.INFERENCE_SERVICES, "chat", namespace, patch=patch, subresource="scale")
    stored = await kube.get(res.INFERENCE_SERVICES, "chat", namespace)
    assert stored is not None
    assert stored["spec"]["replicas"] == 3


async def table(kube: Kube, path: str) -> dict[str, Any]:
    text = await kube.raw("GET", path, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    body = json.loads(text)
    columns = [column["name"] for column in body["columnDefinitions"]]
    return dict(zip(columns, body["rows"][0]["cells"], strict=True))


async def test_columns_of_a_service(kube: Kube, namespace: str) -> None:
    await kube.create(in_namespace(service(), namespace))
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Serving",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {"conditions": [ready], "readyReplicas": 1, "revision": "abc123"}
    body = {"apiVersion": "headrace.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "chat"}}
    await apply_status(kube, in_namespace({**body, "status": status}, namespace), field_manager="tests")
    row = await table(kube, res.INFERENCE_SERVICES.path(namespace))
    shown = {name: row[name] for name in ("Name", "Ready", "Reason", "Replicas", "Revision")}
    assert shown == {"Name": "chat", "Ready": "True", "Reason": "Serving", "Replicas": 1, "Revision": "abc123"}
    assert row["Age"]


async def test_columns_of_a_run(kube: Kube, namespace: str) -> None:
    await kube.create(in_namespace(run(), namespace))
    body = {"apiVersion": "headrace.dev/v1alpha1", "kind": "TuningRun", "metadata": {"name": "tune"}}
    status = {
        "phase": "Searching",
        "trials": {"done": 5, "failed": 1, "total": 12, "progress": "5/12"},
        "best": {"knobs": {"maxNumSeqs": 8}, "score": 1.25, "attainment": 0.9},
        "verdict": "Improved",
    }
    await apply_status(kube, in_namespace({**body, "status": status}, namespace), field_manager="tests")
    row = await table(kube, res.TUNING_RUNS.path(namespace))
    shown = {name: row[name] for name in ("Phase", "Trials", "Best", "Verdict")}
    assert shown == {"Phase": "Searching", "Trials": "5/12", "Best": 1.25, "Verdict": "Improved"}


async def test_short_names_and_category_are_served(kube: Kube) -> None:
    listed = json.loads(await kube.raw("GET", "/apis/headrace.dev/v1alpha1"))["resources"]
    short = {
        item["name"]: (item.get("shortNames"), item.get("categories")) for item in listed if "/" not in item["name"]
    }
    assert short == {
        "inferenceservices": (["infsvc"], ["headrace"]),
        "tuningruns": (["tunerun"], ["headrace"]),
    }
    assert {item["name"] for item in listed if "/" in item["name"]} == {
        "inferenceservices/status",
        "inferenceservices/scale",
        "tuningruns/status",
    }


def test_crds_are_small(request: pytest.FixtureRequest) -> None:
    for path in (Path(request.config.rootpath) / "crds").glob("*.yaml"):
        assert path.stat().st_size < 200 * 1024


CONFIGS = [
    {"max_num_batched_tokens": budget, "max_num_seqs": seqs, **more}
    for budget in (8, 256)
    for seqs in (4, 16)
    for more in (
        {},
        {"prefill_chunk_size": 8},
        {"prefill_chunk_size": 64},
        {"prefill_chunk_size": 64, "enable_chunked_prefill": False},
        {"prefill_chunk_size": 512, "decode_ratio": 0.5},
    )
]


async def test_the_crd_and_the_knob_table_agree(kube: Kube, namespace: str) -> None:
    for number, knobs in enumerate(CONFIGS):
        body = config(**EngineKnobs.of(knobs).to_kube())
        body["metadata"]["name"] = f"c{number}"
        try:
            resolve(knobs)
        except ConfigError:
            with pytest.raises(Invalid):
                await kube.create(in_namespace(body, namespace))
        else:
            await kube.create(in_namespace(body, namespace))
