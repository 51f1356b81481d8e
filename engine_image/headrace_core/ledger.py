"""What the scheduler keeps between steps, and the transitions of a sequence. Decisions are made elsewhere.

Each live sequence is in exactly one of `running` and `waiting`; only running ones hold blocks.
"""

from __future__ import annotations

from headrace_core.blocks import BlockPool
from headrace_core.config import EngineConfig
from headrace_core.events import Finished, FinishReason, Request
from headrace_core.policies import WaitingQueue
from headrace_core.sequence import Phase, Sequence


class Ledger:
    """Live sequences, the queue, the pool, and the config in force."""

    __slots__ = ("config", "live", "pool", "preemptions", "running", "submitted", "waiting")

    def __init__(self, config: EngineConfig, *, num_blocks: int) -> None:
        self.config = config
        self.pool = BlockPool(num_blocks, config.block_size)
        self.live: dict[str, Sequence] = {}
        self.running: dict[str, Sequence] = {}  # in the order of admission, which is the order in a step
        self.waiting = WaitingQueue(config)
        self.submitted = 0
        self.preemptions = 0

    def enqueue(self, request: Request) -> None:
        """A new request waits."""
        seq = Sequence(request, self.submitted)
        self.submitted += 1
        self.live[seq.request_id] = seq
        self.waiting.push(seq)

    def start(self, seq: Sequence) -> None:
        """WAITING to PREFILL."""
        self.waiting.remove(seq)
        self.running[seq.request_id] = seq
        seq.phase = Phase.PREFILL

    def grow(self, seq: Sequence, positions: int) -> None:
        """Give a running sequence the blocks for `positions`. The caller has checked that they are free."""
        missing = self.pool.blocks_for(positions) - len(seq.blocks)
        if missing == 0:
            return
        blocks = self.pool.allocate(missing)
        if blocks is None:
            raise RuntimeError(
                f"{seq!r} needs {missing} more blocks but {self.pool!r}: the plan overcommitted the pool"
            )
        seq.blocks += blocks

    def evict(self, seq: Sequence) -> int:
        """Back to WAITING at the front of the queue; returns the positions that must be computed again."""
        recompute = seq.computed
        del self.running[seq.request_id]
        self._free_blocks(seq)
        seq.computed = 0
        seq.target = len(seq.tokens)
        seq.phase = Phase.WAITING
        seq.evicted = True
        self.waiting.push(seq)
        self.preemptions += 1
        return recompute

    def end(self, seq: Sequence, reason: FinishReason) -> Finished:
        """From anywhere to ENDED."""
        del self.live[seq.request_id]
        if seq.phase is Phase.WAITING:
            self.waiting.remove(seq)
        else:
            del self.running[seq.request_id]
            self._free_blocks(seq)
        seq.phase = Phase.ENDED
        return Finished(seq.request_id, reason, seq.num_output_tokens)

    def advance(self, seq: Sequence, computed: int) -> int:
        """Positions below `computed` have their KV now; returns how many of them had been computed before."""
        again = max(0, min(computed, seq.high_water) - seq.computed)
        seq.computed = computed
        seq.high_water = max(seq.high_water, computed)
        return again

    def append(self, seq: Sequence, token: int) -> None:
        """A token was sampled: the prefill, if it was one, is over."""
        seq.tokens.append(token)
        seq.phase = Phase.DECODE

    def owed_to_prefills(self) -> int:
        """Blocks that the running prefills still need for their whole targets."""
        blocks_for = self.pool.blocks_for
        return sum(
            blocks_for(seq.target) - len(seq.blocks) for seq in self.running.values() if seq.phase is Phase.PREFILL
        )

    def _free_blocks(self, seq: Sequence) -> None:
        self.pool.release(seq.blocks)
        seq.blocks = ()
