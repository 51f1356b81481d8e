"""Several completions of one prompt. In the shorthand 'b<a!' is: b samples from the last row of a; blocks hold 4."""

import pytest

from headrace_core.scheduler import invariants
from headrace_core.scheduler.events import (
    Admitted,
    Finished,
    FinishReason,
    Rejected,
    Started,
    StepResult,
    Token,
)

PROMPT = tuple(range(100, 106))  # a block and a half


def submit_forks(d, names: str, prompt=PROMPT, output: int = 10, **fields) -> None:
    first, *others = names
    d.submit(first, prompt, output, **fields)
    for name in others:
        d.submit(name, prompt, output, fork_of=first, **fields)


def test_forks_sample_with_their_sibling_and_share_its_blocks(driver) -> None:
    d = driver()
    submit_forks(d, "abc")
    plan = d.plan()
    a, b, c = plan.seqs
    assert (b.fork_of, b.start, b.token_ids, b.samples, b.is_prefill) == ("a", 6, (), True, True)
    assert a.block_table == b.block_table == c.block_table
    assert (plan.num_tokens, d.scheduler.state.pool.used) == (6, 2)
    assert d.commit(plan) == (
        Started("a", 4.0), Token("a", 100, 0), Started("b", 4.0, 6), Token("b", 100, 0), Started("c", 4.0, 6),
        Token("c", 100, 0),
    )  # fmt: skip
    assert d.step() == "a1 b1 c1"


def test_who_writes_to_a_shared_block_copies_it_first_and_the_last_need_not(driver) -> None:
    d = driver()
    submit_forks(d, "abc")
    d.step()
    plan = d.plan()
    tables = [row.block_table for row in plan.seqs]
    assert [source for source, _ in plan.copies] == [tables[2][1], tables[2][1]]
    assert [target for _, target in plan.copies] == [tables[0][1], tables[1][1]]
    assert len({table[0] for table in tables}) == 1, "the full block stays shared"
    assert len({table[1] for table in tables}) == 3
    d.commit(plan)
    assert d.plan().copies == ()


def test_a_full_last_block_is_never_copied(driver) -> None:
    d = driver()
    submit_forks(d, "ab", tuple(range(8)))
    d.step()
    plan = d.plan()
    assert plan.copies == ()
    assert plan.seqs[0].block_table[:2] == plan.seqs[1].block_table[:2]
    assert plan.seqs[0].block_table[2] != plan.seqs[1].block_table[2]


def test_a_fork_comes_right_after_its_siblings_row(driver) -> None:
    d = driver()
    d.submit("z", 1)
    d.step()
    submit_forks(d, "ab")
    d.submit("y", 3)
    assert d.step() == "z1 a+6! b<a! y+3!"


def test_a_fork_waits_for_its_siblings_prefill_in_nobodys_way(driver) -> None:
    d = driver(prefill_chunk_size=4)
    submit_forks(d, "ab", tuple(range(10)))
    d.submit("y", 3)
    assert d.steps(3) == ["a+4 y+3!", "y1 a+4", "y1 a+2! b<a!"]


def test_without_a_place_a_fork_waits_and_finds_the_prompt_in_the_cache(driver) -> None:
    d = driver(max_num_seqs=2)
    submit_forks(d, "abc", tuple(range(9)), 2)
    assert d.steps(3) == ["a+9! b<a!", "a1 b1", "c+1!"]
    assert d.scheduler.stats().cache_hits == 8


def test_without_a_cache_a_fork_that_had_no_place_computes_its_prompt(driver) -> None:
    d = driver(max_num_seqs=1, enable_prefix_caching=False)
    submit_forks(d, "ab", output=1)
    assert d.steps(2) == ["a+6!", "b+6!"]


def test_the_first_that_had_no_place_takes_the_others_along(driver) -> None:
    d = driver(max_num_seqs=2, enable_prefix_caching=False)
    submit_forks(d, "abcd", output=1)
    assert d.steps(2) == ["a+6! b<a!", "c+6! d<c!"]


def test_without_memory_a_fork_waits(driver) -> None:
    d = driver(num_blocks=6, expected=[40])
    submit_forks(d, "ab", output=12)
    assert d.step() == "a+6!", "each is expected to need 5 blocks, 5 there are"
    assert d.scheduler.stats().waiting == 1


@pytest.mark.parametrize("when", ["waiting", "prefill", "in flight"])
def test_when_the_sibling_ends_first_a_fork_is_an_ordinary_request(driver, when: str) -> None:
    d = driver(prefill_chunk_size=4)
    submit_forks(d, "abc", tuple(range(10)))
    if when == "prefill":
        d.step()
    elif when == "in flight":
        d.steps(2)
        plan = d.plan()
        d.scheduler.abort("a", d.now)
        invariants.check(d.scheduler)
        assert [type(outcome).__name__ for outcome in d.commit(plan)] == ["Started", "Token"] * 2
        assert d.step() == "b1 c1", "the pass that filled their blocks was a good one"
        return
    d.scheduler.abort("a", d.now)
    invariants.check(d.scheduler)
    assert d.steps(3 if when == "waiting" else 2)[-1].endswith("c<b!")


def test_a_fork_of_what_has_ended_or_begun_to_generate_is_an_ordinary_request(driver) -> None:
    d = driver()
    d.submit("a", PROMPT)
    d.step()
    d.submit("b", PROMPT, fork_of="a")
    d.submit("c", PROMPT, fork_of="nobody")
    assert d.step() == "a1 b+2! c+2!"


def test_a_fork_that_comes_while_the_siblings_last_chunk_runs_is_an_ordinary_request(driver) -> None:
    d = driver()
    d.submit("a", PROMPT)
    plan = d.plan()
    d.submit("b", PROMPT, fork_of="a")
    invariants.check(d.scheduler)
    d.commit(plan)
    assert d.step() == "a1 b+2!"


def test_a_fork_of_a_fork_waits_for_the_same_sibling(driver) -> None:
    d = driver()
    d.submit("a", PROMPT)
    d.submit("b", PROMPT, fork_of="a")
    d.submit("c", PROMPT, fork_of="b")
    assert d.step() == "a+6! b<a! c<a!"


def test_a_fork_of_another_prompt_is_the_drivers_mistake(driver) -> None:
    d = driver()
    d.submit("a", PROMPT)
    with pytest.raises(ValueError, match="'b': fork_of names 'a', which has another prompt"):
        d.submit("b", PROMPT[1:], fork_of="a")
    with pytest.raises(ValueError, match="another prompt or cache_salt"):
        d.submit("b", PROMPT, fork_of="a", cache_salt="x")


def test_a_request_that_must_compute_every_position_does_not_fork(driver) -> None:
    d = driver()
    submit_forks(d, "ab", reads_cache=False)
    assert d.step() == "a+6! b+6!"


def test_a_static_batch_has_no_forks(driver) -> None:
    d = driver(batching="static")
    submit_forks(d, "ab")
    assert d.step() == "a+6! b+6!"


def test_a_failed_sibling_sends_a_fork_back_to_the_queue(driver) -> None:
    d = driver()
    submit_forks(d, "ab")
    plan = d.plan()
    d.now += 1
    outcomes = d.scheduler.commit(plan, StepResult(tokens={}, failed=frozenset("a")), d.now)
    invariants.check(d.scheduler)
    assert outcomes == (Started("a", 3.0), Finished("a", FinishReason.ERROR, 0))
    plan = d.plan()
    assert d.shorthand(plan) == "b+6!", "its blocks may be as wrong as the sibling's"
    assert d.commit(plan) == (Started("b", d.now - 1), Token("b", 100, 0)), "it starts now, and is told so once"


def test_a_failed_fork_leaves_its_sibling_alone(driver) -> None:
    d = driver()
    submit_forks(d, "ab")
    outcomes = d.commit(d.plan(), failed=["b"])
    assert Finished("b", FinishReason.ERROR, 0) in outcomes
    plan = d.plan()
    assert (len(plan.seqs), plan.copies) == (1, ()), "nobody else holds the block any more"


def test_a_sibling_that_ends_with_its_first_token_leaves_the_blocks_to_its_fork(driver) -> None:
    d = driver()
    d.submit("a", PROMPT, 1)
    d.submit("b", PROMPT, 5, fork_of="a")
    assert d.steps(2) == ["a+6! b<a!", "b1"]


def test_an_aborted_fork_leaves_the_others(driver) -> None:
    d = driver()
    submit_forks(d, "abc")
    d.scheduler.abort("b", d.now)
    plan = d.plan()
    d.scheduler.abort("c", d.now)
    d.commit(plan)
    assert (d.step(), d.scheduler.state.pool.used) == ("a1", 2)


@pytest.mark.parametrize(("left", "step"), [(2, "a1 b1 c1"), (1, "-c a1 b1"), (0, "-c -b a1")])
def test_blocks_for_copies_are_secured_like_growth(driver, left: int, step: str) -> None:
    d = driver()
    submit_forks(d, "abc")
    d.step()
    pool = d.scheduler.state.pool
    pool.allocate(pool.free - left)  # as if somebody else held them: rule 1 never lets it come to this
    plan = d.scheduler.plan(d.now)
    assert plan is not None
    assert d.shorthand(plan) == step
    assert len(plan.copies) == left


def test_a_preempted_fork_comes_back_as_an_ordinary_request(driver) -> None:
    d = driver(num_blocks=5, expected=[1])
    submit_forks(d, "ab", output=9)
    log = []
    while d.scheduler.has_work:
        log.append(d.step())
    assert any("-b" in step for step in log)
    assert "b<" not in log[-1]
    assert d.scheduler.stats().preemptions == 1


def test_queue_limits_count_forks_as_requests_and_not_their_tokens(driver) -> None:
    d = driver(max_queue_tokens=10)
    submit_forks(d, "abc")
    assert (d.scheduler.stats().waiting, d.scheduler.stats().waiting_tokens) == (3, 6)
    d = driver(max_num_seqs=1, max_queue_len=1)
    d.submit("a", PROMPT)
    d.submit("b", PROMPT, fork_of="a")
    assert isinstance(d.submit("c", PROMPT, fork_of="a"), Rejected)


def test_forks_of_one_that_was_aborted_publish_the_same_whatever_the_hashes(driver) -> None:
    d = driver()
    d.scheduler.state.cache.hasher = lambda _: b"same"  # so that each block displaces another
    submit_forks(d, "abc", prompt=tuple(range(12)))
    plan = d.plan()
    d.scheduler.abort("a", d.now)
    d.commit(plan)
    assert d.step() == "b1 c1"


def test_a_queue_of_forks_alone_takes_any_prompt(driver) -> None:
    d = driver(max_queue_tokens=10, max_num_batched_tokens=8)
    submit_forks(d, "ab", prompt=tuple(range(9)))
    d.plan()  # the first chunk of a; b waits for the last
    assert (d.scheduler.stats().waiting, d.scheduler.stats().waiting_tokens) == (1, 0)
    assert isinstance(d.submit("c", 20), Admitted)


def test_forks_publish_what_they_generate(driver) -> None:
    d = driver()
    submit_forks(d, "ab", output=7)
    while d.scheduler.has_work:
        d.step()
    d.submit("c", (*PROMPT, *[100] * 7))
    assert d.step() == "c+1!"
