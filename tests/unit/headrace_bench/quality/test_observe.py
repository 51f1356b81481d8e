"""The engine's lines become progress or an error; an invalid answer is refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace_bench.errors import BenchError
from headrace_bench.quality import observe as module
from headrace_bench.quality.command import make_plan
from headrace_bench.quality.observe import observe
from headrace_core.observations import ObservationRequest


class Bars:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def begin(self, what: str, total: int) -> Callable[[], None]:
        self.seen.append((what, total))
        return lambda: self.seen.append("step")


@pytest.fixture
def request_of_one() -> ObservationRequest:
    return make_plan(
        "m", a="", b="", reference=None, reference_dtype=None, concurrency=1, prompts="built-in", text_tokens=9,
        output_tokens=3, margin=0.02, min_agreement=0.7, confidence=0.9, seed=5, device="cpu", threads=None,
    ).request  # fmt: skip


def engine(monkeypatch: pytest.MonkeyPatch, *lines: str, out: str = "", fails: bool = False) -> None:
    async def command(*_: str, given: str, seen: Callable[[str], bool]) -> str:
        assert json.loads(given)["model"] == "m"
        rest = [line for line in lines if not seen(line)]
        if fails:
            raise BenchError(f"failed: {rest}")
        return out

    monkeypatch.setattr(module, "engine_command", command)


async def test_progress_is_passed_on_and_an_answer_of_another_form_is_refused(
    monkeypatch: pytest.MonkeyPatch, request_of_one: ObservationRequest
) -> None:
    lines = ['{"observe": {"begin": "A", "total": 2}}', "a library warns", '{"observe": {"done": 1}}', "[3]", "7"]
    engine(monkeypatch, *lines, out='noise\n{"model": "m"}\n')
    bars = Bars()
    with pytest.raises(BenchError, match="the engine's answer cannot be read, is it of another version"):
        await observe(request_of_one, bars)
    assert bars.seen == [("A", 2), "step"]


async def test_an_error_shows_only_the_engines_own_message(
    monkeypatch: pytest.MonkeyPatch, request_of_one: ObservationRequest
) -> None:
    engine(monkeypatch, "noise", '{"observe": {"error": "--b max_num_seqs: must be at least 1"}}', fails=True)
    with pytest.raises(BenchError, match=r"^--b max_num_seqs: must be at least 1$"):
        await observe(request_of_one, Bars())


async def test_an_engine_that_dies_without_a_word_of_ours_is_shown_with_its_own(
    monkeypatch: pytest.MonkeyPatch, request_of_one: ObservationRequest
) -> None:
    engine(monkeypatch, "Traceback", fails=True)
    with pytest.raises(BenchError, match="Traceback"):
        await observe(request_of_one, Bars())
