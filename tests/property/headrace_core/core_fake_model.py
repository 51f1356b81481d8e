"""A model whose KV cache is real, and small enough to say what it must generate.

The KV of a position is made from that of the position before, which is read through the block table, the token, and
the request's salt. A sampled token is made from all KV read through the table and the request's own seed. So a wrong
position, a block that is shared or published wrongly, a missed copy or a missed recomputation changes the output, and
forks of one prompt go different ways.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence

from headrace_core.scheduler.events import Request, ScheduledSeq, StepPlan

VOCABULARY = 50
POISON = 1 << 40  # KV of a forward that failed


def kv_of(before: int, token: int) -> int:
    return zlib.crc32(b"%d,%d" % (before, token))


def next_token(kv: Iterable[int], seed: int) -> int:
    return zlib.crc32(b"%d:" % seed + b",".join(b"%d" % value for value in kv)) % VOCABULARY


def root_of(salt: str) -> int:
    return zlib.crc32(salt.encode())


def unscheduled(request: Request, seed: int) -> list[int]:
    """What the model generates for a request alone."""
    kv, output = [], []
    for token in request.prompt_token_ids:
        kv.append(kv_of(kv[-1] if kv else root_of(request.cache_salt), token))
    while len(output) < request.max_tokens:
        output.append(next_token(kv, seed))
        kv.append(kv_of(kv[-1], output[-1]))
        if output[-1] in request.stop_token_ids:
            break
    return output


class FakeModel:
    """Copies, then writes rows to its KV cache, then reads each sampling sequence's whole context from it."""

    def __init__(self, block_size: int, requests: Mapping[str, Request], seeds: Mapping[str, int]) -> None:
        self._size = block_size
        self._requests = requests
        self._seeds = seeds
        self._cache: dict[tuple[int, int], int] = {}

    def run(self, plan: StepPlan) -> dict[str, int]:
        copied = [
            ((target, offset), self._cache[source, offset])
            for source, target in plan.copies
            for offset in range(self._size)
            if (source, offset) in self._cache
        ]
        self._cache.update(copied)
        for row in plan.seqs:
            self._write(row)
        return {
            row.request_id: next_token(self._read(row, row.start + row.num_tokens), self._seeds[row.request_id])
            for row in plan.seqs
            if row.samples
        }

    def poison(self, blocks: Sequence[int]) -> None:
        """What a failed request wrote may be anything."""
        for block in blocks:
            self._cache.update({(block, offset): POISON for offset in range(self._size)})

    def _write(self, row: ScheduledSeq) -> None:
        salt = self._requests[row.request_id].cache_salt
        before = self._cache[self._slot(row, row.start - 1)] if row.start else root_of(salt)
        for offset, token in enumerate(row.token_ids):
            before = self._cache[self._slot(row, row.start + offset)] = kv_of(before, token)

    def _read(self, row: ScheduledSeq, positions: int) -> list[int]:
        return [self._cache[self._slot(row, position)] for position in range(positions)]

    def _slot(self, row: ScheduledSeq, position: int) -> tuple[int, int]:
        return row.block_table[position // self._size], position % self._size
