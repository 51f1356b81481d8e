"""Which block holds which content: full blocks of running and ended sequences, shared by requests with the same prefix.

A block's key is a hash over its parent's key, its tokens, the model's identity and the request's salt, so it stands
for all tokens up to its end. A hash alone is not trusted: an entry matches only if its tokens, its salt and its parent
(the same object) do too. An entry whose parent is gone can therefore never be found again: forgetting a block forgets
all that follows it.
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
    """The full blocks of one sequence: keys, computed when first needed, and the cache entries found or made for them.

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
    """A hash of 16 bytes, so collisions are not to be expected; one would only cost a miss."""
    return blake2b(data, digest_size=16).digest()


def packed(tokens: list[int]) -> bytes:
    """Token ids as the bytes used in keys: 8 per token, native order."""
    return array("q", tokens).tobytes()


class PrefixCache:
    """The entries of one pool, by key and by block. `namespace`: what changes KV besides tokens and salt."""

    def __init__(self, pool: BlockPool, *, namespace: str, enabled: bool) -> None:
        self._pool = pool
        self._namespace = namespace
        self._enabled = enabled
        self._by_digest: dict[bytes, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}
        self.hasher: Callable[[bytes], bytes] = digest
        pool.on_reuse = self._reused

    def match(self, chain: Chain, limit: int) -> list[CachedBlock]:
        """The entries of the chain's first blocks, up to the first that is missing and at most `limit`.

        For entries found before, only whether they are still live is checked, so calling this every step is cheap.
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
        """Add the first `count` blocks of `table`, full and computed. Content that has an entry already keeps it."""
        entries = chain.entries
        while self._enabled and len(entries) < count:
            if entries and not entries[-1].live and not _mend(chain, table):
                return
            index = len(entries)
            entries.append(self._find(chain, index) or self._add(chain, index, table[index], owner))

    def forget(self, table: Iterable[int], *, owner: int) -> None:
        """Forget the blocks in `table` that sequence `owner` published."""
        for block in table:
            entry = self._by_block.get(block)
            if entry is not None and entry.owner == owner:
                self._drop(entry)

    def entries(self) -> tuple[CachedBlock, ...]:
        """All live entries, for invariant checks."""
        return tuple(self._by_digest.values())

    def entry_of(self, block: int) -> CachedBlock | None:
        """The entry for `block`; None if its content is unknown."""
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
            if old is not None and old.live:  # the hash collides, or the old entry's parent is gone
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
    """Whether publishing can continue although an entry of the chain is gone.

    It can if the entry was for another sequence's block, forgotten or reused: the sequence's own copies take over. If
    the block is one the sequence holds itself, it was forgotten because its content may be wrong, and so may be all
    that follows.
    """
    first = next(index for index, entry in enumerate(chain.entries) if not entry.live)
    if table[first] == chain.entries[first].block:
        return False
    del chain.entries[first:]
    return True
