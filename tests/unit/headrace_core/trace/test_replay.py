"""A recording says all that it takes to get the same plans again, and a replay says where it cannot."""

import json
from collections.abc import Iterator

import pytest

from headrace_core.knobs.resolve import resolve
from headrace_core.scheduler.events import FinishReason, Request, StepResult
from headrace_core.scheduler.scheduler import SchedulerMisuseError
from headrace_core.trace.record import RecordingScheduler
from headrace_core.trace.replay import ReplayProblemKind, replay


def make(lines: list[str], **knobs: object) -> RecordingScheduler:
    config = resolve({"max_num_seqs": 4, "max_num_batched_tokens": 16, "block_size": 2} | knobs)
    return RecordingScheduler(config, num_blocks=20, max_model_len=40, cache_namespace="m@1", write=lines.append)


def request(name: str, prompt: tuple[int, ...], output: int, **fields: object) -> Request:
    return Request(request_id=name, prompt_token_ids=prompt, max_tokens=output, arrival=0.25, **fields)


def step(scheduler: RecordingScheduler, now: float, *, failed: frozenset[str] = frozenset()) -> None:
    plan = scheduler.plan(now)
    if plan is not None:
        tokens = {row.request_id: len(row.request_id) + row.start for row in plan.seqs if row.samples}
        scheduler.commit(plan, StepResult(tokens=tokens, failed=failed), now + 0.5)


@pytest.fixture
def lines() -> list[str]:
    """A recording with every kind of call and answer."""
    made: list[str] = []
    s = make(made)
    prompt = (1, 2, 3, 4, 5)
    s.expect([1], 0.5)  # so that too many are let in
    with pytest.raises(ValueError, match="at least 1 token"):
        s.expect([0, 5], 0.5)
    s.submit(request("a", prompt, 12, stop_token_ids=frozenset([99]), priority=2, cache_salt="x"), 1.0)
    s.submit(request("b", prompt, 12, fork_of="a", cache_salt="x"), 1.0)
    s.submit(request("a", prompt, 12), 1.0)
    s.submit(request("long", prompt, 400), 1.0)
    for index in range(12):
        s.submit(request(f"r{index}", (*prompt, index), 9, reads_cache=index % 2 == 0), 2.0 + index)
        if index > 5:
            step(s, 2.5 + index)
    s.reconfigure({"prefill_chunk_size": 2, "scheduling_policy": "priority"}, 20.0)
    s.reconfigure({"max_num_seqs": 0, "nonsense": True}, 20.0)
    s.abort("r3", 21.0)
    s.finish("r4", FinishReason.STOP, 21.0)
    s.abort("r3", 21.0)
    plan = s.plan(22.0)
    assert plan is not None
    with pytest.raises(SchedulerMisuseError):
        s.plan(22.0)
    with pytest.raises(SchedulerMisuseError):
        s.commit(plan, StepResult(tokens={}), 22.0)
    s.commit(plan, StepResult(tokens={}, failed=frozenset(row.request_id for row in plan.seqs)), 23.0)
    with pytest.raises(SchedulerMisuseError):
        s.commit(plan, StepResult(tokens={}), 23.0)
    with pytest.raises(ValueError, match="max_tokens"):
        s.submit(request("zero", prompt, 0), 23.0)
    now = 24.0
    while s.has_work:
        step(s, now)
        now += 1
    step(s, now)
    assert s.stats().preemptions
    assert s.broken is None
    return made


def test_a_recording_replays_to_the_same_bytes(lines: list[str]) -> None:
    report = replay(iter(lines))
    assert report.ok, report.problem
    assert (report.lines, report.calls, report.truncated_line) == (len(lines), len(lines) - 1, None)
    assert report.steps > 20
    assert report.outcomes > 100
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines)


def test_the_header_makes_the_same_scheduler(lines: list[str]) -> None:
    header = json.loads(lines[0])
    assert (header["format"], header["version"], header["cache_namespace"]) == ("headrace-schedule", 1, "m@1")
    assert header["config"] == resolve(header["config"], ceilings=header["ceilings"]).values()


def test_every_line_is_the_one_text_of_its_value(lines: list[str]) -> None:
    for line in lines:
        assert json.dumps(json.loads(line), sort_keys=True, separators=(",", ":")) + "\n" == line


def test_recording_changes_no_answer() -> None:
    from headrace_core.scheduler.scheduler import Scheduler

    recording = make([])
    plain = Scheduler(recording.config, num_blocks=20, max_model_len=40, cache_namespace="m@1")
    for s in (recording, plain):
        for name in "abcdef":
            s.submit(request(name, (1, 2, 3), 9), 1.0)
    while plain.has_work:
        plan, other = plain.plan(2.0), recording.plan(2.0)
        assert plan == other
        assert plan is not None
        result = StepResult(tokens={row.request_id: 7 for row in plan.seqs if row.samples})
        assert plain.commit(plan, result, 3.0) == recording.commit(other, result, 3.0)
    assert plain.stats() == recording.stats()


def test_a_plan_says_of_a_block_table_only_what_is_new() -> None:
    made: list[str] = []
    s = make(made, max_num_batched_tokens=32)
    s.submit(request("a", tuple(range(30)), 6), 1.0)
    step(s, 1.0)
    first, *later = (json.loads(line)["answer"]["seqs"] for line in made if '"call":"plan"' in line)
    assert first == [["a", "p!", 0, list(range(30)), 0, list(range(1, 16))]]
    step(s, 2.0)
    step(s, 3.0)
    tables = [json.loads(line)["answer"]["seqs"][0][4:] for line in made if '"call":"plan"' in line]
    assert tables == [[0, list(range(1, 16))], [15, [16]], [16, []]]
    assert not later


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_last_line_that_a_crash_cut_short_is_tolerated_and_told(lines: list[str], cut: int) -> None:
    report = replay([*lines[:40], lines[40][:-cut]] if cut > 1 else [*lines[:40], lines[40][:-2]])
    assert report.ok
    assert (report.lines, report.truncated_line) == (40, 41)


def test_a_last_line_that_lacks_only_its_newline_is_whole(lines: list[str]) -> None:
    report = replay([*lines[:40], lines[40][:-1]])
    assert (report.ok, report.lines, report.truncated_line) == (True, 41, None)


def test_a_cut_line_in_the_middle_is_corrupt(lines: list[str]) -> None:
    report = replay([*lines[:10], lines[10][:-9] + "\n", *lines[11:]])
    assert report.problem is not None
    assert (report.problem.kind, report.problem.line, report.calls) == (ReplayProblemKind.CORRUPT, 11, 9)
    assert report.problem.recorded == lines[10][:-9]


@pytest.mark.parametrize(
    "text",
    [
        "[]", '"x"', "{}", '{"call":"plan","args":{}}', '{"call":"fly","args":{},"now":1}',
        '{"call":"submit","args":{},"now":1}', '{"call":"finish","args":{"id":"a","reason":"boredom"},"now":1}',
        '{"call":"commit","args":{"step":1},"now":1}', '{"call":"reconfigure","args":7,"now":1}', "\x00\ufffd",
    ],
)  # fmt: skip
def test_a_line_that_is_no_call_is_corrupt(lines: list[str], text: str) -> None:
    report = replay([*lines[:5], text + "\n", *lines[6:]])
    assert report.problem is not None
    assert (report.problem.kind, report.problem.line, report.problem.recorded) == (ReplayProblemKind.CORRUPT, 6, text)


def test_a_difference_is_told_with_its_line_and_both_texts(lines: list[str]) -> None:
    at = next(index for index, line in enumerate(lines) if '"call":"plan"' in line and "null" not in line)
    wrong = lines[at].replace('"p!"', '"p"', 1)
    assert wrong != lines[at]
    report = replay([*lines[:at], wrong, *lines[at + 1 :]])
    problem = report.problem
    assert problem is not None
    assert (problem.kind, problem.line) == (ReplayProblemKind.DIFFERENT, at + 1)
    assert (problem.recorded + "\n", problem.replayed + "\n") == (wrong, lines[at])


def test_every_answer_counts(lines: list[str]) -> None:
    """Whichever digit of whichever answer is changed, the replay finds it in that line."""
    for number, line in enumerate(lines[1:], 2):
        start = line.find('"answer":')
        digits = [at for at in range(start, line.index('"args":')) if line[at].isdigit()] if start >= 0 else []
        if digits:
            at = digits[number % len(digits)]
            wrong = line[:at] + str((int(line[at]) + 1) % 10) + line[at + 1 :]
            problem = replay([*lines[: number - 1], wrong, *lines[number:]]).problem
            assert problem is not None
            assert problem.line == number


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"version": 2}, "version must be 1, got 2: replay with the release"),
        ({"format": "x"}, "format must be 'headrace-schedule'"),
        ({"num_blocks": 1}, "at least 2 blocks"),
        ({"config": {"nonsense": 1}}, "nonsense"),
        ({"config": 3}, "header is not usable"),
        ({"max_model_len": None}, "header is not usable"),
    ],
)
def test_a_header_that_is_not_usable_is_told(lines: list[str], header: dict[str, object], message: str) -> None:
    report = replay([json.dumps(json.loads(lines[0]) | header) + "\n", *lines[1:]])
    assert report.problem is not None
    assert (report.problem.kind, report.problem.line) == (ReplayProblemKind.HEADER, 1)
    assert message in report.problem.message


def test_a_header_without_a_field_names_it(lines: list[str]) -> None:
    header = json.loads(lines[0])
    del header["ceilings"]
    problem = replay([json.dumps(header) + "\n"]).problem
    assert problem is not None
    assert "ceilings is missing" in problem.message


@pytest.mark.parametrize("nothing", [[], ['{"format":"headrace-sch']])
def test_a_recording_without_a_whole_line_is_told(nothing: list[str]) -> None:
    report = replay(nothing)
    assert report.problem is not None
    assert report.problem.kind is ReplayProblemKind.HEADER


def test_a_full_disk_ends_the_recording_and_not_the_engine(lines: list[str]) -> None:
    made: list[str] = []

    def write(line: str) -> None:
        if len(made) == 6:
            raise OSError(28, "No space left on device")
        made.append(line)

    config = resolve({"max_num_seqs": 4, "max_num_batched_tokens": 16})
    s = RecordingScheduler(config, num_blocks=20, max_model_len=40, write=write)
    s.submit(request("a", (1, 2, 3), 9), 1.0)
    while s.has_work:
        step(s, 2.0)
    assert s.broken == "OSError: [Errno 28] No space left on device"
    assert len(made) == 6
    assert replay(made).ok


def test_a_replay_streams() -> None:
    made: list[str] = []
    s = make(made)
    s.submit(request("a", (1,), 30), 1.0)
    while s.has_work:
        step(s, 2.0)
    read = 0

    def source() -> Iterator[str]:
        nonlocal read
        for line in made:
            read += 1
            yield line
        raise EOFError("the replay took the lines one by one")

    with pytest.raises(EOFError, match="one by one"):
        replay(source())
    assert read == len(made)


def test_ids_that_come_again_are_other_requests() -> None:
    made: list[str] = []
    s = make(made)
    for _ in range(3):
        s.submit(request("same", (1, 2, 3), 3), 1.0)
        while s.has_work:
            step(s, 2.0)
    assert replay(made).ok
    assert not s._plans._tables, "nothing is kept of what has ended"


def test_a_block_that_was_copied_shows_in_the_plan() -> None:
    made: list[str] = []
    s = make(made)
    s.submit(request("a", (1, 2, 3), 6), 1.0)
    s.submit(request("b", (1, 2, 3), 6, fork_of="a"), 1.0)
    step(s, 1.0)
    step(s, 2.0)
    plan = json.loads([line for line in made if '"call":"plan"' in line][1])["answer"]
    assert plan["copies"] == [[2, 3]]
    assert [seq[4:] for seq in plan["seqs"]] == [[1, [3]], [2, []]]
