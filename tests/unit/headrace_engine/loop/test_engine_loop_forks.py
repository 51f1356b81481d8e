"""Several choices of one prompt: prefilled once, each with its own text, in any batch and after preemption."""

import random
from typing import Any

import pytest

from headrace_core.scheduler import invariants
from headrace_core.scheduler.events import FinishReason, StepPlan
from headrace_engine.outputs import Done, Event, PromptScored

Looped = Any


def tokens_of(events: list[Event]) -> list[int]:
    return [token for event in events if not isinstance(event, PromptScored) for token in event.token_ids]


def end_of(events: list[Event]) -> Done:
    assert isinstance(events[-1], Done)
    return events[-1]


def prompt_of(length: int, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(256) for _ in range(length)]


def choices(made: Looped, name: str, prompt: list[int], count: int, **options: Any) -> list[Any]:
    """Requests for n choices: the first is the lead, the others are its forks."""
    lead, *rest = (
        made.request(
            f"{name}{at}", prompt, seed=f"request-7-{at}", temperature=1.0,
            request=({} if at == 0 else {"fork_of": f"{name}0"}) | options.get("request", {}),
            **{key: value for key, value in options.items() if key != "request"},
        )
        for at in range(count)
    )  # fmt: skip
    return [lead, *rest]


def watch_plans(made: Looped, monkeypatch: pytest.MonkeyPatch) -> list[StepPlan]:
    plans: list[StepPlan] = []
    real = made.runner.run

    def run(plan: StepPlan, requests: Any) -> Any:
        plans.append(plan)
        return real(plan, requests)

    monkeypatch.setattr(made.runner, "run", run)
    return plans


@pytest.mark.parametrize(("length", "chunk"), [(10, None), (12, None), (21, 5), (1, None)])
async def test_four_choices_of_one_seed_differ_and_equal_those_without_forks(
    looped: Looped, monkeypatch: pytest.MonkeyPatch, length: int, chunk: int | None
) -> None:
    """The prompt is prefilled once, and its blocks are shared until one is written to."""
    made = looped(prefill_chunk_size=chunk, enable_prefix_caching=False)
    prompt = prompt_of(length)
    plans = watch_plans(made, monkeypatch)
    await made.loop.submit(choices(made, "a", prompt, 4, max_tokens=30))
    texts = [tokens_of(await made.collect(f"a{at}")) for at in range(4)]
    forks = [seq for plan in plans for seq in plan.seqs if seq.fork_of is not None]
    assert [seq.fork_of for seq in forks] == ["a0"] * 3
    assert sum(plan.num_prefill_tokens for plan in plans) == length
    assert (length % 4 == 0) == (not any(plan.copies for plan in plans))
    assert len({tuple(text) for text in texts}) == 4
    for at in range(4):
        options = {"seed": f"request-7-{at}", "temperature": 1.0}
        assert tokens_of(await made.run(f"alone {at}", prompt, max_tokens=30, **options)) == texts[at]
    await made.idle()
    assert made.loop.stats.blocks_free == made.loop.stats.blocks_total
    invariants.check(made.scheduler)


async def test_forks_survive_preemption_and_company(looped: Looped) -> None:
    plain = looped()
    made = looped(num_blocks=26, max_num_batched_tokens=24, prefill_chunk_size=8)
    prompts = [prompt_of(9 + 3 * at, seed=at) for at in range(3)]
    for at, prompt in enumerate(prompts):
        await made.loop.submit(choices(made, f"{at}-", prompt, 3, max_tokens=30, presence_penalty=0.4))
    for at, prompt in enumerate(prompts):
        for way in range(3):
            options = {"seed": f"request-7-{way}", "temperature": 1.0, "presence_penalty": 0.4}
            alone = await plain.run(f"{at}-{way}", prompt, max_tokens=30, **options)
            assert tokens_of(await made.collect(f"{at}-{way}")) == tokens_of(alone)
    assert made.loop.stats.preemptions > 0
    await made.idle()
    assert made.loop.stats.blocks_free == made.loop.stats.blocks_total


async def test_all_choices_have_the_prompts_scores(looped: Looped) -> None:
    made = looped(prefill_chunk_size=4)
    prompt = prompt_of(15)
    asked = {"prompt_logprobs": 2, "request": {"reads_cache": False}}
    await made.loop.submit(choices(made, "a", prompt, 3, max_tokens=2, **asked))
    told = [(await made.collect(f"a{at}"))[0] for at in range(3)]
    assert all(isinstance(event, PromptScored) for event in told)
    assert told[0] == told[1] == told[2]
    assert [score and score.token_id for score in told[0].scores] == [None, *prompt[1:]]  # type: ignore[union-attr]


async def test_a_fork_that_asks_for_more_than_its_lead_fails_with_a_message(looped: Looped) -> None:
    made = looped()
    lead, fork = choices(made, "a", prompt_of(6), 2)
    fork = made.request("a1", prompt_of(6), prompt_logprobs=1, request={"fork_of": "a0", "reads_cache": False})
    await made.loop.submit([lead, fork])
    assert end_of(await made.collect("a0")).reason is FinishReason.LENGTH
    done = end_of(await made.collect("a1"))
    assert done.reason is FinishReason.ERROR or done.num_output_tokens == 8, "or it was prefilled on its own"
    await made.idle()
    assert made.loop.stats.blocks_free == made.loop.stats.blocks_total


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_a_choice_that_is_aborted_leaves_the_others(looped: Looped, gone: int) -> None:
    made = looped()
    prompt = prompt_of(10)
    await made.loop.submit(choices(made, "a", prompt, 3, max_tokens=60))
    await made.sinks[f"a{gone}"].events.get()
    made.loop.abort([f"a{gone}"])
    assert end_of(await made.collect(f"a{gone}")).reason is FinishReason.ABORT
    for at in {0, 1, 2} - {gone}:
        text = tokens_of(await made.collect(f"a{at}"))
        options = {"seed": f"request-7-{at}", "temperature": 1.0}
        assert text == tokens_of(await made.run(f"alone {at}", prompt, max_tokens=60, **options))
    await made.idle()
    assert made.loop.stats.blocks_free == made.loop.stats.blocks_total


async def test_the_cached_tokens_of_a_warm_prompt_are_reported(looped: Looped) -> None:
    made = looped()
    prompt = prompt_of(20)
    cold = end_of(await made.run("a", prompt))
    warm = await made.run("b", prompt)
    assert (cold.cached_tokens, end_of(warm).cached_tokens) == (0, 16)
    scored = await made.run("c", prompt, prompt_logprobs=0, request={"reads_cache": False})
    assert end_of(scored).cached_tokens == 0
    assert len(scored[0].scores) == 20  # type: ignore[union-attr]
    refused = end_of(await made.run("d", prompt, prompt_logprobs=0))
    assert "reads_cache=False" in str(refused.problem)


async def test_a_request_is_explained(looped: Looped) -> None:
    made = looped()
    await made.run("a")
    explanation = await made.loop.explain("a")
    assert explanation is not None
    assert explanation.to_dict()
    assert await made.loop.explain("never heard of") is None
