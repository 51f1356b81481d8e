"""Who runs in a step. In the shorthand, 'a1 b+4!' is: a decodes, 4 positions of b are prefilled and b samples."""

from headrace_core.scheduler.events import Reconfigured


def test_decodes_come_first_then_prefills_then_admission(driver) -> None:
    d = driver(max_num_batched_tokens=8)
    d.submit("a", 4)
    assert d.step() == "a+4!"
    d.submit("b", 10)
    d.submit("c", 3)
    assert d.steps(3) == ["a1 b+7", "a1 b+3! c+3!", "a1 b1 c1"]


def test_a_finished_sequences_place_is_taken_in_the_very_next_step(driver) -> None:
    d = driver(max_num_seqs=1)
    d.submit("a", 2, 2)
    d.submit("b", 2, 1)
    assert d.steps(3) == ["a+2!", "a1", "b+2!"]
    assert not d.scheduler.has_work


def test_each_generated_token_is_fed_at_its_position(driver) -> None:
    d = driver()
    d.submit("a", 3)
    d.step()
    row = d.plan().seqs[0]
    assert (row.start, row.token_ids, len(row.block_table)) == (3, (100,), 1)


def test_chunk_size_shares_the_step_between_prompts(driver) -> None:
    d = driver(prefill_chunk_size=4)
    d.submit("a", 6)
    d.submit("b", 6)
    assert d.steps(2) == ["a+4 b+4", "a+2! b+2!"]


def test_chunks_of_a_non_preemptible_prefill_run_back_to_back(driver) -> None:
    d = driver(prefill_chunk_size=4, preemptible=False)
    d.submit("z", 1)
    d.step()
    for name in "ab":
        d.submit(name, 10)
    assert d.steps(4) == ["z1 a+4", "z1 a+4", "z1 a+2! b+4", "z1 a1 b+4"]


def test_decode_ratio_keeps_a_share_of_the_budget_from_prefill_while_anything_decodes(driver) -> None:
    d = driver(max_num_batched_tokens=10, decode_ratio=0.75)
    d.submit("a", 30, 3)
    assert d.steps(3) == ["a+10"] * 2 + ["a+10!"]
    d.submit("b", 30)
    assert d.steps(3) == ["a1 b+2", "a1 b+2", "b+10"], "10 less 7.5 is 2 whole ones; all once nothing decodes"


def test_decode_ratio_never_starves_prefill(driver) -> None:
    d = driver(max_num_seqs=2, max_num_batched_tokens=2, decode_ratio=1 - 2**-53)
    d.submit("a", 1)
    d.step()
    d.submit("b", 2)
    assert d.steps(2) == ["a1 b+1", "a1 b+1!"]


def test_unchunked_prompts_go_whole_and_over_the_budget_only_alone(driver) -> None:
    d = driver(enable_chunked_prefill=False, max_num_batched_tokens=10)
    d.submit("a", 25)
    d.submit("b", 4)
    d.submit("c", 4)
    d.submit("d", 4)
    assert d.steps(3) == ["a+25!", "a1 b+4! c+4!", "a1 b1 c1 d+4!"]


def test_partial_prefill_limit_counts_only_prompts_left_part_prefilled(driver) -> None:
    d = driver(prefill_chunk_size=4, max_num_partial_prefills=1)
    d.submit("a", 3)
    d.submit("b", 12)
    d.submit("c", 8)
    d.submit("e", 1)
    assert d.steps(3) == ["a+3! b+4", "a1 b+4", "a1 b+4! c+4 e+1!"], "c waits for b, and e behind it"


def test_only_one_long_prompt_is_in_prefill_and_short_ones_pass(driver) -> None:
    d = driver(prefill_chunk_size=4, long_prefill_token_threshold=5)
    for name, prompt in (("a", 8), ("b", 8), ("c", 5)):
        d.submit(name, prompt)
    assert d.steps(4) == ["a+4 c+4", "a+4! c+1!", "a1 c1 b+4", "a1 c1 b+4!"]


def test_a_long_prompt_without_room_in_this_step_still_keeps_others_out(driver) -> None:
    d = driver(prefill_chunk_size=4, max_num_batched_tokens=8, long_prefill_token_threshold=5)
    d.submit("a", 9)
    d.submit("b", 5)
    assert d.step() == "a+4 b+4"
    d.submit("c", 9)
    assert d.steps(2) == ["a+4 b+1!", "b1 a+1!"]


def test_static_batch_is_filled_and_nobody_joins_until_its_last_sequence_ends(driver) -> None:
    d = driver(batching="static", max_num_seqs=2, max_num_batched_tokens=4)
    d.submit("a", 6, 1)
    d.submit("b", 3, 3)
    d.submit("c", 1, 1)
    assert d.step() == "a+4"
    assert d.steps(5) == ["a+2! b+2", "b+1!", "b1", "b1", "c+1!"]


def test_static_batch_is_closed_when_it_starts(driver) -> None:
    d = driver(batching="static", max_num_seqs=4)
    d.submit("a", 2, 2)
    d.step()
    d.submit("b", 2)
    assert d.steps(2) == ["a1", "b+2!"]


def test_a_static_batchs_long_prompts_do_not_interrupt_a_chunk_that_has_begun(driver) -> None:
    d = driver(
        batching="static", max_num_seqs=3, max_num_batched_tokens=9, long_prefill_token_threshold=5, preemptible=False
    )
    for name, prompt in (("a", 6), ("b", 6), ("c", 5)):
        d.submit(name, prompt)
    assert d.steps(2) == ["a+6! c+3", "a1 c+2! b+6!"]


def test_priority_orders_the_queue_lower_first_then_arrival(driver) -> None:
    d = driver(max_num_seqs=1, scheduling_policy="priority")
    for name, priority in (("a", 5), ("b", 5), ("c", -1)):
        d.submit(name, 1, 1, priority=priority)
    assert d.steps(3) == ["c+1!", "a+1!", "b+1!"]


def test_a_hot_change_is_in_force_with_the_next_plan(driver) -> None:
    d = driver(prefill_chunk_size=8)
    d.submit("a", 30)
    d.step()
    plan = d.plan()
    answer = d.scheduler.reconfigure({"prefill_chunk_size": 2}, d.now)
    assert isinstance(answer, Reconfigured)
    assert (answer.generation, plan.generation) == (2, 1)
    d.commit(plan)
    plan = d.plan()
    assert (plan.num_tokens, plan.generation) == (2, 2)


def test_policy_and_threshold_changes_reorder_the_queue(driver) -> None:
    d = driver(max_num_seqs=1)
    d.submit("a", 1, 1, priority=5)
    d.submit("b", 1, 1, priority=1)
    d.scheduler.reconfigure({"scheduling_policy": "priority"}, d.now)
    assert d.step() == "b+1!"


def test_lowering_the_sequence_cap_lets_running_sequences_go_on(driver) -> None:
    d = driver()
    for name in "abc":
        d.submit(name, 1, 3 if name == "a" else 6)
    d.step()
    d.submit("d", 1)
    d.scheduler.reconfigure({"max_num_seqs": 2, "max_num_batched_tokens": 2}, d.now)
    assert d.steps(2) == ["a1 b1 c1"] * 2, "above the budget, but nobody who runs is held back"
    assert d.steps(3) == ["b1 c1"] * 3
    assert d.step() == "d+1!"


def test_switching_chunking_off_finishes_a_part_prefilled_prompt_whole(driver) -> None:
    d = driver(prefill_chunk_size=4)
    d.submit("a", 40)
    d.step()
    d.scheduler.reconfigure({"enable_chunked_prefill": False}, d.now)
    assert d.step() == "a+36!"
