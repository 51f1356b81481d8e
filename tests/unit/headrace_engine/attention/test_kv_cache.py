"""Copies of blocks in the KV pool."""

import torch

from headrace_engine.attention.kv_cache import LayerShape, copy_blocks, make_pool


def test_copies_reach_every_layer_and_read_before_they_write() -> None:
    shape = LayerShape(kv_heads=2, key_dim=3, value_dim=5)
    pool = make_pool({0: shape, 1: shape}, num_blocks=6, block_size=2, device=torch.device("cpu"), dtype=torch.float32)
    for tensor in (*pool.keys.values(), *pool.values.values()):
        tensor.copy_(torch.rand_like(tensor))
    before = {id(tensor): tensor.clone() for tensor in (*pool.keys.values(), *pool.values.values())}
    copy_blocks(pool, ())
    copy_blocks(pool, ((1, 4), (2, 1)))
    for tensor in (*pool.keys.values(), *pool.values.values()):
        was = before[id(tensor)]
        assert torch.equal(tensor[4], was[1])
        assert torch.equal(tensor[1], was[2])
        assert torch.equal(tensor[[0, 2, 3, 5]], was[[0, 2, 3, 5]])
