"""A step's data for kernels: tables, lengths and slots that locate each row's keys."""

import random

import torch

from headrace_engine.attention.base import RowSpan
from headrace_engine.attention.kv_cache import GARBAGE_BLOCK, KvPool, LayerShape, make_pool
from headrace_engine.attention.step import SequenceRows, make_step


def pool_of(block_size: int) -> KvPool:
    shape = LayerShape(kv_heads=1, key_dim=2, value_dim=2)
    return make_pool(
        {0: shape}, num_blocks=3, block_size=block_size, device=torch.device("cpu"), dtype=torch.float32
    )  # fmt: skip


def test_a_decode_and_a_chunk_with_history() -> None:
    step = make_step([SequenceRows(5, 1, (7, 3)), SequenceRows(2, 8, (4, 9, 2))], pool_of(4))
    assert step.block_tables.tolist() == [[7, 3, GARBAGE_BLOCK], [4, 9, 2]]
    assert step.query_starts.tolist() == [0, 1, 9]
    assert step.key_lengths.tolist() == [6, 10]
    assert step.positions.tolist() == [5, 2, 3, 4, 5, 6, 7, 8, 9]
    assert step.slots.tolist() == [13, 18, 19, 36, 37, 38, 39, 8, 9]
    assert step.spans == (RowSpan(0, 1, 6), RowSpan(1, 8, 10))
    assert [span.start for span in step.spans] == [5, 2]
    assert {step.block_tables.dtype, step.query_starts.dtype, step.key_lengths.dtype} == {torch.int32}
    assert {step.slots.dtype, step.positions.dtype} == {torch.int64}


def test_blocks_beyond_the_keys_are_not_in_the_table() -> None:
    step = make_step([SequenceRows(0, 4, (5, 6, 8)), SequenceRows(3, 1, (1, 2))], pool_of(4))
    assert step.block_tables.tolist() == [[5], [1]]


def test_every_row_goes_to_its_position_in_the_block_of_the_table() -> None:
    draw = random.Random(3)
    for size in (1, 3, 16):
        spans = []
        for _ in range(6):
            start, rows = draw.randrange(40), draw.choice((1, 1, 2, 17, 50))
            spans.append(SequenceRows(start, rows, tuple(draw.sample(range(1, 500), -(-(start + rows) // size)))))
        step = make_step(spans, pool_of(size))
        expected = [
            span.table[at // size] * size + at % size
            for span in spans
            for at in range(span.start, span.start + span.rows)
        ]
        assert step.slots.tolist() == expected


def test_a_step_without_rows_is_empty() -> None:
    step = make_step([], pool_of(4))
    assert (step.block_tables.shape, step.query_starts.tolist(), step.slots.tolist()) == ((0, 0), [0], [])
