"""The models: strict with people, tolerant of the cluster, and unchanged by a round trip."""

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from headrace_api.base import CustomResource, InvalidResource
from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_api.v1alpha1.tuningrun import MAX_TRIAL_LOG, TrialCounts, TuningRun


def service(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": "n", "uid": "u1", "managedFields": [{"manager": "kubectl"}]},
        "spec": {"model": {"uri": "file:///m"}, **spec},
    }


def run(**spec: Any) -> dict[str, Any]:
    base = {
        "serviceRef": {"name": "chat"},
        "knobs": [{"name": "prefillChunkSize", "min": 16, "max": 512, "log": True}],
        "workload": {"rate": 2, "promptTokens": {"short": {"mean": 32}}, "outputTokens": {"mean": 16}},
    }
    return {"apiVersion": "headrace.dev/v1alpha1", "kind": "TuningRun", "metadata": {"name": "t"}, "spec": base | spec}


def problems(model: type[CustomResource], body: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidResource) as refused:
        model.parse(body)
    return [str(problem) for problem in refused.value.problems]


def test_defaults_are_filled_in_when_read() -> None:
    found = InferenceService.parse(service())
    assert (found.key, found.served_name, found.on_gpu) == ("n/chat", "chat", False)
    assert (found.spec.replicas, found.spec.engine.kind, found.spec.engine.config.values()) == (1, "Headrace", {})
    assert found.spec.slo is None
    tuning = TuningRun.parse(run()).spec
    assert (tuning.objective, tuning.apply, tuning.target, tuning.budget.trials) == ("Goodput", "Propose", "Shadow", 20)
    assert (tuning.workload.duration_seconds, tuning.workload.warmup_seconds) == (20, 3)
    assert tuning.budget.seconds is None


def test_knobs_have_the_engines_names_inside() -> None:
    found = InferenceService.parse(
        service(engine={"config": {"maxNumSeqs": 4, "decodeRatio": 0, "preemptible": False}})
    )
    assert found.spec.engine.config.values() == {"max_num_seqs": 4, "decode_ratio": 0, "preemptible": False}


def test_a_gpu_is_requested_by_count() -> None:
    assert InferenceService.parse(service(resources={"gpu": {}})).on_gpu
    assert not InferenceService.parse(service(resources={"gpu": {"count": 0}})).on_gpu


def test_unknown_field_is_refused_from_a_person_and_ignored_from_the_cluster() -> None:
    body = service(engine={"config": {"maxNumSeq": 4}}, slo={"ttft": {"treshold": "1s", "threshold": "1s"}})
    hint = "is not a field of this API version; check the spelling (kubectl explain shows the fields)"
    assert problems(InferenceService, body) == [
        f"spec.engine.config.maxNumSeq: {hint}",
        f"spec.slo.ttft.treshold: {hint}",
    ]
    assert InferenceService.read(body).spec.engine.config.values() == {}


def test_pod_parts_may_hold_anything() -> None:
    affinity = {"podAffinity": {"unheardOf": 1}}
    found = InferenceService.parse(service(template={"affinity": affinity, "tolerations": [{"operator": "Exists"}]}))
    assert found.spec.template.affinity == affinity


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (service(model={}), "spec.model.uri: is required"),
        (service(model={"uri": "/m"}), "spec.model.uri: uri must start with hf://"),
        (service(slo={"ttft": {"threshold": "0s"}}), "spec.slo.ttft.threshold: must be a positive duration"),
        (service(slo={"ttft": {"threshold": "1"}}), "spec.slo.ttft.threshold: '1' is not a duration"),
        (service(slo={"ttft": {"threshold": "1s", "percentile": 100}}), "spec.slo.ttft.percentile: "),
        (service(slo={"attainment": 0}), "spec.slo.attainment: "),
        (service(slo={}), "spec.slo: slo needs at least one of ttft, itl, tpot, e2e"),
        (service(resources={"memory": "lots"}), "spec.resources.memory: 'lots' is not a quantity"),
        (service(resources={"memory": "-1Gi"}), "spec.resources.memory: must not be negative"),
        (service(engine={"config": {"maxNumSeqs": "8"}}), "spec.engine.config.maxNumSeqs: "),
        (service(engine={"config": {"maxNumSeqs": True}}), "spec.engine.config.maxNumSeqs: "),
        (service(engine={"kind": "VLLM"}), "spec.engine.kind: "),
    ],
)
def test_service_problems(body: dict[str, Any], problem: str) -> None:
    found = problems(InferenceService, body)
    assert len(found) == 1
    assert found[0].startswith(problem)


KNOB_PROBLEMS = [
    ({"name": "dtype", "choices": ["auto"]}, "'dtype' is not a hot knob; choose one of maxNumSeqs"),
    ({"name": "maxNumSeqs"}, "set exactly one of min and max, or choices"),
    ({"name": "maxNumSeqs", "min": 1}, "min and max go together"),
    ({"name": "maxNumSeqs", "min": 1, "max": 2, "choices": [1]}, "set exactly one of"),
    ({"name": "maxNumSeqs", "min": 8, "max": 8}, "min must be less than max, got 8 and 8"),
    ({"name": "maxNumSeqs", "min": 1.5, "max": 8}, "whole numbers"),
    ({"name": "maxNumSeqs", "min": 0, "max": 8}, "must be at least 1, got 0"),
    ({"name": "decodeRatio", "min": 0, "max": 1}, "must be below 1"),
    ({"name": "decodeRatio", "min": 0, "max": 0.5, "log": True}, "log needs min above 0"),
    ({"name": "maxNumSeqs", "min": 1, "max": 8, "log": True, "step": 2}, "step and log exclude each other"),
    ({"name": "preemptible", "min": 0, "max": 1}, "for knobs that are numbers"),
    ({"name": "preemptible", "choices": [True, "no"]}, "must be true or false, got 'no'"),
    ({"name": "maxNumSeqs", "choices": [4, 4]}, "choices has a value twice"),
    ({"name": "maxNumSeqs", "choices": [4], "step": 1}, "step and log need min and max"),
    ({"name": "maxNumSeqs", "choices": [4, True]}, "must be a whole number, got True"),
    ({"name": "schedulingPolicy", "choices": ["lifo"]}, "must be one of fcfs, priority"),
]


@pytest.mark.parametrize(("knob", "problem"), KNOB_PROBLEMS)
def test_knob_problems(knob: dict[str, Any], problem: str) -> None:
    found = problems(TuningRun, run(knobs=[knob]))
    assert len(found) == 1
    assert found[0].startswith("spec.knobs[0]")
    assert problem in found[0]


def test_run_problems() -> None:
    twice = [{"name": "maxNumSeqs", "min": 1, "max": 8}] * 2
    assert problems(TuningRun, run(knobs=twice)) == ["spec: knobs names maxNumSeqs twice"]
    assert problems(TuningRun, run(budget={})) == ["spec.budget: budget needs trials or duration, or both"]
    load = run()["spec"]["workload"] | {"promptTokens": {"short": {"mean": 1}, "longShare": 0.1}}
    assert problems(TuningRun, run(workload=load)) == [
        "spec.workload.promptTokens: long and longShare go together: set both, or neither"
    ]


def test_choices_keep_their_types() -> None:
    knobs = [{"name": "preemptible", "choices": [True, False]}, {"name": "decodeRatio", "choices": [0, 0.5]}]
    spec = TuningRun.parse(run(knobs=knobs)).spec
    assert [item.choices for item in spec.knobs] == [[True, False], [0, 0.5]]
    assert isinstance(spec.knobs[0].choices[0], bool)  # type: ignore[index]
    assert spec.knobs[1].knob.name == "decode_ratio"


def test_wrong_kind_is_named() -> None:
    assert problems(TuningRun, service()) == ["kind: must be TuningRun, got 'InferenceService'"]
    assert problems(TuningRun, {}) == [
        "apiVersion: must be headrace.dev/v1alpha1, got None",
        "kind: must be TuningRun, got None",
    ]
    missing = {"apiVersion": "headrace.dev/v1alpha1", "kind": "TuningRun", "metadata": {"name": "t"}}
    assert problems(TuningRun, missing)[0].startswith("spec: ")


def test_set_fields_survive_the_round_trip() -> None:
    body = service(engine={"config": {"maxNumSeqs": 4}}, resources={"cpu": 4}, slo={"itl": {"threshold": "50ms"}})
    assert InferenceService.parse(body).spec.to_kube(only_set=True) == body["spec"]
    again = InferenceService.parse(InferenceService.parse(body).to_kube())
    assert again == InferenceService.parse(body)


def test_slo_for_the_engine_is_in_seconds() -> None:
    slo = {"ttft": {"threshold": "800ms"}, "itl": {"threshold": "50ms", "percentile": 95}, "e2e": {"threshold": "1m"}}
    found = InferenceService.parse(service(slo=slo)).spec.slo
    assert found is not None
    assert found.for_engine() == {
        "ttft_seconds": 0.8,
        "itl_seconds": 0.05,
        "itl_percentile": 95,
        "tpot_seconds": None,
        "e2e_seconds": 60,
    }


def test_owner_reference_needs_a_stored_object() -> None:
    assert InferenceService.parse(service()).owner_reference() == {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": "InferenceService",
        "name": "chat",
        "uid": "u1",
        "controller": True,
        "blockOwnerDeletion": False,
    }
    with pytest.raises(ValueError, match="has no uid yet"):
        TuningRun.parse(run()).owner_reference()


def test_status_round_trip() -> None:
    status = {
        "observedGeneration": 2,
        "phase": "Searching",
        "trials": {"done": 5, "failed": 1, "total": 12, "progress": "5/12"},
        "best": {"knobs": {"decodeRatio": 0.5}, "score": 2.5},
        "trialLog": [{"number": 0, "state": "Void", "knobs": {}, "reason": "restart"}],
        "rollout": {
            "phase": "Kept",
            "startedAt": "2026-01-01T00:00:00.250000Z",
            "message": "",
            "before": {"ttftP95": 0.5, "requests": 10.0},
            "pods": [{"name": "p", "uid": "u", "fromGeneration": 1, "toGeneration": 2}],
        },
    }
    tuning = TuningRun.read(run() | {"status": copy.deepcopy(status)})
    assert {key: value for key, value in tuning.status.to_kube().items() if key in status} == status
    assert tuning.status.rollout is not None
    assert tuning.status.rollout.phase.terminal


def test_trial_counts_show_progress() -> None:
    assert TrialCounts.of(5, failed=1, total=12).progress == "5/12"
    assert TrialCounts.of(5, failed=1, total=None).progress == "5/?"


def test_the_log_of_trials_is_bounded() -> None:
    log = [{"number": number, "state": "Complete", "knobs": {}} for number in range(MAX_TRIAL_LOG + 1)]
    with pytest.raises(InvalidResource, match=r"status\.trialLog"):
        TuningRun.read(run() | {"status": {"trialLog": log}})


def test_models_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        InferenceService.parse(service()).spec.replicas = 2  # type: ignore[misc]
