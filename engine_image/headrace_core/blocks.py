"""KV blocks as integers: who holds which is the sequences' business, how many are free is kept here.

Block 0 is the target of padding writes and is never handed out. Nothing here knows tensors.
"""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """A pool of `num_blocks` blocks, block 0 included. Allocation is all or nothing, and deterministic."""

    __slots__ = ("_free", "_taken", "block_size", "num_blocks")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2 or block_size < 1:
            raise ValueError(
                f"a block pool needs at least 2 blocks (block 0 is only for padding) of at least 1 token, "
                f"got {num_blocks} of {block_size}"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, 0, -1))  # a stack: the block freed last is handed out first
        self._taken = bytearray(num_blocks)

    @property
    def total(self) -> int:
        """Blocks that can be handed out."""
        return self.num_blocks - 1

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that somebody holds."""
        return self.total - len(self._free)

    def blocks_for(self, positions: int) -> int:
        """Blocks that hold `positions` tokens."""
        return -(-positions // self.block_size)

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """`count` blocks, or None and nothing taken where fewer are free."""
        if count < 0:
            raise ValueError(f"cannot allocate {count} blocks")
        if count > len(self._free):
            return None
        blocks = tuple(self._free.pop() for _ in range(count))
        for block in blocks:
            self._taken[block] = 1
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Give back blocks. Raises `ValueError`, and gives back none, if one is not held."""
        returned = tuple(blocks)
        if len(set(returned)) != len(returned) or not all(self.is_taken(block) for block in returned):
            raise ValueError(f"blocks {returned} include one that is not held, or one twice")
        for block in reversed(returned):
            self._taken[block] = 0
            self._free.append(block)

    def is_taken(self, block: int) -> bool:
        """Whether somebody holds `block`."""
        return 0 < block < self.num_blocks and bool(self._taken[block])

    def free_blocks(self) -> tuple[int, ...]:
        """The free blocks, for invariant checks."""
        return tuple(self._free)

    def __repr__(self) -> str:
        return f"<BlockPool used={self.used}/{self.total} block_size={self.block_size}>"
