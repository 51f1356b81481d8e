"""Attention over paged KV blocks: the pool, what a step hands to a kernel, the kernels, the hook into transformers."""
