"""KV blocks as integers: how many sequences hold each one, and which are free. Knows nothing of tensors.

Block 0 is the target of padding writes and is never handed out. A free block is empty, or kept: its content is known
to the prefix cache, and may be shared again until the block is handed out for something else. Empty blocks are handed
out first, then kept ones, the one that has been free longest first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable


class BlockPool:
    """A pool of `num_blocks` blocks, block 0 included. Allocation is all or nothing, and deterministic.

    `on_reuse` is called with each kept block that is handed out: its content is about to be lost.
    """

    __slots__ = ("_empty", "_holders", "_kept", "_known", "block_size", "num_blocks", "on_reuse")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2 or block_size < 1:
            raise ValueError(
                f"a block pool needs at least 2 blocks (block 0 is only for padding) of at least 1 token, "
                f"got {num_blocks} of {block_size}"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.on_reuse: Callable[[int], None] = _ignore
        self._empty = list(range(num_blocks - 1, 0, -1))  # a stack: the block freed last is handed out first
        self._kept: OrderedDict[int, None] = OrderedDict()  # free, content known; longest free first
        self._known = bytearray(num_blocks)
        self._holders = [0] * num_blocks

    @property
    def total(self) -> int:
        """Blocks that can be handed out."""
        return self.num_blocks - 1

    @property
    def free(self) -> int:
        """Blocks that no sequence holds."""
        return len(self._empty) + len(self._kept)

    @property
    def used(self) -> int:
        """Blocks held by at least one sequence."""
        return self.total - self.free

    @property
    def cached(self) -> int:
        """Free blocks whose content is known."""
        return len(self._kept)

    def blocks_for(self, positions: int) -> int:
        """Number of blocks needed for `positions` tokens."""
        return -(-positions // self.block_size)

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """`count` blocks with one holder each; None, with nothing changed, if fewer are free."""
        if count < 0:
            raise ValueError(f"cannot allocate {count} blocks")
        if count > self.free:
            return None
        return tuple(self._take() for _ in range(count))

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for each. Raises `ValueError`, and changes nothing, if one is neither held nor kept."""
        wanted = tuple(blocks)
        if len(set(wanted)) != len(wanted) or not all(self._sharable(block) for block in wanted):
            raise ValueError(f"blocks {wanted} include one without content to share, or one twice")
        for block in wanted:
            if self._holders[block] == 0:
                del self._kept[block]
            self._holders[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One holder fewer for each. Raises `ValueError`, and changes nothing, if one is not held.

        Releases from last to first: with blocks in the order of positions, a sequence's tail is reused before its
        head, which more requests have in common.
        """
        returned = tuple(blocks)
        if len(set(returned)) != len(returned) or not all(self.is_taken(block) for block in returned):
            raise ValueError(f"blocks {returned} include one that is not held, or one twice")
        for block in reversed(returned):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._put_back(block)

    def keep(self, block: int) -> None:
        """The content of a held block is known from now on: once free, the block is kept."""
        if not self.is_taken(block):
            raise ValueError(f"block {block} is not held, so its content cannot be known")
        self._known[block] = 1

    def forget(self, block: int) -> None:
        """Mark the content of `block` as not to be used again; if it is free, it becomes empty."""
        self._known[block] = 0
        if block in self._kept:
            del self._kept[block]
            self._empty.append(block)

    def holders(self, block: int) -> int:
        """How many sequences hold `block`."""
        return self._holders[block]

    def is_taken(self, block: int) -> bool:
        """Whether any sequence holds `block`."""
        return 0 < block < self.num_blocks and self._holders[block] > 0

    def is_known(self, block: int) -> bool:
        """Whether the content of `block` is known."""
        return bool(self._known[block])

    def empty_blocks(self) -> tuple[int, ...]:
        """Free blocks of unknown content, for invariant checks."""
        return tuple(self._empty)

    def kept_blocks(self) -> tuple[int, ...]:
        """Free blocks of known content in the order in which they are reused, for invariant checks."""
        return tuple(self._kept)

    def _take(self) -> int:
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._kept.popitem(last=False)
            self._known[block] = 0
            self.on_reuse(block)
        self._holders[block] = 1
        return block

    def _put_back(self, block: int) -> None:
        if self._known[block]:
            self._kept[block] = None
        else:
            self._empty.append(block)

    def _sharable(self, block: int) -> bool:
        return self.is_taken(block) or block in self._kept

    def __repr__(self) -> str:
        return f"<BlockPool used={self.used}/{self.total} cached={self.cached} block_size={self.block_size}>"


def _ignore(block: int) -> None:
    del block
