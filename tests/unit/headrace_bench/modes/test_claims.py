"""Claims with their intervals, and the side effects of chunking."""

import pytest
from modes_doubles import LONG, record, run, served, visits

from headrace_bench.modes.claims import Claim, ClaimVerdict, check_claims, prices
from headrace_bench.modes.design import Level, Mode
from headrace_bench.modes.outcome import (
    LevelRun,
    group,
    make_cells,
)
from headrace_client.load.client import ErrorKind


def judge(runs: list[LevelRun]):
    return check_claims(make_cells(runs, batch=4), group(runs))


def verdicts(claims: list[Claim], name: str, level: Level) -> list[ClaimVerdict]:
    return [claim.verdict for claim in claims if name in claim.name and claim.level is level]


def test_claims_hold_where_the_whole_interval_is_beyond_the_target() -> None:
    claims = judge(visits())
    assert verdicts(claims, "TTFT tails", Level.HIGH) == [ClaimVerdict.HELD] * 4
    assert verdicts(claims, "static throughput", Level.FULL) == [ClaimVerdict.HELD] * 2
    assert verdicts(claims, "static throughput", Level.HIGH) == [ClaimVerdict.NOT_HELD] * 2, (
        "both serve what is offered"
    )
    assert verdicts(claims, "busy", Level.HIGH) == [ClaimVerdict.HELD]


def test_claims_that_do_not_hold_say_so() -> None:
    claims = judge(visits(cut=1.0, speed=1.2, busy=0.5))
    assert verdicts(claims, "TTFT tails", Level.HIGH) == [ClaimVerdict.NOT_HELD] * 4
    assert verdicts(claims, "static throughput", Level.FULL) == [ClaimVerdict.NOT_HELD] * 2
    assert verdicts(claims, "busy", Level.LOW) == [ClaimVerdict.NOT_HELD]


def test_a_cut_near_the_target_cannot_be_told() -> None:
    runs = visits(cut=0.55, spread=0.6)
    found = [claim for claim in judge(runs) if "p95 of short" in claim.about and claim.level is Level.HIGH]
    assert found[0].low < 0.4 < found[0].high
    assert found[0].verdict is ClaimVerdict.UNCLEAR


def test_visits_that_disagree_leave_a_claim_open() -> None:
    runs = [item for item in visits() if item.level is not Level.FULL or item.mode is not Mode.CHUNKED]
    slow, fast = (
        run(Mode.CHUNKED, Level.FULL, served(Mode.CHUNKED, speed), repetition=at) for at, speed in ((0, 1.5), (1, 2.5))
    )
    assert ClaimVerdict.UNCLEAR in verdicts(judge([*runs, slow, fast]), "static throughput", Level.FULL)


def test_few_requests_never_hold_a_cut() -> None:
    runs = [
        run(mode, Level.HIGH, [record(n, seconds, at=n) for n in range(10)])
        for mode, seconds in ((Mode.CONTINUOUS, 2.0), (Mode.CHUNKED, 0.1))
    ]
    cuts = [claim for claim in judge(runs) if "tails" in claim.name]
    assert {claim.verdict for claim in cuts} == {ClaimVerdict.UNCLEAR}
    assert cuts[0].low is None


def test_a_mode_that_never_answered_does_not_win_by_its_bounds() -> None:
    waiting = [record(n, None, at=float(n % 19), error=ErrorKind.UNFINISHED) for n in range(40)]
    slow = [record(n, 80.0, at=float(n % 19)) for n in range(40)]
    runs = [run(Mode.CONTINUOUS, Level.HIGH, slow), run(Mode.CHUNKED, Level.HIGH, waiting)]
    cuts = [claim for claim in judge(runs) if "tails" in claim.name]
    assert {claim.verdict for claim in cuts} == {ClaimVerdict.UNCLEAR}
    assert ">" in cuts[0].figures


def test_side_effects_of_chunking_are_reported() -> None:
    runs = [
        run(mode, Level.HIGH, [record(0, ttft, kind=LONG, gaps=gaps), record(1, 0.1)])
        for mode, ttft, gaps in ((Mode.CONTINUOUS, 2.0, (0.1, 4.0)), (Mode.CHUNKED, 3.0, (0.2, 0.4)))
    ]
    found = {item.about: item.ratio for item in prices(make_cells(runs, batch=4))}
    assert found["TTFT p50 of long prompts"] == 1.5
    assert found["ITL max"] == pytest.approx(0.1)
