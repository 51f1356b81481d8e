"""Repeat the calls of a recording and compare the answers byte by byte. Streams, so recordings may be of any length."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from headrace_core.scheduler.events import FinishReason, StepPlan
from headrace_core.trace import format as fmt
from headrace_core.trace.record import RecordingScheduler


class ReplayProblemKind(StrEnum):
    """Why a recording was not replayed to its end."""

    HEADER = "header"  # not a recording, or one of another version
    CORRUPT = "corrupt"  # a line is not a call
    DIFFERENT = "different"  # the scheduler gave another answer than the recorded one


@dataclass(frozen=True, slots=True)
class ReplayProblem:
    """Where a replay stopped. `recorded` and `replayed` are the line as recorded and as it came out now, if it did."""

    kind: ReplayProblemKind
    line: int
    message: str
    recorded: str = ""
    replayed: str = ""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Counts of what was replayed. `truncated_line` is the number of a last line cut short, for example by a crash."""

    lines: int = 0
    calls: int = 0
    steps: int = 0
    outcomes: int = 0
    truncated_line: int | None = None
    problem: ReplayProblem | None = None

    @property
    def ok(self) -> bool:
        """Whether everything that was recorded came out the same."""
        return self.problem is None

    def to_dict(self) -> dict[str, Any]:
        """All fields and `ok`, for JSON."""
        return {"ok": self.ok, **asdict(self)}


class _ReplayStopped(Exception):  # noqa: N818
    def __init__(self, problem: ReplayProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def replay(lines: Iterable[str]) -> ReplayReport:
    """Replay a recording up to its end or its first problem. A last line without its newline may be cut short."""
    work = _Replay()
    problem = None
    try:
        for number, line, is_last in _numbered(lines):
            if not work.is_cut_short(number, line, is_last=is_last):
                work.take(number, line.removesuffix("\n"))
        work.check_header()
    except _ReplayStopped as stop:
        problem = stop.problem
    return ReplayReport(work.lines, work.calls, work.steps, work.outcomes, work.truncated_line, problem)


class _Replay:
    def __init__(self) -> None:
        self.lines = self.calls = self.steps = self.outcomes = 0
        self.truncated_line: int | None = None
        self._scheduler: RecordingScheduler | None = None
        self._written: list[str] = []

    def is_cut_short(self, number: int, line: str, *, is_last: bool) -> bool:
        """Whether `line` is the last one and its writing was interrupted."""
        if is_last and not line.endswith("\n") and _parsed(line) is None:
            self.truncated_line = number
        return self.truncated_line is not None

    def check_header(self) -> None:
        """Called after the last line. Fails if there was no header."""
        if self._scheduler is None:
            raise _ReplayStopped(
                ReplayProblem(ReplayProblemKind.HEADER, 1, "the recording has no complete line, not even a header")
            )

    def take(self, number: int, text: str) -> None:
        """Replay one complete line and compare."""
        data = _parsed(text)
        if data is None:
            raise _ReplayStopped(ReplayProblem(ReplayProblemKind.CORRUPT, number, "not a JSON object", text))
        self.lines = number
        if self._scheduler is None:
            self._scheduler = self._make(data, number)
            return
        self._written.clear()
        self._call(_prepared(self._scheduler, data, number, text), counts=data["call"] == "commit")
        replayed = "".join(self._written).removesuffix("\n")
        if replayed != text:
            raise _ReplayStopped(
                ReplayProblem(ReplayProblemKind.DIFFERENT, number, "the scheduler gave another answer", text, replayed)
            )

    def _make(self, data: dict[str, Any], number: int) -> RecordingScheduler:
        try:
            return RecordingScheduler(**fmt.read_header(data), write=self._written.append)
        except (AttributeError, TypeError, ValueError) as error:
            raise _ReplayStopped(
                ReplayProblem(ReplayProblemKind.HEADER, number, f"the header is not usable: {error}")
            ) from error

    def _call(self, call: Callable[[], Any], *, counts: bool) -> None:
        self.calls += 1
        try:
            answer = call()
        except Exception:  # raised when it was recorded too, or the lines differ
            return
        if counts:
            self.steps += 1
            self.outcomes += len(answer)


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str, bool]]:
    """(number, line, whether it is the last)."""
    before: str | None = None
    number = 0
    for line in lines:
        if before is not None:
            yield number, before, False
        before, number = line, number + 1
    if before is not None:
        yield number, before, True


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        data = json.loads(text)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _prepared(scheduler: RecordingScheduler, data: dict[str, Any], number: int, text: str) -> Callable[[], Any]:
    """The call described by a line, ready to run."""
    try:
        args, now = data["args"], data["now"]
        match data["call"]:
            case "plan":
                return partial(scheduler.plan, now)
            case "commit":
                return partial(scheduler.commit, _plan(scheduler, args), fmt.result_from_json(args), now)
            case "submit":
                return partial(scheduler.submit, fmt.request_from_json(args), now)
            case "finish":
                return partial(scheduler.finish, args["id"], FinishReason(args["reason"]), now)
            case "reconfigure":
                return partial(scheduler.reconfigure, dict(args), now)
            case "expect":
                return partial(scheduler.expect, list(args["lengths"]), now)
            case other:
                raise ValueError(f"unknown call {other!r}")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"not a valid call: {type(error).__name__}: {error}"
        raise _ReplayStopped(ReplayProblem(ReplayProblemKind.CORRUPT, number, message, text)) from error


def _plan(scheduler: RecordingScheduler, args: dict[str, Any]) -> StepPlan:
    """The plan in flight, or a dummy where the recorded driver committed another one by mistake."""
    if args["in_flight"] and scheduler.in_flight is not None:
        return scheduler.in_flight
    return StepPlan(step=args["step"], generation=0, seqs=())
