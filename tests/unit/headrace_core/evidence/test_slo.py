import math

import pytest

from headrace_core.evidence.slo import SloSet


def test_all_thresholds_must_hold_at_once() -> None:
    slo = SloSet(ttft_seconds=0.5, itl_seconds=0.1, tpot_seconds=0.08, e2e_seconds=2.0)
    gaps = [0.05] * 9 + [0.09]
    assert slo.judge(0.5, gaps, 2.0)
    assert not slo.judge(0.51, gaps, 2.0)
    assert not slo.judge(0.5, gaps, 2.01)
    assert not slo.judge(0.5, [*gaps, 0.11], 2.0)
    assert not slo.judge(0.5, [0.09] * 10, 2.0), "TPOT is the mean of the gaps"


def test_itl_percentile_is_nearest_rank_of_the_requests_own_gaps() -> None:
    gaps = [0.01] * 99 + [5.0]
    assert SloSet(itl_seconds=0.1).judge(1, gaps, 1)
    assert not SloSet(itl_seconds=0.1, itl_percentile=100).judge(1, gaps, 1)
    assert not SloSet(itl_seconds=0.1).judge(1, [0.01] * 98 + [5.0], 1), "99 gaps: rank 99 is the last"


def test_without_gaps_itl_and_tpot_hold() -> None:
    assert SloSet(itl_seconds=0.1, tpot_seconds=0.1).judge(0.2, [], 0.2)


def test_without_a_first_token_a_request_is_never_good() -> None:
    assert not SloSet().judge(None, [], 1.0)


def test_an_empty_set_is_met_and_nan_never_is() -> None:
    assert SloSet().judge(1e9, [1e9], 1e9)
    assert not SloSet(ttft_seconds=1).judge(math.nan, [], 1)
    assert not SloSet(itl_seconds=1).judge(0, [0.1, math.nan, 0.1], 1)
    assert not SloSet(tpot_seconds=1).judge(0, [math.nan], 1)


def test_round_trip_and_threshold() -> None:
    slo = SloSet(ttft_seconds=0.8, itl_percentile=95)
    assert SloSet.from_dict(slo.to_dict()) == slo
    assert slo.to_dict() == {
        "ttft_seconds": 0.8, "itl_seconds": None, "itl_percentile": 95, "tpot_seconds": None, "e2e_seconds": None,
    }  # fmt: skip
    assert (slo.threshold("ttft"), slo.threshold("itl")) == (0.8, None)
    with pytest.raises(ValueError, match="use one of ttft, itl"):
        slo.threshold("latency")


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, 10**400, "1", True])
def test_bad_thresholds_name_the_field(bad: object) -> None:
    with pytest.raises(ValueError, match=r"slo\.ttft_seconds"):
        SloSet.from_dict({"ttft_seconds": bad})


@pytest.mark.parametrize("bad", [0, 101, math.nan, None, "99"])
def test_bad_percentile(bad: object) -> None:
    with pytest.raises(ValueError, match=r"slo\.itl_percentile"):
        SloSet.from_dict({"itl_percentile": bad})


def test_unknown_keys_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown ttft; known are .*ttft_seconds"):
        SloSet.from_dict({"ttft": 1})
