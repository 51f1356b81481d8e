"""What is found again, what never is. Blocks have 4 tokens; in the shorthand 'a+4' 4 positions are computed."""

import pytest

from headrace_core.scheduler import invariants
from headrace_core.scheduler.events import Finished, FinishReason, Started, StepResult

PROMPT = tuple(range(100, 112))  # 3 blocks


def run_alone(d, name: str, prompt, output: int = 1, **fields) -> list[str]:
    d.submit(name, prompt, output, **fields)
    log = []
    while d.scheduler.has_work:
        log.append(d.step())
    return log


def test_a_second_request_computes_only_what_the_first_has_not(driver) -> None:
    d = driver()
    assert run_alone(d, "a", PROMPT) == ["a+12!"]
    assert run_alone(d, "b", (*PROMPT, 1, 2)) == ["b+2!"]
    assert run_alone(d, "c", (*PROMPT[:8], 7, 7, 7, 7)) == ["c+4!"]
    stats = d.scheduler.stats()
    assert (stats.cache_queries, stats.cache_hits, stats.tokens_prefill) == (12 + 14 + 12, 0 + 12 + 8, 12 + 2 + 4)
    assert (stats.kv_usage, stats.blocks_free) == (0.0, stats.blocks_total)


def test_the_last_token_is_always_computed_again_into_an_own_block(driver) -> None:
    d = driver()
    run_alone(d, "a", PROMPT)
    d.submit("b", PROMPT)
    row = d.plan().seqs[0]
    assert (row.start, row.num_tokens) == (8, 4), "it gives the logits"
    assert len(set(row.block_table)) == 3
    entry = d.scheduler.state.cache.entry_of(row.block_table[2])
    assert entry is None, "the third block of the first request is not written to"


def test_started_tells_the_cached_tokens(driver) -> None:
    d = driver()
    run_alone(d, "a", PROMPT)
    d.submit("b", (*PROMPT, 1))
    assert d.commit(d.plan())[0] == Started("b", d.now - 1, 12)


def test_generated_tokens_are_found_too(driver) -> None:
    d = driver()
    run_alone(d, "a", PROMPT[:3], 6)  # 3 + 5 positions have their KV: the last token is never fed back
    assert run_alone(d, "b", (*PROMPT[:3], *[100] * 6)) == ["b+1!"]


def test_blocks_are_published_when_the_pass_that_filled_them_is_committed(driver) -> None:
    d = driver(max_num_batched_tokens=8)
    d.submit("a", (*PROMPT, 1, 2, 3, 4))
    plan = d.plan()
    d.submit("b", PROMPT)
    assert d.scheduler.stats().blocks_cached == 0
    assert not d.scheduler.state.cache.entries(), "the plan alone fills nothing"
    d.commit(plan)
    assert len(d.scheduler.state.cache.entries()) == 2
    assert d.steps(2) == ["a+8!", "a1 b+4!"]


def test_running_sequences_share_blocks_and_usage_counts_them_once(driver) -> None:
    d = driver()
    d.submit("a", PROMPT)
    d.step()
    d.submit("b", (*PROMPT, 1, 2))
    d.step()
    a, b = d.scheduler.state.running.values()
    assert a.blocks[:3] == b.blocks[:3]
    assert a.blocks[3] != b.blocks[3]
    assert d.scheduler.state.pool.used == 5
    d.scheduler.abort("a", d.now)
    invariants.check(d.scheduler)
    assert d.scheduler.state.pool.used == 4


def test_equal_content_is_published_once(driver) -> None:
    d = driver()
    d.submit("a", PROMPT)
    d.submit("b", PROMPT)
    assert d.step() == "a+12! b+12!"
    cache = d.scheduler.state.cache
    assert {entry.owner for entry in cache.entries()} == {0}
    d.scheduler.abort("a", d.now)
    d.scheduler.abort("b", d.now)
    stats = d.scheduler.stats()
    assert (stats.blocks_cached, stats.blocks_free) == (3, stats.blocks_total)


@pytest.mark.parametrize("field", [{"cache_salt": "tenant"}, {"reads_cache": False}])
def test_who_may_not_read_the_cache_computes_everything(driver, field) -> None:
    d = driver()
    run_alone(d, "a", PROMPT)
    assert run_alone(d, "b", PROMPT, **field) == ["b+12!"]


def test_a_request_that_does_not_read_the_cache_counts_no_query_but_fills_it(driver) -> None:
    d = driver()
    assert run_alone(d, "a", PROMPT, reads_cache=False) == ["a+12!"]
    assert d.scheduler.stats().cache_queries == 0
    assert run_alone(d, "b", PROMPT) == ["b+4!"]


def test_even_a_colliding_hash_keeps_salts_apart(driver) -> None:
    d = driver()
    d.scheduler.state.cache.hasher = lambda data: b"same"
    assert run_alone(d, "a", PROMPT[:5], cache_salt="x") == ["a+5!"]
    assert run_alone(d, "b", PROMPT[:5], cache_salt="y") == ["b+5!"]
    assert run_alone(d, "c", PROMPT[:5], cache_salt="y") == ["c+1!"]


def test_two_adapters_share_no_block(driver) -> None:
    """KV of one adapter was used for another: the key left out what else changes KV."""
    d = driver()
    d.submit("a", PROMPT, cache_salt="adapter-1@v1")
    d.step()
    d.submit("b", PROMPT, cache_salt="adapter-1@v2")
    assert d.step() == "a1 b+12!"
    a, b = d.scheduler.state.running.values()
    assert not set(a.blocks) & set(b.blocks)


def test_a_changed_adapter_scale_between_two_turns_computes_the_prefix_again(driver) -> None:
    """The KV of the first turn, made at another scale, was used for the second."""
    d = driver()
    run_alone(d, "turn1", PROMPT, 4, cache_salt="scale=1.0")
    turn2 = (*PROMPT, 100, 100, 100, 100, 5)
    assert run_alone(d, "turn2", turn2, cache_salt="scale=0.5") == ["turn2+17!"]
    assert run_alone(d, "turn2", turn2, cache_salt="scale=1.0") == ["turn2+5!"], "12 + 3 positions have their KV"


def test_another_namespace_has_other_keys(driver) -> None:
    keys = []
    for namespace in ("model@1", "model@2"):
        d = driver(cache_namespace=namespace)
        run_alone(d, "a", PROMPT)
        keys.append({entry.key[0] for entry in d.scheduler.state.cache.entries()})
    assert not keys[0] & keys[1]


def test_switched_off_nothing_is_kept(driver) -> None:
    d = driver(enable_prefix_caching=False)
    for name in "ab":
        assert run_alone(d, name, PROMPT) == [f"{name}+12!"]
    stats = d.scheduler.stats()
    assert (stats.cache_queries, stats.cache_hits, stats.blocks_cached) == (0, 0, 0)


@pytest.mark.parametrize("mask", [0, 1, 255])
def test_a_colliding_hash_costs_a_miss_and_never_a_wrong_hit(driver, mask: int) -> None:
    d = driver()
    real = d.scheduler.state.cache.hasher
    d.scheduler.state.cache.hasher = lambda data: bytes([real(data)[0] & mask])
    prompts = {f"r{n}": tuple((n * k) % 5 for k in range(12 if n % 2 else 5)) for n in range(30)}
    for name, prompt in prompts.items():
        d.submit(name, prompt, 1)
        row = d.plan().seqs[0]
        for index in range(row.start // 4):
            entry = d.scheduler.state.cache.entry_of(row.block_table[index])
            owner = f"r{entry.owner}"
            assert prompts[owner][: 4 * (index + 1)] == prompt[: 4 * (index + 1)], "the whole beginning is the same"
        d.commit(d.scheduler.in_flight)


def test_the_same_block_behind_another_beginning_is_another_block(driver) -> None:
    d = driver()
    run_alone(d, "a", (1, 1, 1, 1, 2, 2, 2, 2, 3))
    assert run_alone(d, "b", (9, 9, 9, 9, 2, 2, 2, 2, 3)) == ["b+9!"]


def test_a_failed_request_publishes_nothing_and_what_it_had_published_is_forgotten(driver) -> None:
    d = driver(max_num_batched_tokens=8)
    d.submit("a", (*PROMPT, 1, 2, 3, 4))
    d.step()
    assert len(d.scheduler.state.cache.entries()) == 2
    d.commit(d.plan(), failed=["a"])
    assert not d.scheduler.state.cache.entries()
    assert run_alone(d, "b", PROMPT) == ["b+8", "b+4!"]


def test_a_failed_request_leaves_what_others_published(driver) -> None:
    d = driver()
    run_alone(d, "a", PROMPT)
    d.submit("b", (*PROMPT, 1, 2, 3, 4, 5))
    d.step()
    assert len(d.scheduler.state.cache.entries()) == 4
    d.commit(d.plan(), failed=["b"])
    assert len(d.scheduler.state.cache.entries()) == 3
    assert run_alone(d, "c", (*PROMPT, 1, 2, 3, 4, 5)) == ["c+5!"]


def test_what_was_built_on_a_forgotten_block_is_not_found(driver) -> None:
    d = driver()
    d.submit("a", PROMPT[:8])
    d.step()
    d.submit("b", (*PROMPT[:8], 1, 2, 3, 4, 5), 20)
    d.step()
    d.commit(d.plan(), failed=["a"])
    assert d.scheduler.state.live["b"].blocks
    assert run_alone(d, "c", (*PROMPT[:8], 1, 2, 3, 4, 6))[0] == "b1 c+13!"
    invariants.check(d.scheduler)


def test_who_holds_a_forgotten_block_publishes_nothing_behind_it(driver) -> None:
    d = driver()
    d.submit("a", PROMPT[:8])
    d.step()
    d.submit("b", (*PROMPT[:8], 1), 20)
    d.step()
    d.commit(d.plan(), failed=["a"])
    d.steps(12)
    assert not d.scheduler.state.cache.entries(), "all that b computes rests on the first two blocks"


def test_who_has_a_copy_of_its_own_publishes_that_when_the_other_is_gone(driver) -> None:
    d = driver(num_blocks=12)
    d.submit("a", PROMPT, 1)
    d.submit("b", PROMPT, 30)
    assert d.step() == "a+12! b+12!", "what a computed is published, b has the same"
    d.submit("y", 17, 1)
    assert d.step() == "b1 y+17!", "which took the third block of a"
    d.steps(3)
    owners = {entry.block: entry.owner for entry in d.scheduler.state.cache.entries()}
    assert [owners.get(block) for block in d.scheduler.state.live["b"].blocks] == [None, None, 1, 1]
    d.submit("c", (*PROMPT, 5), 1)
    assert d.step() == "b1 c+1!"


def test_a_request_that_ended_before_its_commit_publishes_nothing(driver) -> None:
    d = driver()
    d.submit("a", PROMPT)
    plan = d.plan()
    d.scheduler.abort("a", d.now)
    assert d.commit(plan) == ()
    assert not d.scheduler.state.cache.entries()
    assert d.scheduler.stats().tokens_discarded == 12


def test_content_is_given_up_for_new_requests_tail_first(driver) -> None:
    d = driver(num_blocks=6)
    run_alone(d, "a", PROMPT)
    run_alone(d, "b", 8)
    assert d.scheduler.stats().blocks_cached == 5
    run_alone(d, "c", 4)
    assert run_alone(d, "d", PROMPT) == ["d+4!"], "only the third block of a had to go, which d fills anew"


def test_a_preempted_request_finds_what_nobody_needed_meanwhile(driver) -> None:
    d = driver(num_blocks=9, expected=[1])
    d.submit("a", 8, 13)
    d.submit("b", 12, 6)
    log = []
    while d.scheduler.has_work:
        log.append(d.step())
    assert log[5] == "-b a1"
    assert log[-1] == "b+5!", "17 tokens, the first 12 are still there"
    stats = d.scheduler.stats()
    assert (stats.tokens_recomputed, stats.tokens_prefill) == (4, 8 + 12 + 5)
    assert (stats.cache_queries, stats.cache_hits) == (20, 0), "only prompts of new requests count"


def test_discarded_tokens_are_those_computed_for_nothing(driver) -> None:
    d = driver()
    d.submit("a", PROMPT, 10)
    d.submit("b", 6, 10)
    d.steps(3)
    d.scheduler.abort("a", d.now)
    assert d.scheduler.stats().tokens_discarded == 12 + 2
    d.commit(d.plan(), failed=["b"])
    assert d.scheduler.stats().tokens_discarded == 12 + 2 + 6 + 3
    stats = d.scheduler.stats()
    assert stats.tokens_prefill + stats.tokens_decode == stats.tokens_discarded, "nothing was of use"


def test_a_request_that_a_stop_string_ended_is_of_use(driver) -> None:
    d = driver()
    d.submit("a", PROMPT, 10)
    d.steps(3)
    assert d.scheduler.finish("a", FinishReason.STOP, d.now) == Finished("a", FinishReason.STOP, 3)
    assert d.scheduler.stats().tokens_discarded == 0


def test_what_an_aborted_request_had_computed_can_be_found(driver) -> None:
    d = driver(max_num_batched_tokens=8)
    d.submit("a", (*PROMPT, 1, 2, 3, 4))
    plan = d.plan()
    d.commit(plan)
    d.scheduler.abort("a", d.now)
    assert run_alone(d, "b", PROMPT) == ["b+4!"]


def test_asking_for_a_prompt_again_and_again_does_not_compute_its_keys_again(driver) -> None:
    d = driver(num_blocks=12, max_model_len=100)
    run_alone(d, "a", PROMPT)
    d.submit("b", 32, 8)
    d.step()
    calls = []
    real = d.scheduler.state.cache.hasher
    d.scheduler.state.cache.hasher = lambda data: calls.append(data) or real(data)
    d.submit("c", (*PROMPT, *range(20)), 5)
    d.steps(1)
    first = len(calls)
    d.steps(2)
    assert (d.scheduler.stats().waiting, len(calls)) == (1, first)


def test_no_plan_hands_out_a_block_that_the_step_in_flight_may_still_write(driver) -> None:
    d = driver()
    d.submit("a", PROMPT)
    plan = d.plan()
    d.scheduler.abort("a", d.now)
    d.submit("b", PROMPT)
    with pytest.raises(RuntimeError, match="in flight"):
        d.scheduler.plan(d.now)
    d.scheduler.commit(plan, StepResult(tokens={}), d.now)
    assert d.step() == "b+12!"


def test_who_does_not_read_computes_everything_again_after_a_preemption(driver) -> None:
    d = driver(num_blocks=9, expected=[1])
    d.submit("a", 8, 13)
    d.submit("b", 12, 6, reads_cache=False)
    log = []
    while d.scheduler.has_work:
        log.append(d.step())
    assert (log[5], log[-1]) == ("-b a1", "b+17!")
