"""The demo tells the same story on a fast and on a slow machine."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from headrace_core.knobs.resolve import resolve
from headrace_core.knobs.table import KNOB_BY_CAMEL
from headrace_core.sim.calibration import Calibration
from headrace_local.demo import manifests, story
from headrace_local.demo.story import tell

SLOW = Calibration(
    decode={1: 0.040, 4: 0.060, 8: 0.080},
    prefill={32: 0.12, 128: 0.35, 512: 1.3, 1024: 2.8},
    facts={"threads": 2},
)


def scaled(factor: float) -> Calibration:
    return replace(
        SLOW,
        decode={key: value * factor for key, value in SLOW.decode.items()},
        prefill={key: value * factor for key, value in SLOW.prefill.items()},
    )


@pytest.mark.parametrize("factor", [0.05, 0.125, 1.0, 4.0])
def test_the_inter_token_threshold_lies_between_a_slice_and_a_whole_prompt(factor: float) -> None:
    told = tell(scaled(factor))
    assert told.sliced < told.itl < told.whole
    assert told.ttft > told.whole
    assert 10 <= told.window <= 24


def test_the_story_holds_when_the_machine_becomes_twice_as_fast_or_slow_after_the_calibration() -> None:
    told = tell(SLOW)
    assert 2 * told.sliced < told.itl < told.whole / 2


def test_the_load_is_a_stated_share_of_what_the_engine_can_serve() -> None:
    slow, fast = tell(SLOW), tell(scaled(0.125))
    assert fast.rate == pytest.approx(8 * slow.rate, rel=0.1)


def test_one_core_is_left_for_everything_else() -> None:
    assert [story.engine_threads(cores) for cores in (1, 2, 16)] == [1, 1, 15]
    body = manifests.inference_service(tell(SLOW), Path("/models/m"))
    assert body["spec"]["engine"]["extraArgs"] == ["--threads", "2"]


def test_the_bad_config_is_valid_and_prefills_any_prompt_of_the_load_whole() -> None:
    config = resolve({KNOB_BY_CAMEL[name].name: value for name, value in manifests.bad_config().items()})
    assert config.chunk >= story.LONG_PROMPT


def test_durations_are_whole_milliseconds_and_never_shorter() -> None:
    assert manifests.duration(0.4301) == "431ms"
    assert math.isclose(story.round_up(0.123), 0.13)
