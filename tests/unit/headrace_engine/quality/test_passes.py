"""The passes measure the path that serves, token by token, whatever the scheduler does meanwhile."""

from typing import Any

import pytest
import torch

from headrace_core.scheduler.events import StepPlan, StepResult
from headrace_engine.errors import SettingsError
from headrace_engine.quality.offline import OfflineRequest, drive
from headrace_engine.quality.passes import choices, log_likelihoods, observe, spread


def greedy(seen: Any) -> dict[str, list[int]]:
    return {name: [choice.token for choice in outcome.greedy] for name, outcome in seen.outcomes.items()}


def test_greedy_outputs_are_those_of_the_engine_and_of_generate(tiny: Any, engine: Any, quality: Any) -> None:
    model = tiny("llama")
    samples = quality.samples(model)
    got = greedy(quality.seen(model, output_tokens=8))
    wanted = engine.run(*engine.make(model), [list(item.prompt) for item in samples], max_tokens=8)
    assert got == {item.name: tokens for item, tokens in zip(samples, wanted, strict=True)}
    assert got == greedy(quality.plain(model))


def test_every_token_of_a_text_is_scored_once_and_by_its_own_history(tiny: Any, quality: Any) -> None:
    model = tiny("llama")
    seen, samples = quality.seen(model), quality.samples(model)
    for item in samples:
        with torch.inference_mode():
            model.module.set_attn_implementation("eager")
            logits = model.module(input_ids=torch.tensor([item.tokens]), use_cache=False).logits[0]
            model.module.set_attn_implementation("headrace_paged")
        wanted = logits.double().log_softmax(-1)[range(len(item.tokens) - 1), list(item.tokens[1:])].tolist()
        outcome = seen.outcomes[item.name]
        assert len(outcome.forced) == len(item.tokens) - item.prompt_len
        assert list(outcome.prompt) == pytest.approx(wanted, abs=1e-5)
        assert list(outcome.forced) == pytest.approx(wanted[item.prompt_len - 1 :], abs=1e-5)


def test_the_passes_go_through_decodes_chunks_and_preemptions(tiny: Any, quality: Any) -> None:
    model = tiny("llama")
    plans: list[StepPlan] = []
    offline = quality.offline(model, num_blocks=30, prefill_chunk_size=5)

    class Recorded(type(offline.scheduler)):  # type: ignore[misc]
        def commit(self, plan: StepPlan, result: StepResult, now: float) -> Any:
            plans.append(plan)
            return super().commit(plan, result, now)

    offline.scheduler.__class__ = Recorded
    seen = observe(offline, quality.samples(model), concurrency=8, output_tokens=8, ended=lambda _: None)
    assert seen.tally.preemptions > 0
    assert seen.tally.tokens_recomputed > 0
    assert seen.tally.steps == len(plans)
    assert max(seq.num_tokens for plan in plans for seq in plan.seqs) == 5
    assert max(len(plan.seqs) for plan in plans) > 1
    decoded = {seq.request_id for plan in plans for seq in plan.seqs if not seq.is_prefill}
    assert decoded == set(seen.outcomes)


def test_the_same_run_twice_is_equal_to_the_last_bit(tiny: Any, quality: Any) -> None:
    model = tiny("qwen3")
    assert quality.seen(model, num_blocks=30) == quality.seen(model, num_blocks=30)


def test_as_many_requests_run_at_once_as_asked_for(tiny: Any, quality: Any) -> None:
    model = tiny("llama")
    offline = quality.offline(model)
    widths: list[int] = []

    def watch(plan: StepPlan, result: StepResult) -> StepResult:
        widths.append(len(plan.seqs))
        return result

    jobs = [OfflineRequest(name=str(at), prompt=(1, 2, 3), max_tokens=4) for at in range(7)]
    ended: list[str] = []
    failed = drive(offline.scheduler, offline.runner, jobs, concurrency=3, watch=watch, ended=ended.append)
    assert (max(widths), sorted(ended), failed) == (3, sorted(job.name for job in jobs), frozenset())
    assert not offline.scheduler.has_work


def test_a_short_queue_delays_and_refuses_nothing(tiny: Any, quality: Any) -> None:
    model = tiny("llama")
    offline = quality.offline(model, max_num_seqs=2, max_queue_len=0)
    seen = observe(offline, quality.samples(model, count=6), concurrency=6, output_tokens=2, ended=lambda _: None)
    assert greedy(seen) == greedy(quality.seen(model, count=6, output_tokens=2))


def test_a_text_that_the_config_cannot_hold_is_named(tiny: Any, quality: Any) -> None:
    model = tiny("llama")
    with pytest.raises(SettingsError, match="text prose-harbour cannot run under this config: prompt of 16 tokens"):
        quality.seen(model, num_blocks=5)


def test_a_text_whose_logits_are_not_numbers_fails_alone(tiny: Any, quality: Any) -> None:
    model = tiny("llama")
    broken = quality.samples(model)[3].tokens

    class Poisoned(quality.loses_one_position):  # type: ignore[misc, name-defined]
        def logits(self, seqs: Any, also: Any = ()) -> Any:
            logits = super(quality.loses_one_position, self).logits(seqs, also)
            sampling = [seq for seq in seqs if seq.samples]
            for row, seq in enumerate(sampling):
                if seq.request_id == "prose-science":
                    logits[row] = float("nan")
            return logits

    seen = quality.seen(model, Poisoned)
    assert broken  # the text exists
    assert [name for name, outcome in seen.outcomes.items() if outcome.failed] == ["prose-science"]
    assert all(len(outcome.greedy) == 8 for name, outcome in seen.outcomes.items() if name != "prose-science")


def test_texts_that_begin_alike_hit_the_prefix_cache_with_equal_results(tiny: Any, quality: Any, engine: Any) -> None:
    model = tiny("llama")
    samples = [item for item in quality.samples(model, count=100, most=120) if item.name.startswith("support-")]
    cold = quality.offline(model, enable_prefix_caching=False)
    warm = quality.offline(model, enable_prefix_caching=True)
    seen = [
        observe(offline, samples, concurrency=1, output_tokens=8, ended=lambda _: None) for offline in (cold, warm)
    ]  # fmt: skip
    assert seen[0].tally.cache_hits == 0
    assert seen[1].tally.cache_hits > 0
    comparison = quality.against(model, *seen)
    assert not comparison.beyond_rounding
    assert comparison.agreement.equal.estimate == 1


def test_likelihoods_do_not_depend_on_how_rows_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    logits, targets = torch.randn(10, 50), list(range(10))
    whole = log_likelihoods(logits, targets)
    assert whole == pytest.approx(logits.double().log_softmax(-1)[range(10), targets].tolist(), abs=1e-12)
    monkeypatch.setattr("headrace_engine.quality.passes.ROWS_AT_ONCE", 3)
    assert log_likelihoods(logits, targets) == whole


def test_a_small_vocabulary_and_ids_without_a_token_are_handled() -> None:
    logits = torch.tensor([[1.0, float("-inf"), 3.0]])
    (choice,) = choices(logits, [2])
    assert (choice.token, choice.margin) == (2, 2.0)
    assert spread(logits) == pytest.approx([2.0**0.5])
    assert spread(torch.tensor([[1.0, 3.0]])) == pytest.approx([2.0**0.5])
