"""What is made of the visits: percentiles with bounds, whole batches, claims, prices, answers, table and picture."""

import io
import json
import random
from itertools import pairwise

import pytest
from rich.console import Console

from headrace_bench.modes.claims import Claim, ClaimVerdict, check_claims, prices
from headrace_bench.modes.command import Judged, bench_modes_result
from headrace_bench.modes.design import Level, LoadRates, Mode, Windows, make_design
from headrace_bench.modes.equal import compare_answers
from headrace_bench.modes.lab import LabSetting
from headrace_bench.modes.options import ModesOptions, parse_lengths
from headrace_bench.modes.outcome import (
    LevelRun,
    Tail,
    group,
    make_cell,
    make_cells,
    tail,
    throughput,
)
from headrace_bench.modes.plot import draw
from headrace_bench.modes.run import Compared
from headrace_bench.modes.table import cell_notes
from headrace_bench.serve.result import ServeWindow
from headrace_bench.serve.watch import Health
from headrace_client.load.client import ErrorKind, RequestRecord
from headrace_core.sim.calibration import Calibration
from headrace_core.workload.plans import RequestKind

HEALTH = Health(seconds=10.0, cpu_share=0.2, loop_lag=None)
SHORT, LONG = RequestKind.SHORT, RequestKind.LONG


def record(number: int, ttft: float | None, *, at: float | None = None, kind: RequestKind = SHORT, **more: object):
    gaps = more.pop("gaps", (0.1, 0.1))
    whole = ttft is not None and "error" not in more
    base = {
        "planned_at": number / 10 if at is None else at, "sent_at": 0.0, "kind": kind, "prompt_tokens": 16,
        "output_tokens": 3, "ttft": ttft, "gaps": gaps if ttft is not None else (), "number": number, "text": "abc",
        "e2e": ttft + sum(gaps) if whole else None,
    }  # fmt: skip
    return RequestRecord(**base | more)


def run(mode: Mode, level: Level, records: list, *, repetition: int = 0, busy: float = 0.9, end: float = 20.0):
    return LevelRun(
        mode=mode, level=level, repetition=repetition, rate=None if level is Level.FULL else 5.0, records=records,
        window=ServeWindow(begin=0.0, end=end), ended=end + 5, busy=busy, health=HEALTH,
    )  # fmt: skip


def waits(scale: float, *, seed: int, spread: float = 0.0) -> list[RequestRecord]:
    """The same requests for every scale: a tenth is slow, as behind a long prompt; one of 25 is long."""
    rng, own, records = random.Random(seed), random.Random(f"{seed}{scale}"), []
    for number in range(100):
        kind = LONG if number % 25 == 7 else SHORT
        slow = 2.0 * scale * own.uniform(1 - spread, 1 + spread) if rng.random() < 0.1 else 0.0
        records.append(record(number, rng.uniform(0.1, 0.2) + slow, at=number / 5, kind=kind))
    return records


def served(mode: Mode, speed: float) -> list[RequestRecord]:
    """Twelve tokens a second in batches of four for static batching, `speed` times as many for the others."""
    if mode is Mode.STATIC:
        return [record(n, n // 4 + 0.1, at=0.0, gaps=(0.4, 0.5)) for n in range(80)]
    return [record(n, 0.0, at=n / (4 * speed), gaps=(0.01, 0.01)) for n in range(round(80 * speed))]


def visits(*, cut: float = 0.2, speed: float = 2.5, busy: float = 0.95, spread: float = 0.0) -> list[LevelRun]:
    runs = []
    for repetition in (0, 1):
        for mode, scale in ((Mode.STATIC, 3.0), (Mode.CONTINUOUS, 1.0), (Mode.CHUNKED, cut)):
            for level in (Level.LOW, Level.HIGH):
                records = waits(scale, seed=repetition, spread=spread)
                runs.append(run(mode, level, records, repetition=repetition, busy=busy))
            runs.append(run(mode, Level.FULL, served(mode, speed), repetition=repetition, busy=busy))
    return runs


def judge(runs: list[LevelRun]):
    return check_claims(make_cells(runs, batch=4), group(runs))


def verdicts(claims: list[Claim], name: str, level: Level) -> list[ClaimVerdict]:
    return [claim.verdict for claim in claims if name in claim.name and claim.level is level]


def test_a_percentile_among_those_that_waited_in_vain_is_a_lower_bound() -> None:
    values = [(float(at), False) for at in range(1, 91)] + [(50.0, True)] * 10
    found = tail(values)
    assert (found.p50, found.beyond) == (50.0, ("p50", "p95", "p99", "max"))
    light = tail([(float(at), False) for at in range(1, 100)] + [(200.0, True)])
    assert light == Tail(100, 50.0, 95.0, 99.0, 200.0, ("max",))
    assert tail([]) is None


def test_unfinished_requests_count_with_their_wait_and_refused_ones_do_not() -> None:
    records = [record(0, 0.5), record(1, None, at=10.0, error=ErrorKind.UNFINISHED), record(2, None, error="http_503")]
    cell = make_cell([run(Mode.STATIC, Level.HIGH, records)], batch=4)
    assert cell.ttft.count == 2
    assert cell.ttft.max == 15.0  # given up at 25
    assert cell.errors == {"http_503": 1, "unfinished": 1}
    assert cell.overloaded


def test_short_and_long_prompts_are_told_apart() -> None:
    records = [record(0, 0.1), record(1, 5.0, kind=LONG)]
    cell = make_cell([run(Mode.CHUNKED, Level.LOW, records)], batch=4)
    assert (cell.ttft_short.max, cell.ttft_long.max, cell.ttft.count) == (0.1, 5.0, 2)
    assert cell.itl.count == 4


def test_static_batching_under_full_load_is_counted_in_whole_batches() -> None:
    # Batches of two that take 4 s each; the third has begun and would flatter the rate.
    records = [
        record(number, batch * 4.0 + 0.1, at=0.0, gaps=(0.5, 3.4 if number % 2 else 0.4))
        for batch in range(3)
        for number in (2 * batch, 2 * batch + 1)
    ]
    records[-1] = record(5, 8.1, at=0.0, gaps=(0.5,), error=ErrorKind.UNFINISHED, output_tokens=2)
    requests, tokens = throughput(run(Mode.STATIC, Level.FULL, records, end=9.0), batch=2)
    assert requests == pytest.approx(4 / 8.0)
    assert tokens == pytest.approx(12 / 8.0)
    threes = [record(n, n // 3 + 0.1, at=0.0, gaps=(0.4, 0.5)) for n in range(7)]
    assert throughput(run(Mode.STATIC, Level.FULL, threes, end=9.0), batch=3)[0] == pytest.approx(6 / 2)
    unfinished = [record(0, 0.1, at=0.0, error=ErrorKind.UNFINISHED, output_tokens=3)]
    assert throughput(run(Mode.STATIC, Level.FULL, unfinished, end=9.0), batch=2)[1] == pytest.approx(3 / 9)


def test_a_full_load_has_no_ttft_and_no_unfinished_errors() -> None:
    records = [record(0, 0.5), record(1, None, error=ErrorKind.UNFINISHED)]
    cell = make_cell([run(Mode.CHUNKED, Level.FULL, records)], batch=4)
    assert cell.ttft is None
    assert cell.errors == {}
    assert not cell.overloaded


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


def test_what_chunking_costs_is_told() -> None:
    runs = [
        run(mode, Level.HIGH, [record(0, ttft, kind=LONG, gaps=gaps), record(1, 0.1)])
        for mode, ttft, gaps in ((Mode.CONTINUOUS, 2.0, (0.1, 4.0)), (Mode.CHUNKED, 3.0, (0.2, 0.4)))
    ]
    found = {item.about: item.ratio for item in prices(make_cells(runs, batch=4))}
    assert found["TTFT p50 of long prompts"] == 1.5
    assert found["ITL max"] == pytest.approx(0.1)


def test_answers_are_compared_in_pairs_and_the_first_difference_is_shown() -> None:
    other = [record(0, 0.1, text="abc"), record(1, 0.1, text="abXYZ"), record(2, None, error="http_503")]
    runs = [
        run(Mode.CONTINUOUS, Level.LOW, [record(n, 0.1, text="abcde") if n == 1 else record(n, 0.1) for n in range(3)]),
        run(Mode.CHUNKED, Level.LOW, other),
        run(Mode.CHUNKED, Level.LOW, other, repetition=1),
    ]
    found = {(item.first, item.second): item for item in compare_answers(runs)}
    pair = found[Mode.CONTINUOUS, Mode.CHUNKED]
    assert (pair.compared, pair.equal) == (2, 1)
    assert (pair.difference.number, pair.difference.at, pair.difference.first) == (1, 2, "cde")
    itself = found[Mode.CHUNKED, Mode.CHUNKED]
    assert (itself.compared, itself.equal, itself.difference) == (2, 2, None)
    assert (Mode.STATIC, Mode.CHUNKED) not in found


def judged(runs: list[LevelRun]) -> Judged:
    options = ModesOptions()
    lengths = parse_lengths(options)
    design = make_design(
        chunk=64, max_num_seqs=4, budget=None, short=lengths.short, output=lengths.output, long=None, long_share=0.04
    )
    capacity = dict.fromkeys(Mode, 1.0)
    setting = LabSetting(
        design=design, rates=LoadRates(low=1.0, high=5.0, capacity=capacity, separates=True),
        windows=Windows(low=1, high=1, warmup=1, drain=1, full=1, full_static=1),
    )  # fmt: skip
    facts = {"model": "SmolLM2-135M-Instruct", "device": "cpu", "dtype": "float32"}
    calibration = Calibration(decode={1: 0.1}, prefill={32: 0.2}, facts=facts)
    return Judged.of(
        Compared(
            options=options, model="m", calibration=calibration, setting=setting, factor=1.0, runs=runs,
            environment={"cpu": "AMD EPYC", "cores": 2, "load_average": 0.1, "load_average_after": 1.2}, seconds=1.0,
        )
    )  # fmt: skip


def test_everything_fits_80_columns_and_is_json() -> None:
    runs = visits()
    over = [record(n, None, at=n / 5, error=ErrorKind.UNFINISHED) if n > 20 else record(n, 33.3) for n in range(99)]
    runs[1] = run(Mode.STATIC, Level.HIGH, over)
    whole = judged(runs)
    json.dumps(whole.to_json(), allow_nan=False)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(bench_modes_result(whole))
    text = console.export_text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    rows = [line for line in lines if "static" in line and "33.3" in line]
    assert rows, text
    assert ">" in rows[0]
    assert "AMD EPYC, 2 cores; load average 0.1 before, 1.2 after" in text
    for words in ("Claim: chunking cuts TTFT tails", "held", "not held", "What chunking does else", "greedy answers"):
        assert words in text


def test_notes_name_overload_errors_and_a_limited_client() -> None:
    records = [record(n, 0.1, at=n / 5, sent_at=n / 5 + 1.0) for n in range(50)] + [record(99, None, error="http_500")]
    notes = cell_notes(make_cells([run(Mode.CHUNKED, Level.HIGH, records)], batch=4))
    assert any("errors {'http_500': 1}" in note for note in notes)
    assert any("the client was a limit" in note for note in notes)
    growing = [record(n, None, at=n / 5, error=ErrorKind.UNFINISHED) for n in range(50)]
    assert any(
        "overloaded" in note for note in cell_notes(make_cells([run(Mode.STATIC, Level.HIGH, growing)], batch=4))
    )


def test_the_picture_is_drawn_whatever_is_missing(tmp_path) -> None:
    for name, runs in (("whole", visits()), ("some", visits()[:2]), ("none", [])):
        path = tmp_path / f"{name}.part"
        draw(path, make_cells(runs, batch=4), group(runs), title=name)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_waits_of_a_picture_end_where_nobody_knows_more() -> None:
    from headrace_bench.modes.plot import _survival

    drawn: dict = {}

    class Panel:
        def step(self, times, shares, **_: object) -> None:
            drawn.update(times=times, shares=shares)

    _survival(Panel(), [(1.0, False), (2.0, False), (3.0, True), (9.0, True)])
    assert drawn["shares"] == [1.0, 0.75, 0.5, 0.5]
    assert all(before <= after for before, after in pairwise(drawn["times"]))
