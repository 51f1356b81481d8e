"""What the scheduler keeps between steps, and the transitions of a sequence. Decisions are made elsewhere.

Each live sequence is in exactly one of `running` and `waiting`; only running ones hold blocks.
"""

from __future__ import annotations

from headrace_core.knobs.resolve import EngineConfig
from headrace_core.scheduler.blocks import BlockPool
from headrace_core.scheduler.events import Finished, FinishReason, Request
from headrace_core.scheduler.forecast import OutputPredictor
from headrace_core.scheduler.policies import Batching
from headrace_core.scheduler.prefix_cache import CachedBlock, PrefixCache
from headrace_core.scheduler.sequence import Sequence, SequencePhase
from headrace_core.scheduler.waiting_queue import WaitingQueue


class SchedulerState:
    """Live sequences, the queue, the block pool with its prefix cache, and the config in force."""

    __slots__ = ("cache", "config", "live", "pool", "predictor", "preemptions", "running", "submitted", "waiting")

    def __init__(self, config: EngineConfig, *, num_blocks: int, namespace: str = "") -> None:
        self.config = config
        self.pool = BlockPool(num_blocks, config.block_size)
        self.cache = PrefixCache(self.pool, namespace=namespace, enabled=config.enable_prefix_caching)
        self.predictor = OutputPredictor()
        self.live: dict[str, Sequence] = {}
        self.running: dict[str, Sequence] = {}  # in the order of admission, which is the order in a step
        self.waiting = WaitingQueue(config)
        self.submitted = 0
        self.preemptions = 0

    def enqueue(self, request: Request) -> Sequence:
        """Add a new request: to the queue, or if it is a fork, to those that wait for their sibling."""
        seq = Sequence(request, self.submitted)
        self.submitted += 1
        self.live[seq.request_id] = seq
        sibling = self.sibling_of(request)
        if sibling is None:
            self.waiting.push(seq)
        else:
            self.waiting.park(seq, sibling)
        return seq

    def sibling_of(self, request: Request) -> Sequence | None:
        """The sequence whose prefill a new request can wait for and share; None if it must prefill its own prompt.

        No request joins a static batch, and one that must compute every position cannot share.
        """
        named = self.live.get(request.fork_of) if request.fork_of is not None else None
        if named is None or not request.reads_cache or self.config.batching == Batching.STATIC:
            return None
        if named.phase is SequencePhase.WAITING and named.sibling is not None:
            named = named.sibling  # a fork itself
        still_to_come = named.phase in (SequencePhase.WAITING, SequencePhase.PREFILL) and named.num_output_tokens == 0
        return named if still_to_come and named.sibling is None else None

    def find(self, seq: Sequence) -> list[CachedBlock]:
        """The cached blocks of a waiting sequence. The last token is always left to compute, for its logits."""
        if not seq.request.reads_cache:
            return []
        return self.cache.match(seq.chain, (seq.target - 1) // self.pool.block_size)

    def blocks_needed(self, seq: Sequence, found: list[CachedBlock]) -> int:
        """Free blocks that the whole prefill takes: all except those found that a running sequence holds already."""
        return self.pool.blocks_for(seq.target) - sum(1 for entry in found if self.pool.holders(entry.block))

    def start(self, seq: Sequence, found: list[CachedBlock]) -> None:
        """WAITING to PREFILL, after the cached blocks `found`."""
        self.waiting.remove(seq)
        self.running[seq.request_id] = seq
        seq.phase = SequencePhase.PREFILL
        seq.chain.entries = found
        seq.blocks = tuple(entry.block for entry in found)
        self.pool.share(seq.blocks)
        seq.computed = len(found) * self.pool.block_size

    def fork(self, seq: Sequence, sibling: Sequence) -> None:
        """WAITING to PREFILL, sharing all blocks of the sibling, whose last chunk is in this step."""
        self.waiting.remove(seq)
        self.running[seq.request_id] = seq
        seq.phase = SequencePhase.PREFILL
        seq.begun = True
        seq.blocks = sibling.blocks
        self.pool.share(seq.blocks)

    def unfork(self, seq: Sequence) -> None:
        """Back to WAITING as an ordinary request: the sibling's forward failed."""
        del self.running[seq.request_id]
        self._withdraw(seq)
        seq.sibling = None
        seq.started = False
        self.waiting.push(seq)

    def promote_fork(self, sibling: Sequence) -> Sequence | None:
        """`sibling` can't be shared any more: its first fork becomes an ordinary request, the others forks of that."""
        forks = self.waiting.forks_of(sibling)
        for fork in forks:
            self.waiting.remove(fork)
        if not forks:
            return None
        first, *others = forks
        first.sibling = None
        self.waiting.push(first)
        for fork in others:
            self.waiting.park(fork, first)
        return first

    def grow(self, seq: Sequence, positions: int) -> None:
        """Give a running sequence the blocks for `positions`. The caller has checked that they are free."""
        missing = self.pool.blocks_for(positions) - len(seq.blocks)
        if missing == 0:
            return
        seq.blocks += self._allocate(seq, missing)

    def unshare(self, seq: Sequence, position: int) -> tuple[int, int] | None:
        """Give `seq` its own copy of the block that `position` will be written to, if it is shared.

        Returns (source, target) of the copy to be made, or None. The caller has checked that a block is free.
        """
        index = position // self.pool.block_size
        if index >= len(seq.blocks) or self.pool.holders(seq.blocks[index]) == 1:
            return None
        old, (new,) = seq.blocks[index], self._allocate(seq, 1)
        seq.blocks = (*seq.blocks[:index], new, *seq.blocks[index + 1 :])
        self.pool.release([old])
        return old, new

    def evict(self, seq: Sequence) -> int:
        """Back to WAITING at the front of the queue. Returns the number of positions whose KV is lost."""
        recompute = seq.computed
        del self.running[seq.request_id]
        self._withdraw(seq)
        seq.target = len(seq.tokens)
        seq.evicted = True
        self.waiting.push(seq)
        self.preemptions += 1
        return recompute

    def end(self, seq: Sequence, reason: FinishReason) -> Finished:
        """From any phase to ENDED. Blocks that a failed request published are forgotten, as they may be wrong too."""
        del self.live[seq.request_id]
        if seq.phase is SequencePhase.WAITING:
            self.waiting.remove(seq)
        else:
            del self.running[seq.request_id]
            if reason is FinishReason.ERROR:
                self.cache.forget(seq.blocks, owner=seq.number)
            self._free_blocks(seq)
        seq.phase = SequencePhase.ENDED
        return Finished(seq.request_id, reason, seq.num_output_tokens)

    def advance(self, seq: Sequence, computed: int) -> None:
        """Note that positions below `computed` have their KV now; publish full blocks."""
        seq.fresh += computed - seq.computed - seq.repeated(seq.computed, computed)
        self._computed(seq, computed)

    def settle_fork(self, seq: Sequence) -> None:
        """The sibling's forward has filled the shared blocks; from here on the fork is an ordinary sequence."""
        if seq.sibling is not None:
            seq.chain.follow(seq.sibling.chain, seq.target // self.pool.block_size)
        seq.sibling = None
        self._computed(seq, seq.target)

    def append(self, seq: Sequence, token: int) -> None:
        """Add a sampled token, and go to DECODE."""
        seq.tokens.append(token)
        seq.phase = SequencePhase.DECODE

    def owed_to_prefills(self) -> int:
        """Blocks that the running prefills still need for their whole targets."""
        blocks_for = self.pool.blocks_for
        return sum(
            blocks_for(seq.target) - len(seq.blocks)
            for seq in self.running.values()
            if seq.phase is SequencePhase.PREFILL
        )

    def _computed(self, seq: Sequence, computed: int) -> None:
        seq.computed = computed
        seq.high_water = max(seq.high_water, computed)
        full = computed // self.pool.block_size
        if full > len(seq.chain.entries):
            self.cache.publish(seq.chain, seq.blocks, count=full, owner=seq.number)

    def _allocate(self, seq: Sequence, count: int) -> tuple[int, ...]:
        blocks = self.pool.allocate(count)
        if blocks is None:
            raise RuntimeError(f"{seq!r} needs {count} more blocks but {self.pool!r}: the plan overcommitted the pool")
        return blocks

    def _withdraw(self, seq: Sequence) -> None:
        self._free_blocks(seq)
        seq.computed = 0
        seq.begun = False
        seq.phase = SequencePhase.WAITING

    def _free_blocks(self, seq: Sequence) -> None:
        self.pool.release(seq.blocks)
        seq.blocks = ()
