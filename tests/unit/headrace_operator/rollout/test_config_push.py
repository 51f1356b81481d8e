"""Which change is sent to a running engine, and how its answer is read."""

from dataclasses import replace
from typing import Any

import pytest
from operator_cluster import Clock
from operator_engines import Engines, FakeEngine

from headrace_client.errors import EngineUnavailable
from headrace_core.knobs.resolve import resolve
from headrace_operator.cluster.observe import PodView
from headrace_operator.engines.base import ConfigChange, EngineProbe, RunningEngine, SloChange, WantedConfig
from headrace_operator.rollout.config_push import DRIFT_SECONDS, ConfigPush, boot_difference, change_to

CEILINGS = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
SLO = {"ttft_seconds": 1.0, "itl_seconds": None, "itl_percentile": 99.0}
WANTED = WantedConfig(values={"decode_ratio": 0.5}, ceilings=CEILINGS, slo=SLO, on_gpu=False, revision="new")
POD = PodView(name="a", uid="a", ip="1.2.3.4", ready=True)


def state(wanted: WantedConfig = WANTED, **more: Any) -> RunningEngine:
    known: dict[str, Any] = {
        "generation": 3,
        "revision": wanted.revision,
        "config": wanted.config().values(),
        "ceilings": CEILINGS,
        "slo": wanted.slo,
        "device": "cpu",
        "pretend_gpu": False,
        "started_at": 0.0,
    }
    return RunningEngine(**{**known, **more})


def change(knobs: dict[str, Any] | None = None, slo: SloChange | None = None) -> ConfigChange:
    return ConfigChange(knobs=knobs or {}, slo=slo, revision="new", if_generation=3)


CONFIG = WANTED.config().values()
CHANGES = {
    "as wanted": (state(), None),
    "only the revision differs": (state(revision="old"), change()),
    "a hot knob": (state(config={**CONFIG, "decode_ratio": 0.1}), change({"decode_ratio": 0.5})),
    "a knob that needs a new process": (state(config={**CONFIG, "block_size": 99}), None),
    "a knob that it doesn't know": (
        state(config={name: value for name, value in CONFIG.items() if name != "decode_ratio"}),
        change({"decode_ratio": 0.5}),
    ),
    "defaults of the engine's device": (
        state(device="cuda"),
        change({"max_num_batched_tokens": 2048}),
    ),
    "another SLO": (state(slo={"ttft_seconds": 2.0}), change(slo=SloChange(SLO))),
    "an equivalent SLO": (state(slo={"ttft_seconds": 1.0, "tpot_seconds": None}), None),
    "no SLO": (state(slo=None), change(slo=SloChange(SLO))),
    "both": (
        state(config={**CONFIG, "decode_ratio": 0.1}, slo=None),
        change({"decode_ratio": 0.5}, SloChange(SLO)),
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_exactly_what_differs_is_changed(case: str) -> None:
    there, expected = CHANGES[case]
    assert change_to(there, WANTED) == expected


def test_an_slo_that_is_no_longer_wanted_is_taken_away() -> None:
    assert change_to(state(), replace(WANTED, slo=None)) == change(slo=SloChange(None))


@pytest.mark.parametrize(
    ("ceilings", "said"),
    [
        (CEILINGS, ""),
        ({}, ""),  # an engine that reports no ceilings is believed
        ({**CEILINGS, "max_num_seqs": 8}, "ceiling of max_num_seqs"),
        ({**CEILINGS, "max_num_batched_tokens": 4096}, "ceiling of max_num_batched_tokens"),
    ],
)
def test_an_engine_with_other_ceilings_started_with_another_config(ceilings: dict[str, int], said: str) -> None:
    assert boot_difference(state(ceilings=ceilings), WANTED) == said


class Setting:
    """One engine and one `ConfigPush`."""

    def __init__(self) -> None:
        self.clock, self.engines = Clock(), Engines()
        config = resolve({}, ceilings=CEILINGS)
        self.engine = self.engines.by_address[POD.ip] = FakeEngine(config=config, revision="old", slo=None)
        self.push = ConfigPush(clock=self.clock.monotonic)

    async def bring(self, *pods: PodView, wanted: WantedConfig = WANTED) -> dict[str, EngineProbe]:
        return await self.push.bring(self.engines, pods or (POD,), wanted, token="t")


@pytest.fixture
def setting() -> Setting:
    return Setting()


async def test_an_engine_is_brought_to_the_wanted_config(setting: Setting) -> None:
    probe = (await setting.bring())["a"]
    assert (probe.in_force, probe.refused, probe.unreachable) == (True, "", "")
    assert probe.state is not None
    assert change_to(probe.state, WANTED) is None
    assert setting.engines.patches == [(POD.ip, {"decode_ratio": 0.5})]


async def test_an_engine_seen_with_the_right_config_is_not_asked_again_for_a_while(setting: Setting) -> None:
    await setting.bring()
    setting.clock.advance(DRIFT_SECONDS - 1)
    assert (await setting.bring())["a"].in_force
    assert setting.engines.reads == 1
    setting.clock.advance(1)
    await setting.bring()
    assert setting.engines.reads == 2


@pytest.mark.parametrize("other", [{"revision": "newer"}, {"restarts": 1}])
async def test_a_new_revision_or_process_is_asked_at_once(setting: Setting, other: dict[str, Any]) -> None:
    await setting.bring()
    pod = replace(POD, restarts=other.get("restarts", 0))
    await setting.bring(pod, wanted=replace(WANTED, revision=other.get("revision", "new")))
    assert setting.engines.reads == 2


async def test_pods_that_are_gone_are_forgotten(setting: Setting) -> None:
    await setting.bring()
    setting.push.forget({"b"})
    await setting.bring()
    assert setting.engines.reads == 1
    setting.push.forget({"a"})
    await setting.bring()
    assert setting.engines.reads == 2


@pytest.mark.parametrize("change", [{"ready": False}, {"ip": ""}, {"terminating": True}])
async def test_pods_that_cannot_answer_are_left_alone(setting: Setting, change: dict[str, Any]) -> None:
    assert await setting.bring(replace(POD, **change)) == {}
    assert setting.engines.reads == 0


async def test_a_silent_engine_is_unreachable_unless_its_config_was_seen_in_force(setting: Setting) -> None:
    setting.engine.down = True
    probe = (await setting.bring())["a"]
    assert (probe.in_force, probe.state) == (False, None)
    assert "no answer" in probe.unreachable
    setting.engine.down = False
    await setting.bring()
    setting.engine.down = True
    setting.clock.advance(DRIFT_SECONDS)
    probe = (await setting.bring())["a"]
    assert probe.in_force
    assert probe.state is not None
    probe = (await setting.bring(wanted=replace(WANTED, revision="newer")))["a"]
    assert not probe.in_force


async def test_a_refusal_carries_the_engines_message_and_is_tried_again(setting: Setting) -> None:
    setting.engine.refuse = "not today"
    probe = (await setting.bring())["a"]
    assert probe.refused == "the engine refuses the config: decode_ratio: not today"
    assert not probe.in_force
    setting.engine.refuse = ""
    assert (await setting.bring())["a"].in_force


async def test_a_config_that_does_not_fit_the_engines_device_is_refused_before_it_is_sent(setting: Setting) -> None:
    wanted = replace(WANTED, values={"max_num_seqs": 512}, ceilings={})
    probe = (await setting.bring(wanted=wanted))["a"]
    assert "refuses the config" in probe.refused
    assert setting.engines.patches == []


async def test_an_engine_that_started_with_other_ceilings_is_not_in_force(setting: Setting) -> None:
    setting.engine.config = resolve({}, ceilings={**CEILINGS, "max_num_seqs": 300})
    probe = (await setting.bring())["a"]
    assert not probe.in_force
    assert "older config (ceiling of max_num_seqs): delete the pod" in probe.unreachable


async def test_one_silent_pod_does_not_hold_up_the_others(setting: Setting) -> None:
    probes = await setting.bring(POD, replace(POD, name="b", uid="b", ip="1.2.3.5"))
    assert probes["a"].in_force
    assert probes["b"].unreachable


class Fixed:
    """Engines that cannot be reconfigured while they run."""

    live = None

    async def one_token(self, url: str, *, model: str) -> None:
        raise EngineUnavailable(url)


async def test_what_an_engine_started_with_is_in_force_where_it_cannot_be_changed() -> None:
    push = ConfigPush(clock=lambda: 0.0)
    pods = (POD, replace(POD, uid="b", ready=False))
    assert await push.bring(Fixed(), pods, WANTED, token="t") == {"a": EngineProbe(in_force=True)}
