"""Continuous batching with chunked prefill over paged KV blocks: the scheduler, pure."""
