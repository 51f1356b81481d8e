"""The engine loop with a real scheduler and a real (tiny) model: events, ends, scores, aborts, config."""

import asyncio
import random
from typing import Any

import pytest

from headrace_core.evidence.slo import SloSet
from headrace_core.scheduler import invariants
from headrace_core.scheduler.events import FinishReason, Request
from headrace_core.trace.history import History
from headrace_engine.loop.config_state import StaleGenerationError
from headrace_engine.loop.engine_loop import EngineLoop
from headrace_engine.loop.live_request import LiveRequest, RejectedError
from headrace_engine.metrics.engine_metrics import EngineMetrics
from headrace_engine.outputs import Delta, Done, Event, PromptScored, RequestProblemKind, TokenScore
from headrace_engine.sampling.grammar import GrammarCompiler
from headrace_engine.sampling.grammar_spec import GrammarKind, GrammarSpec
from headrace_engine.sampling.params import SamplingParams
from headrace_engine.text.detokenize import TextStream

EOS = 256
Looped = Any


def tokens_of(events: list[Event]) -> list[int]:
    return [token for event in events if not isinstance(event, PromptScored) for token in event.token_ids]


def scores_of(events: list[Event]) -> list[TokenScore]:
    return [score for event in events if not isinstance(event, PromptScored) for score in event.scores]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if not isinstance(event, PromptScored))


def done_of(events: list[Event]) -> Done:
    assert isinstance(events[-1], Done)
    return events[-1]


def prompt_of(length: int, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(256) for _ in range(length)]


@pytest.fixture
def compiler(tokenizer: Any) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, vocab_size=257, eos_token_ids={EOS})


# Events


async def test_each_token_is_in_exactly_one_event(looped: Looped, engine: Any) -> None:
    made = looped()
    prompt = prompt_of(12)
    events = await made.run("a", prompt, max_tokens=9, logprobs=2)
    assert all(isinstance(event, Delta) for event in events[:-1])
    assert all(len(event.token_ids) == 1 for event in events[:-1])
    assert tokens_of(events) == engine.plain(made.runner.model, prompt, 9)
    scores = scores_of(events)
    assert [score.token_id for score in scores] == tokens_of(events)
    assert all(score.rank == 1 and score.top[0][0] == score.token_id and len(score.top) == 2 for score in scores)
    done = done_of(events)
    assert (done.reason, done.num_output_tokens, done.problem, done.stop_reason) == (FinishReason.LENGTH, 9, None, None)
    assert scores_of(await made.run("b", prompt)) == []


async def test_without_increments_the_text_comes_at_the_end(looped: Looped) -> None:
    made = looped()
    whole = await made.run("a", text={"incremental": False})
    assert text_of(whole[:-1]) == ""
    assert text_of(whole) == text_of(await made.run("b"))
    assert tokens_of(whole) == tokens_of(await made.run("c"))


async def test_a_stream_of_bytes_shows_no_half_characters(looped: Looped, compiler: GrammarCompiler) -> None:
    """A grammar makes the model generate the text, one byte at a time."""
    said = "é漢👩!"
    grammar = compiler.compile(GrammarSpec(GrammarKind.CHOICE, (said,)))
    events = await looped().run("a", max_tokens=30, grammar=grammar, logprobs=0)
    assert text_of(events) == said
    assert [event.text for event in events if event.text] == list(said)  # type: ignore[union-attr]
    assert len(scores_of(events)) == len(said.encode())
    cut = await looped().run("b", max_tokens=7, grammar=grammar)
    assert text_of(cut) == "é漢\ufffd"
    assert done_of(cut).reason is FinishReason.LENGTH


# Ends


async def test_eos_as_the_last_allowed_token_is_a_stop(looped: Looped) -> None:
    made = looped()
    eos = {"stop_token_ids": frozenset({EOS})}
    forced = ((EOS, 1e6),)
    only = done_of(await made.run("a", max_tokens=1, request=eos, logit_bias=forced))
    assert (only.reason, only.stop_reason, only.num_output_tokens, only.text) == (FinishReason.STOP, None, 1, "")
    ignored = done_of(await made.run("b", max_tokens=3, logit_bias=forced))
    assert (ignored.reason, ignored.num_output_tokens) == (FinishReason.LENGTH, 3)


async def test_a_stop_token_id_is_distinguished_from_eos(looped: Looped) -> None:
    made = looped()
    no_eos = {"logit_bias": ((EOS, -1e6),)}
    free = await made.run("a", max_tokens=8, **no_eos)
    third = tokens_of(free)[2]
    first = tokens_of(free).index(third)
    for name, include in (("b", False), ("c", True)):
        ended = await made.run(
            name, max_tokens=8, request={"stop_token_ids": frozenset({third, EOS})}, text={"include_stop": include},
            **no_eos,
        )  # fmt: skip
        assert tokens_of(ended) == tokens_of(free)[: first + 1]
        assert (done_of(ended).reason, done_of(ended).stop_reason) == (FinishReason.STOP, third)
        shown = made.tokenizer.decode(tokens_of(free)[: first + include])
        assert text_of(ended).replace("\ufffd", "") == shown.replace("\ufffd", "")


@pytest.mark.parametrize("include", [True, False])
async def test_a_stop_string_ends_the_request_and_is_reported(looped: Looped, tokenizer: Any, include: bool) -> None:
    """The text is exact with and without the stop string."""
    made = looped()
    letters = tuple((token, 50.0) for token in tokenizer("abc")["input_ids"])
    options: dict[str, Any] = {"logit_bias": letters, "temperature": 1.0, "max_tokens": 60, "seed": "s"}
    free = text_of(await made.run("a", **options))
    stop = free[20:24]
    at = free.index(stop)
    events = await made.run("b", **options, text={"stops": ["zzz", stop], "include_stop": include})
    assert text_of(events) == free[: at + len(stop) * include]
    done = done_of(events)
    assert (done.reason, done.stop_reason, done.num_output_tokens) == (FinishReason.STOP, stop, at + len(stop))
    await made.idle()
    assert made.loop.stats.blocks_free == made.loop.stats.blocks_total


async def test_a_stop_string_on_the_last_allowed_token_is_a_stop(looped: Looped, tokenizer: Any) -> None:
    made = looped()
    letters = tuple((token, 50.0) for token in tokenizer("abc")["input_ids"])
    options: dict[str, Any] = {"logit_bias": letters, "temperature": 1.0, "seed": "s"}
    free = text_of(await made.run("a", max_tokens=20, **options))
    at = free.index(free[16:20]) + 4
    done = done_of(await made.run("b", max_tokens=at, **options, text={"stops": [free[16:20]]}))
    assert (done.reason, done.num_output_tokens) == (FinishReason.STOP, at)
    done = done_of(await made.run("c", max_tokens=at - 1, **options, text={"stops": [free[16:20]]}))
    assert (done.reason, done.stop_reason) == (FinishReason.LENGTH, None)
    assert done.text.endswith(free[16:19]), "what was held back comes with the end"


async def test_min_tokens_keeps_eos_away_and_stop_strings_too(looped: Looped, tokenizer: Any) -> None:
    made = looped()
    ends = frozenset({EOS})
    options: dict[str, Any] = {"logit_bias": ((EOS, 1e6),), "request": {"stop_token_ids": ends}, "max_tokens": 9}
    events = await made.run("a", **options, min_tokens=4, stop_token_ids=ends)
    assert done_of(events).num_output_tokens == 5
    assert tokens_of(events)[4] == EOS
    assert EOS not in tokens_of(events)[:4]
    letter = tokenizer("a")["input_ids"][0]
    stopped = await made.run("b", max_tokens=9, logit_bias=((letter, 1e6),), text={"stops": ["a"], "min_tokens": 3})
    assert text_of(stopped) == "aaa"
    assert done_of(stopped).num_output_tokens == 4


# Seeds and penalties, in any batch


async def test_a_seeds_text_is_the_same_alone_in_company_and_preempted(looped: Looped) -> None:
    """Penalties, bias, min-p and seeds: token = f(logits, parameters, seed, index, own tokens)."""
    options = [
        {"temperature": 1.0, "seed": "1", "presence_penalty": 0.8, "frequency_penalty": 0.3},
        {"temperature": 1.2, "seed": "2", "repetition_penalty": 1.4, "min_p": 0.02},
        {"repetition_penalty": 1.2},
        {"temperature": 0.9, "seed": "4", "top_p": 0.9, "logprobs": 1},
        {"temperature": 1.0, "seed": "5", "top_k": 30, "logit_bias": ((7, 3.0),)},
        {"frequency_penalty": 0.5, "logprobs": 0},
    ]
    prompts = [prompt_of(5 + 4 * at, seed=at) for at in range(6)]
    roomy, tight = looped(), looped(num_blocks=24, max_num_batched_tokens=24, prefill_chunk_size=8)
    alone = [
        tokens_of(await roomy.run(str(at), prompt, max_tokens=40, **option))
        for at, (prompt, option) in enumerate(zip(prompts, options, strict=True))
    ]
    for made, name in ((roomy, "together"), (tight, "preempted")):
        for at, (prompt, option) in enumerate(zip(prompts, options, strict=True)):
            await made.submit(f"{name} {at}", prompt, max_tokens=40, **option)
        got = [tokens_of(await made.collect(f"{name} {at}")) for at in range(6)]
        assert got == alone, name
    assert tight.loop.stats.preemptions > 0
    assert len({tuple(tokens) for tokens in alone}) == 6


# Scores of prompts


@pytest.mark.parametrize("chunk", [None, 1, 3, 7])
async def test_a_prompts_scores_come_before_its_text(looped: Looped, chunk: int | None) -> None:
    made = looped(prefill_chunk_size=chunk, num_blocks=40)
    prompt = prompt_of(20)
    for at in range(3):
        await made.submit(f"other {at}", prompt_of(9, seed=at), max_tokens=30)
    events = await made.run("a", prompt, max_tokens=3, prompt_logprobs=2, request={"reads_cache": False})
    assert isinstance(events[0], PromptScored)
    assert not any(isinstance(event, PromptScored) for event in events[1:])
    first, *rest = events[0].scores
    assert first is None
    assert [score and score.token_id for score in rest] == prompt[1:]
    assert all(score is not None and len(score.top) == 2 for score in rest)
    assert done_of(events).num_output_tokens == len(tokens_of(events)) == 3


async def test_a_prompts_scores_survive_preemption(looped: Looped) -> None:
    plain = looped()
    made = looped(num_blocks=14, max_num_batched_tokens=8, prefill_chunk_size=4)
    prompts = [prompt_of(14, seed=at) for at in range(4)]
    for at, prompt in enumerate(prompts):
        await made.submit(f"{at}", prompt, max_tokens=24, prompt_logprobs=0, request={"reads_cache": False})
    for at, prompt in enumerate(prompts):
        events = await made.collect(f"{at}")
        assert isinstance(events[0], PromptScored)
        alone = await plain.run(f"{at}", prompt, max_tokens=24, prompt_logprobs=0, request={"reads_cache": False})
        assert isinstance(alone[0], PromptScored)
        for score, wanted in zip(events[0].scores[1:], alone[0].scores[1:], strict=True):
            assert score is not None
            assert wanted is not None
            assert score.token_id == wanted.token_id
            assert score.logprob == pytest.approx(wanted.logprob, abs=1e-4)
    assert made.loop.stats.preemptions > 0


@pytest.mark.parametrize("max_tokens", [1, 2])
async def test_a_prompt_of_one_token_is_reported_without_scores(looped: Looped, max_tokens: int) -> None:
    events = await looped().run("a", [5], max_tokens=max_tokens, prompt_logprobs=1, request={"reads_cache": False})
    assert events[0] == PromptScored(scores=(None,))
    assert len(tokens_of(events)) == max_tokens


# Grammar


async def test_a_complete_grammar_is_a_stop_even_where_eos_is_ignored(looped: Looped, compiler: Any) -> None:
    made = looped()
    choice = compiler.compile(GrammarSpec(GrammarKind.CHOICE, ("maybe", "no", "nope")))
    for at, temperature in enumerate((0.0, 1.0, 1.0, 1.0, 1.0)):
        events = await made.run(f"{at}", max_tokens=30, grammar=choice, temperature=temperature, seed=str(at))
        done = done_of(events)
        assert text_of(events) in ("maybe", "no", "nope")
        assert (done.reason, done.stop_reason) == (FinishReason.STOP, None)
    exact = await made.run("last", max_tokens=5, grammar=compiler.compile(GrammarSpec(GrammarKind.CHOICE, ("maybe",))))
    assert (text_of(exact), done_of(exact).reason) == ("maybe", FinishReason.STOP), "complete on the last token"
    short = await made.run("short", max_tokens=4, grammar=compiler.compile(GrammarSpec(GrammarKind.CHOICE, ("maybe",))))
    assert (text_of(short), done_of(short).reason) == ("mayb", FinishReason.LENGTH)
    await made.idle()
    assert made.loop.stats.blocks_free == made.loop.stats.blocks_total


async def test_a_dead_end_is_an_error_with_a_message_for_that_request_only(looped: Looped, compiler: Any) -> None:
    """The client gets an error event instead of a stream that hangs."""
    made = looped()
    grammar = compiler.compile(GrammarSpec(GrammarKind.REGEX, "ab"))
    second = made.tokenizer("b")["input_ids"][0]
    await made.submit("other", max_tokens=20)
    events = await made.run("a", grammar=grammar, logit_bias=((second, float("-inf")),))
    done = done_of(events)
    assert text_of(events) == "a"
    assert done.reason is FinishReason.ERROR
    assert done.problem is not None
    assert "output position 1" in str(done.problem)
    assert done.problem.kind is RequestProblemKind.IMPOSSIBLE
    assert done_of(await made.collect("other")).num_output_tokens == 20


async def test_a_grammar_survives_preemption(looped: Looped, compiler: Any) -> None:
    made = looped(num_blocks=24, max_num_batched_tokens=24)
    grammar = compiler.compile(GrammarSpec(GrammarKind.REGEX, "([a-z]{3}-){12}"))
    for at in range(6):
        await made.submit(
            f"{at}", prompt_of(20, seed=at), max_tokens=48, grammar=grammar, temperature=1.0, seed=str(at)
        )
    for at in range(6):
        text = text_of(await made.collect(f"{at}"))
        assert len(text) == 48
        assert text[3::4] == "-" * 12
    assert made.loop.stats.preemptions > 0


# Aborts


async def test_an_abort_frees_the_blocks_within_two_steps(looped: Looped) -> None:
    made = looped()
    await made.submit("a", max_tokens=400)
    await made.sinks["a"].events.get()
    steps = made.loop.stats.steps
    made.loop.abort(["a"])
    events = await made.collect("a")
    assert done_of(events).reason is FinishReason.ABORT
    assert made.loop.stats.blocks_free == made.loop.stats.blocks_total
    taken = made.scheduler.stats().steps - steps
    told = len([event for event in events if isinstance(event, Delta)])
    assert taken <= told + 2, "steps that the loop had begun before it saw the abort"


@pytest.mark.parametrize("steps", range(7))
@pytest.mark.parametrize("max_tokens", [1, 3])
def test_an_abort_at_any_moment_leaves_nothing(
    steps: int, max_tokens: int, tiny: Any, engine: Any, tokenizer: Any
) -> None:
    """An abort that races with completion, at every step of the loop, without a thread."""
    scheduler, runner = engine.make(tiny("llama"), prefill_chunk_size=2)
    loop = EngineLoop(scheduler, runner, EngineMetrics("tiny", None), history=History())
    item = LiveRequest(
        Request(request_id="a", prompt_token_ids=(1, 2, 3), max_tokens=max_tokens, arrival=0.0),
        SamplingParams(prompt_len=3),
        TextStream(tokenizer, [1, 2, 3], stops=[], incremental=True),
        sink=engine.sink(),
    )
    moves: list[Any] = [lambda: loop._submit([item]), *[loop._step] * 6]
    moves.insert(steps, lambda: loop._abort(["a"]))
    for move in moves:
        move()
    if steps == 0:  # the abort came first, and the request ran to its end
        loop._abort(["a"])
    loop._abort(["a", "never heard of"])
    assert loop._live == {}
    assert not scheduler.has_work
    invariants.check(scheduler)
    done = [event for _, event in loop._outbox if isinstance(event, Done)]
    assert len(done) == 1
    last = loop._outbox[-1][1]
    assert last is done[0]


async def test_a_cancelled_submit_leaves_nothing(looped: Looped) -> None:
    made = looped()
    for at in range(20):
        task = asyncio.ensure_future(made.submit(f"{at}", max_tokens=500))
        await asyncio.sleep(0.001 * (at % 3))
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            continue
        made.loop.abort([f"{at}"])
    await made.idle()
    while made.loop._live:
        await asyncio.sleep(0.002)
    assert made.loop.stats.blocks_free == made.loop.stats.blocks_total


async def test_a_batch_of_requests_is_taken_whole_or_not_at_all(looped: Looped) -> None:
    made = looped()
    for bad in (made.request("b", range(1000)), made.request("c", [], max_tokens=5)):
        with pytest.raises(RejectedError):
            await made.loop.submit([made.request("a", max_tokens=50), bad])
        assert done_of(await made.collect("a")).reason is FinishReason.ABORT
    with pytest.raises(ValueError, match="token id 999"):
        await made.loop.submit([made.request("a"), made.request("d", logit_bias=((999, 1.0),))])
    assert done_of(await made.collect("a")).reason is FinishReason.ABORT
    assert made.loop._live == {}
    assert done_of(await made.run("a")).reason is FinishReason.LENGTH


@pytest.mark.timeout(240)
async def test_after_ten_thousand_requests_no_map_has_grown(looped: Looped) -> None:
    made = looped(max_num_batched_tokens=256, num_blocks=600, max_queue_len=20_000)
    for start in range(0, 10_000, 500):
        names = [f"{at}" for at in range(start, start + 500)]
        await made.loop.submit([made.request(name, [7, 9], max_tokens=1 + at % 2) for at, name in enumerate(names)])
        made.loop.abort(names[::50])
        for name in names:
            await made.collect(name)
            del made.sinks[name]
    await made.idle()
    assert made.loop._live == {}
    assert made.loop._outbox == []
    assert made.scheduler.state.live == {}
    assert made.loop._inbox._calls.qsize() == 0
    assert made.loop.stats.blocks_free == made.loop.stats.blocks_total


# Records


async def test_the_record_and_the_scheduler_agree(looped: Looped) -> None:
    """Including forks and cached, preempted and aborted requests."""
    made = looped(num_blocks=24, block_size=4, max_num_seqs=8)
    prompt = prompt_of(17)
    await made.run("first", prompt, max_tokens=2)
    requests = [made.request("lead", prompt, max_tokens=20)]
    requests += [made.request(f"fork {at}", prompt, max_tokens=20, request={"fork_of": "lead"}) for at in range(3)]
    requests += [made.request(f"other {at}", prompt_of(9, at), max_tokens=25) for at in range(4)]
    await made.loop.submit([*requests, made.request("left", prompt_of(5), max_tokens=30)])
    await made.sinks["left"].events.get()
    made.loop.abort(["left"])
    for each in requests:
        await made.collect(each.id)
    for record in (each.record for each in requests):
        told = await made.loop.explain(record.id)
        assert told is not None
        assert (record.arrival, record.started, record.first_token) == (told.arrival, told.started, told.first_token)
        assert (record.ended, str(record.reason)) == (told.ended, told.state)
        assert (record.prompt_tokens, record.cached_tokens) == (told.prompt_tokens, told.cached_tokens)
        assert (record.output_tokens, record.preemptions) == (told.output_tokens, told.num_preemptions)
    assert made.loop.stats.preemptions > 0, "the test is about them too"
    assert requests[0].record.cached_tokens > 0
    assert all(each.record.cached_tokens == 17 for each in requests[1:4])


# Config


async def test_an_slo_set_is_part_of_the_config_and_makes_a_generation(looped: Looped) -> None:
    made = looped()
    slo = SloSet(ttft_seconds=0.5)
    assert made.loop.state.slo is None
    assert (await made.loop.reconfigure({})).generation == 1
    first = await made.loop.reconfigure({}, slo=slo)
    assert (first.generation, first.slo, made.metrics.slo) == (2, slo, slo)
    assert (await made.loop.reconfigure({}, slo=slo)).generation == 2
    both = await made.loop.reconfigure({"decode_ratio": 0.2}, revision="r2", slo=SloSet(e2e_seconds=1.0))
    assert (both.generation, both.revision, both.config.decode_ratio) == (3, "r2", 0.2)
    kept = await made.loop.reconfigure({"decode_ratio": 0.3})
    assert (kept.generation, kept.slo) == (4, SloSet(e2e_seconds=1.0))
    gone = await made.loop.reconfigure({}, slo=None)
    assert (gone.generation, gone.slo, made.metrics.slo) == (5, None, None)
    with pytest.raises(StaleGenerationError):
        await made.loop.reconfigure({}, slo=slo, if_generation=4)
    assert made.loop.state == gone
