"""The pure core: config, scheduler, KV blocks, invariants, metric names. Standard library only."""
