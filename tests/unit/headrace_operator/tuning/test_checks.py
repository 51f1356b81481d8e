"""Reasons for a run not to begin: a refusal that names the field, or another run that goes first."""

from typing import Any

import pytest
from operator_resources import service, tuning_run

from headrace_api.v1alpha1.conditions import Reason
from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_api.v1alpha1.tuningrun import TuningRun
from headrace_operator.errors import SpecRefusedError
from headrace_operator.tuning.checks import check, first_in_line

SLO = {"ttft": {"threshold": "1s"}}


def knob(name: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": name, **more}]


CHUNK = knob("prefillChunkSize", min=16.0, max=256.0, step=16.0)

# spec of the run, spec of the service
FINE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing pinned": ({}, {"slo": SLO}),
    "another knob pinned": ({}, {"slo": SLO, "engine": {"config": {"decodeRatio": 0.5}}}),
    "pinned, and overridden": (
        {"overridePinned": True},
        {"slo": SLO, "engine": {"config": {"prefillChunkSize": 64}}},
    ),
    "the ceiling itself": ({"knobs": knob("maxNumSeqs", min=8.0, max=256.0)}, {"slo": SLO}),
    "a choice at the ceiling": ({"knobs": knob("maxNumSeqs", choices=[8, 256])}, {"slo": SLO}),
    "choices without numbers": ({"knobs": knob("schedulingPolicy", choices=["fcfs", "priority"])}, {"slo": SLO}),
    "a ceiling raised by the spec": (
        {"knobs": knob("maxNumSeqs", min=8.0, max=512.0), "overridePinned": True},
        {"slo": SLO, "engine": {"config": {"maxNumSeqs": 512}}},
    ),
    "a GPU has more room": (
        {"knobs": knob("maxNumBatchedTokens", min=512.0, max=8192.0)},
        {"slo": SLO, "resources": {"gpu": {"count": 1}}},
    ),
    "its own SLO": ({"slo": SLO, "apply": "Propose"}, {}),
}


@pytest.mark.parametrize("case", FINE)
def test_a_run_that_can_be_carried_out_is_accepted(case: str) -> None:
    run, subject = FINE[case]
    check(TuningRun.parse(tuning_run(**run)), InferenceService.parse(service(**subject)))


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], Reason, str]] = {
    "pinned": (
        {},
        {"slo": SLO, "engine": {"config": {"prefillChunkSize": 64}}},
        Reason.PINNED_KNOB,
        "prefillChunkSize pinned by spec.engine.config of InferenceService chat",
    ),
    "above the ceiling": (
        {"knobs": knob("maxNumSeqs", min=8.0, max=512.0)},
        {"slo": SLO},
        Reason.INVALID_CONFIG,
        "maxNumSeqs: 512 exceeds 256",
    ),
    "a choice above the ceiling": (
        {"knobs": knob("maxNumBatchedTokens", choices=[512, 4096])},
        {"slo": SLO},
        Reason.INVALID_CONFIG,
        "maxNumBatchedTokens: 4096 exceeds 2048",
    ),
    "no SLO at all": ({}, {}, Reason.NO_SLO, "neither spec.slo here nor"),
    "no SLO of the service to judge by": ({"slo": SLO, "apply": "Auto"}, {}, Reason.NO_SLO, "apply: Auto compares"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_run_that_can_never_be_carried_out_is_refused_with_a_remedy(case: str) -> None:
    run, subject, reason, words = REFUSED[case]
    with pytest.raises(SpecRefusedError, match=words) as error:
        check(TuningRun.parse(tuning_run(**run)), InferenceService.parse(service(**subject)))
    assert error.value.reason is reason


def body(name: str, created: str = "1", phase: str | None = None) -> dict[str, Any]:
    status = {} if phase is None else {"status": {"phase": phase}}
    return {"metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": created}, **status}


ME = body("b", "2")
QUEUES = {
    "alone": (ME, [], ""),
    "only itself": (ME, [ME], ""),
    "an older one": (ME, [body("a", "1"), ME], "a"),
    "a younger one": (ME, [body("c", "3"), ME], ""),
    "as old, earlier by name": (ME, [body("a", "2"), ME], "a"),
    "as old, later by name": (ME, [body("c", "2"), ME], ""),
    "an older one that is over": (ME, [body("a", "1", "Completed"), ME], ""),
    "an older one that failed": (ME, [body("a", "1", "Failed"), ME], ""),
    "a younger one that has begun": (ME, [body("c", "3", "Searching"), ME], "c"),
    "the oldest of two": (ME, [body("a", "1"), body("z", "0"), ME], "z"),
    "itself begun": (body("b", "2", "Searching"), [body("a", "1"), body("b", "2", "Searching")], ""),
}


@pytest.mark.parametrize("case", QUEUES)
def test_one_at_a_time_oldest_first(case: str) -> None:
    mine, others, ahead = QUEUES[case]
    assert first_in_line(mine, others) == ahead
