"""Which block holds which content: full blocks of ended and running sequences, to be shared by equal beginnings.

A block's key is a hash over its parent's key, its tokens, the model's identity and the request's salt, so it stands
for all tokens up to its end. A hash only proposes: an entry counts as found if its tokens, its salt and its parent,
as an object, are those looked for. An entry whose parent is gone can therefore never be found again, and whatever
follows a forgotten block is forgotten with it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b

from headrace_core.scheduler.blocks import BlockPool

Key = tuple[bytes, bytes]  # digest, and the block's tokens packed


@dataclass(slots=True, eq=False)
class CachedBlock:
    """A block whose content is known. `owner` is the number of the sequence that filled it."""

    key: Key
    parent: CachedBlock | None
    salt: str
    block: int
    owner: int
    live: bool = True


class Chain:
    """The full blocks of one sequence: their keys, as far as they were needed, and the entries found or made for them.

    `tokens` is the sequence's own list, which only grows. `entries` covers blocks 0, 1, ... without a gap.
    """

    __slots__ = ("entries", "keys", "salt", "tokens")

    def __init__(self, tokens: list[int], salt: str) -> None:
        self.tokens = tokens
        self.salt = salt
        self.keys: list[Key] = []
        self.entries: list[CachedBlock] = []

    def follow(self, other: Chain, count: int) -> None:
        """Take over the first `count` blocks of a sequence with the same tokens in the same blocks."""
        self.keys = other.keys[:count]
        self.entries = other.entries[:count]


def digest(data: bytes) -> bytes:
    """16 bytes, so that a collision is not to be expected; it would only cost a miss."""
    return blake2b(data, digest_size=16).digest()


def packed(tokens: list[int]) -> bytes:
    """Token ids as they stand in a key."""
    return array("q", tokens).tobytes()


class PrefixCache:
    """The entries of one pool, by key and by block. `namespace` is all that changes KV besides tokens and salt."""

    def __init__(self, pool: BlockPool, *, namespace: str, enabled: bool) -> None:
        self._pool = pool
        self._namespace = namespace
        self._enabled = enabled
        self._by_digest: dict[bytes, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}
        self.hasher: Callable[[bytes], bytes] = digest
        pool.on_reuse = self._reused

    def match(self, chain: Chain, limit: int) -> list[CachedBlock]:
        """The entries of the chain's first blocks, at most `limit`, up to the first that is missing.

        What was found before is only asked whether it still lives, so that asking again every step is cheap.
        """
        entries = chain.entries
        _cut_dead(entries)
        del entries[limit:]
        while self._enabled and len(entries) < limit:
            found = self._find(chain, len(entries))
            if found is None:
                break
            entries.append(found)
        return entries

    def publish(self, chain: Chain, table: tuple[int, ...], *, count: int, owner: int) -> None:
        """The first `count` blocks of `table` are full and computed. Content that has an entry keeps it."""
        entries = chain.entries
        while self._enabled and len(entries) < count:
            if entries and not entries[-1].live and not _mend(chain, table):
                return
            index = len(entries)
            entries.append(self._find(chain, index) or self._add(chain, index, table[index], owner))

    def forget(self, table: Iterable[int], *, owner: int) -> None:
        """Forget what sequence `owner` published of the blocks in `table`."""
        for block in table:
            entry = self._by_block.get(block)
            if entry is not None and entry.owner == owner:
                self._drop(entry)

    def entries(self) -> tuple[CachedBlock, ...]:
        """All that live, for invariant checks."""
        return tuple(self._by_digest.values())

    def entry_of(self, block: int) -> CachedBlock | None:
        """What `block` is known to hold."""
        return self._by_block.get(block)

    def _find(self, chain: Chain, index: int) -> CachedBlock | None:
        key = self._key(chain, index)
        entry = self._by_digest.get(key[0])
        if entry is None or entry.key != key or entry.salt != chain.salt:
            return None
        return entry if entry.parent is _parent(chain, index) else None

    def _add(self, chain: Chain, index: int, block: int, owner: int) -> CachedBlock:
        key = self._key(chain, index)
        for old in (self._by_digest.get(key[0]), self._by_block.get(block)):
            if old is not None and old.live:  # same hash, other content; or its parent is gone
                self._drop(old)
        entry = CachedBlock(key, _parent(chain, index), chain.salt, block, owner)
        self._by_digest[key[0]] = self._by_block[block] = entry
        self._pool.keep(block)
        return entry

    def _key(self, chain: Chain, index: int) -> Key:
        keys, size = chain.keys, self._pool.block_size
        while len(keys) <= index:
            start = len(keys) * size
            tokens = packed(chain.tokens[start : start + size])
            keys.append((self.hasher((keys[-1][0] if keys else self._root(chain.salt)) + tokens), tokens))
        return keys[index]

    def _root(self, salt: str) -> bytes:
        namespace = self._namespace.encode()
        return self.hasher(len(namespace).to_bytes(8, "little") + namespace + salt.encode())

    def _drop(self, entry: CachedBlock) -> None:
        self._remove(entry)
        self._pool.forget(entry.block)

    def _reused(self, block: int) -> None:
        self._remove(self._by_block[block])

    def _remove(self, entry: CachedBlock) -> None:
        entry.live = False
        del self._by_block[entry.block]
        del self._by_digest[entry.key[0]]


def _parent(chain: Chain, index: int) -> CachedBlock | None:
    return chain.entries[index - 1] if index else None


def _cut_dead(entries: list[CachedBlock]) -> None:
    for index, entry in enumerate(entries):
        if not entry.live:
            del entries[index:]
            return


def _mend(chain: Chain, table: tuple[int, ...]) -> bool:
    """Whether publication can go on although an entry of the chain is gone.

    It can from the sequence's own copies of the content, where another's block was forgotten or reused. A block that
    it holds itself is only forgotten because its content may be wrong, and with it all that follows.
    """
    first = next(index for index, entry in enumerate(chain.entries) if not entry.live)
    if table[first] == chain.entries[first].block:
        return False
    del chain.entries[first:]
    return True
