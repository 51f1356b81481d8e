"""The finding that pods and probes lead to: why the engines are not ready."""

from dataclasses import replace
from typing import Any

import pytest

from headrace_api.engine_exit import EngineExit, ExitKind
from headrace_api.v1alpha1.conditions import Reason
from headrace_operator.cluster.observe import DeploymentView, LastExit, PodView
from headrace_operator.engines.base import EngineProbe, RunningEngine
from headrace_operator.engines.headrace import HeadraceEngine
from headrace_operator.service.readiness import LAST_WORDS, Fleet, devices, engines_ready

READY = PodView(name="a", uid="a", ip="1.2.3.4", revision="new", ready=True, running=True, phase="Running")
PENDING = PodView(name="b", uid="b", revision="new")
STATE = RunningEngine(
    generation=1, revision="c", config={}, ceilings={}, slo=None, device="cpu", pretend_gpu=False, started_at=0.0
)
DEPLOYMENT = DeploymentView(name="d", revision="new", current=True, replicas=1)
IN_FORCE = EngineProbe(state=STATE, in_force=True)


def fleet(*pods: PodView, probed: dict[str, EngineProbe] | None = None, **more: Any) -> Fleet:
    known = {"replicas": 1, "revision": "new", "engine": HeadraceEngine()}
    return Fleet(pods=pods, probed=probed or {}, **{**known, **more})


def crashed(message: str = "", *, code: int = 2, reason: str = "Error", **more: Any) -> PodView:
    return replace(PENDING, exited=LastExit(code=code, reason=reason, message=message), **more)


MISSING = EngineExit(ExitKind.MODEL_NOT_FOUND, "model /x does not exist").to_text()
SETTINGS = EngineExit(ExitKind.SETTINGS, "--port 0 is odd").to_text()

SITUATIONS = {
    "no replicas wanted": (fleet(replicas=0), Reason.SCALED_TO_ZERO, "replicas is 0"),
    "no replicas wanted, some still there": (fleet(READY, replicas=0), Reason.SCALED_TO_ZERO, "replicas is 0"),
    "no pod yet": (fleet(), Reason.PODS_PENDING, "0 of 1 pods ready at revision new"),
    "no Deployment yet": (fleet(revision=""), Reason.PODS_PENDING, "0 of 1 pods ready"),
    "pending": (fleet(PENDING), Reason.PODS_PENDING, "0 of 1 pods ready"),
    "quota": (
        fleet(deployment=replace(DEPLOYMENT, failure="exceeded quota")),
        Reason.PODS_PENDING,
        "no pod can be made: exceeded quota",
    ),
    "no node": (fleet(replace(PENDING, unschedulable="0/1 nodes")), Reason.UNSCHEDULABLE, "pod b: 0/1 nodes"),
    "no image": (
        fleet(replace(PENDING, waiting="ErrImagePull", waiting_message="first\nnot found")),
        Reason.IMAGE_PULL_FAILED,
        "ErrImagePull: not found",
    ),
    "no Secret": (
        fleet(replace(PENDING, waiting="CreateContainerConfigError", waiting_message="secret not found")),
        Reason.PODS_PENDING,
        "CreateContainerConfigError: secret not found",
    ),
    "loading": (fleet(replace(PENDING, running=True)), Reason.ENGINE_STARTING, "loading the model"),
    "no model": (fleet(crashed(MISSING)), Reason.MODEL_NOT_FOUND, "model /x does not exist; correct spec.model.uri"),
    "no model, restarting": (fleet(crashed(MISSING, running=True)), Reason.MODEL_NOT_FOUND, "/x"),
    "wrong flag": (fleet(crashed(SETTINGS, restarts=3)), Reason.CRASH_LOOPING, "code 2 (3 restarts): --port 0 is odd"),
    "only words": (
        fleet(crashed("loading\nmodel /x does not exist")),
        Reason.CRASH_LOOPING,
        "exited with code 2 (0 restarts): model /x does not exist",
    ),
    "no words": (fleet(crashed(code=139)), Reason.CRASH_LOOPING, "see kubectl logs b --previous"),
    "out of memory": (
        fleet(crashed(MISSING, code=137, reason="OOMKilled")),
        Reason.OUT_OF_MEMORY,
        "exceeded its memory limit",
    ),
    "exited once with code 0": (fleet(crashed(code=0, running=True)), Reason.ENGINE_STARTING, "loading"),
    "keeps exiting with code 0": (
        fleet(crashed(code=0, waiting="CrashLoopBackOff")),
        Reason.CRASH_LOOPING,
        "exited with code 0",
    ),
    "old pods serve": (
        fleet(replace(READY, revision="old")),
        Reason.PODS_PENDING,
        "0 of 1 pods ready at revision new; 1 of an older revision still there",
    ),
    "an old pod's crash does not count against the new revision": (
        fleet(crashed(MISSING, revision="old"), PENDING),
        Reason.PODS_PENDING,
        "0 of 1",
    ),
    "one of two": (fleet(READY, PENDING, replicas=2), Reason.PODS_PENDING, "1 of 2 pods ready"),
    "evicted": (fleet(replace(READY, phase="Failed")), Reason.PODS_PENDING, "0 of 1"),
    "going": (fleet(replace(READY, terminating=True)), Reason.PODS_PENDING, "0 of 1"),
    "not probed": (fleet(READY), Reason.CONFIG_PENDING, "not in force yet on a"),
    "config refused": (
        fleet(READY, probed={"a": EngineProbe(refused="no such knob")}),
        Reason.CONFIG_REFUSED,
        "pod a: no such knob",
    ),
    "silent": (
        fleet(READY, probed={"a": EngineProbe(unreachable="no answer")}),
        Reason.ENGINE_UNREACHABLE,
        "pod a: no answer",
    ),
    "refused by one of two": (
        fleet(
            READY,
            replace(READY, name="c", uid="c"),
            replicas=2,
            probed={"a": EngineProbe(unreachable="x"), "c": EngineProbe(refused="y")},
        ),
        Reason.CONFIG_REFUSED,
        "pod c: y",
    ),
    "silent, config seen in force before": (
        fleet(READY, probed={"a": EngineProbe(in_force=True, unreachable="no answer")}),
        Reason.ENGINES_READY,
        "1 of 1",
    ),
    "ready": (fleet(READY, probed={"a": IN_FORCE}), Reason.ENGINES_READY, "1 of 1 engines ready at revision new"),
    "more than wanted": (
        fleet(READY, replace(READY, name="c", uid="c"), probed={"a": IN_FORCE, "c": IN_FORCE}),
        Reason.ENGINES_READY,
        "2 of 1",
    ),
}


@pytest.mark.parametrize("case", SITUATIONS)
def test_each_situation_has_its_reason_and_message(case: str) -> None:
    subject, reason, words = SITUATIONS[case]
    finding = engines_ready(subject)
    assert finding.reason is reason
    assert words in finding.message
    assert finding.holds is (reason is Reason.ENGINES_READY)


def test_a_long_last_message_is_cut() -> None:
    finding = engines_ready(fleet(crashed("x" * 2000)))
    assert len(finding.message) < LAST_WORDS + 200
    assert finding.message.endswith("…")


CUDA = replace(STATE, device="cuda")


@pytest.mark.parametrize(
    ("state", "on_gpu", "said"),
    [
        (None, False, ""),
        (STATE, False, "on cpu"),
        (STATE, True, "on cpu although a GPU was asked for"),
        (CUDA, True, "on cuda"),
        (replace(STATE, pretend_gpu=True), True, "1 of 1 on a pretend GPU: the CPU does the work"),
    ],
)
def test_the_message_says_plainly_what_the_engines_run_on(state: RunningEngine | None, on_gpu: bool, said: str) -> None:
    probed = {"a": EngineProbe(state=state, in_force=True)}
    assert devices(fleet(READY, probed=probed), on_gpu=on_gpu) == said


def test_different_devices_are_all_named() -> None:
    pods = (READY, replace(READY, name="c", uid="c"))
    probed = {"a": EngineProbe(state=CUDA), "c": EngineProbe(state=STATE)}
    assert devices(fleet(*pods, probed=probed), on_gpu=True) == "on cpu, cuda although a GPU was asked for"
