"""The paged attention's results, and what it reads and holds: limited by windows and tiles, never a step squared."""

import types
from typing import Any

import pytest
import torch

from headrace_engine.attention import sdpa, tiles
from headrace_engine.attention.interface import paged_attention
from headrace_engine.attention.kv_cache import KvPool, LayerShape, make_pool
from headrace_engine.attention.sdpa import SdpaBackend, SdpaStep
from headrace_engine.attention.step import SequenceRows, make_step

LAYER = types.SimpleNamespace(layer_idx=0)
HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 16, 4
FP32_BOUND = 1e-5  # values up to 4; scores up to 100, whose last bits the exponential turns into 1e-5 of a weight


def pool_of(blocks: int, dtype: torch.dtype = torch.float32) -> KvPool:
    shape = LayerShape(kv_heads=KV_HEADS, key_dim=DIM, value_dim=DIM)
    return make_pool({0: shape}, num_blocks=blocks, block_size=BLOCK, device=torch.device("cpu"), dtype=dtype)


def tables(*lengths: int) -> list[tuple[int, ...]]:
    found, at = [], 1
    for length in lengths:
        count = -(-length // BLOCK)
        found.append(tuple(reversed(range(at, at + count))))
        at += count
    return found


def prepared(spans: list[SequenceRows], pool: KvPool) -> SdpaStep:
    return SdpaBackend().prepare(make_step(spans, pool), pool)


def values(tokens: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, heads, tokens, DIM, generator=draw) for heads in (HEADS, KV_HEADS, KV_HEADS))
    return q * 3, k * 3, v


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: int | None = None, softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """`[1, N, Hq, D]` of one text by the textbook formula, in fp64."""
    k, v = (part.double().repeat_interleave(HEADS // KV_HEADS, dim=1) for part in (k, v))
    scores = q.double() @ k.transpose(-1, -2) * DIM**-0.5
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    distance = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])
    hidden = (distance < 0) | (distance >= window if window is not None else distance < 0)
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.double().view(1, HEADS, 1, 1).expand(*scores.shape[:-1], 1)), -1)
    weights = scores.softmax(-1)[..., : q.shape[2]]
    return (weights @ v).transpose(1, 2)


def run(
    qkv: tuple[torch.Tensor, ...], counts: list[int], dtype: torch.dtype = torch.float32, *,
    kv_dtype: torch.dtype | None = None, **rules: Any,
) -> torch.Tensor:  # fmt: skip
    """One text in chunks of `counts`."""
    pool = pool_of(200, kv_dtype or dtype)
    (table,) = tables(sum(counts))
    parts, at = [], 0
    with torch.inference_mode():
        for count in counts:
            step = prepared([SequenceRows(at, count, table)], pool)
            q, k, v = (part[:, :, at : at + count].to(dtype) for part in qkv)
            parts.append(paged_attention(LAYER, q, k, v, None, headrace_step=step, **rules)[0])
            at += count
    return torch.cat(parts, dim=1)


RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 7},
    "window-of-one": {"window": 1},
    "softcap": {"softcap": 5.0},
    "sinks": {"sinks": torch.linspace(-2, 3, HEADS)},
    "all": {"window": 7, "softcap": 5.0, "sinks": torch.linspace(-2, 3, HEADS)},
}
NAMES = {"window": "sliding_window", "softcap": "softcap", "sinks": "s_aux"}
SPLITS = ([61], [1] * 61, [3, 1, 1, 20, 7, 1, 28], [8, 53], [60, 1])


@pytest.mark.parametrize("counts", SPLITS, ids=lambda counts: f"{len(counts)}-chunks")
@pytest.mark.parametrize("tile", [512, 5])
@pytest.mark.parametrize("rules", RULES)
def test_equals_textbook_attention(
    rules: str, tile: int, counts: list[int], *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "TILE", tile)
    monkeypatch.setattr(sdpa, "SCORES_TILE", 3)
    given = RULES[rules]
    qkv = values(61)
    found = run(qkv, counts, **{NAMES[name]: value for name, value in given.items()})
    assert float((found - reference(*qkv, **given)).abs().max()) < FP32_BOUND


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("counts", SPLITS[:3], ids=lambda counts: f"{len(counts)}-chunks")
def test_in_bf16_a_cap_and_sinks_cost_no_more_than_the_rounding_of_inputs_and_output(
    rules: str, counts: list[int]
) -> None:
    given = RULES[rules]
    qkv = tuple(part.bfloat16().float() for part in values(61))
    found = run(qkv, counts, torch.bfloat16, **{NAMES[name]: value for name, value in given.items()})
    error = (found.double() - reference(*qkv, **given)).abs()
    eps = torch.finfo(torch.bfloat16).eps
    assert float(error.max()) < 2 * eps * float(qkv[2].abs().max())
    assert float(error.pow(2).mean().sqrt()) < eps / 2


def test_a_narrower_pool_rounds_the_same_wherever_a_chunk_begins() -> None:
    qkv = values(61)
    whole, *others = (run(qkv, counts, kv_dtype=torch.bfloat16) for counts in SPLITS)
    assert all(float((whole - other).abs().max()) < FP32_BOUND for other in others)
    rounded = (qkv[0], qkv[1].bfloat16().float(), qkv[2].bfloat16().float())
    assert float((whole - reference(*rounded)).abs().max()) < FP32_BOUND


@pytest.mark.parametrize("window", [None, 1, 4, 9, 13, 500])
@pytest.mark.parametrize(
    "shape",
    [
        ((0, 9), (17, 1), (30, 1), (130, 1), (5, 12), (131, 40)),
        ((17, 1), (0, 9), (18, 1), (30, 1), (5, 12), (29, 1), (131, 1), (131, 40), (127, 1)),
        ((20, 1), (31, 1), (26, 1), (125, 1)),
    ],
    ids=["decodes-apart", "decodes-among-chunks", "decodes-alone"],
)
def test_neighbours_change_nothing(shape: tuple[tuple[int, int], ...], window: int | None) -> None:
    """Decodes and chunks of several requests in one step, against each alone, over the same pool."""
    own = tables(*(start + rows for start, rows in shape))
    pool = pool_of(300)
    for part in (pool.keys[0], pool.values[0]):
        part.normal_(generator=torch.Generator().manual_seed(2))
    qkv = values(sum(rows for _, rows in shape))
    spans = [SequenceRows(start, rows, table) for (start, rows), table in zip(shape, own, strict=True)]
    with torch.inference_mode():
        both = paged_attention(LAYER, *qkv, None, headrace_step=prepared(spans, pool), sliding_window=window)[0]
        at = 0
        for span in spans:
            alone = [part[:, :, at : at + span.rows] for part in qkv]
            step = prepared([span], pool)
            found = paged_attention(LAYER, *alone, None, headrace_step=step, sliding_window=window)[0]
            assert torch.allclose(both[:, at : at + span.rows], found, atol=FP32_BOUND)
            at += span.rows


@pytest.mark.parametrize(("window", "blocks"), [(None, 2500), (9, 3), (8, 2), (1, 1)])
def test_a_decode_reads_only_blocks_that_its_window_reaches(window: int | None, blocks: int) -> None:
    (table,) = tables(10_000)
    layout = prepared([SequenceRows(9_999, 1, table)], pool_of(3000)).layout(window, torch.float32)
    assert len(layout.groups[0].blocks.blocks) == blocks
    assert layout.groups[0].blocks.blocks.tolist() == list(table[-blocks:])


def test_a_chunk_reads_only_blocks_that_its_window_reaches() -> None:
    (table,) = tables(10_000)
    chunk = prepared([SequenceRows(9_990, 10, table)], pool_of(3000)).layout(9, torch.float32).chunks[0]
    assert chunk.blocks is not None
    assert chunk.blocks.blocks.tolist() == list(table[(9_990 - 8) // BLOCK :])
    assert chunk.tiles[0].key_hi - chunk.tiles[0].key_lo == 10 + 8


def test_decodes_of_one_window_share_a_group_however_long_their_contexts() -> None:
    lengths = (40, 1000, 9000)
    spans = [SequenceRows(length - 1, 1, table) for length, table in zip(lengths, tables(*lengths), strict=True)]
    step = prepared(spans, pool_of(3000))
    assert [group.members for group in step.layout(9, torch.float32).groups] == [3]
    assert [group.members for group in step.layout(None, torch.float32).groups] == [1, 1, 1]


def test_masks_are_one_band_of_a_tile_and_none_for_a_prompt_from_its_start() -> None:
    pool = pool_of(3000)
    first, second = tables(4000, 4000)
    q, k, v = values(3000)
    step = prepared([SequenceRows(0, 2000, first), SequenceRows(1000, 1000, second)], pool)
    with torch.inference_mode():
        paged_attention(LAYER, q, k, v, None, headrace_step=step)
    band = step.layout(None, torch.float32).band
    assert band is not None
    # Rows of a tile, and the most keys that precede a tile's rows: far less than 3000 x 3000.
    assert band.shape == (tiles.TILE, 3 * tiles.TILE + tiles.TILE)
    alone = prepared([SequenceRows(0, 2000, first)], pool)
    with torch.inference_mode():
        paged_attention(LAYER, q[:, :, :2000], k[:, :, :2000], v[:, :, :2000], None, headrace_step=alone)
    assert alone.layout(None, torch.float32).band is None


def test_a_prompt_from_its_start_gathers_nothing() -> None:
    (table,) = tables(100)
    chunk = prepared([SequenceRows(0, 100, table)], pool_of(60)).layout(7, torch.float32).chunks[0]
    assert chunk.blocks is None
