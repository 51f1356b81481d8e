"""Values that pass between the scheduler and its driver (engine loop, simulator, replay).

request -> `Scheduler.submit` -> `StepPlan` -> runner -> `StepResult` -> `Scheduler.commit` -> outcomes.
Everything is frozen; times are seconds on the driver's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headrace_core.knobs.resolve import ConfigProblem, EngineConfig


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class RejectReason(StrEnum):
    """Why a request was not accepted."""

    EMPTY_PROMPT = "empty_prompt"
    TOO_LONG = "too_long"  # prompt plus max_tokens exceeds max_model_len
    NEVER_FITS = "never_fits"  # exceeds the whole KV cache
    QUEUE_FULL = "queue_full"
    DUPLICATE_ID = "duplicate_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as the scheduler sees it. `stop_token_ids` is empty if EOS is ignored.

    Requests with different `cache_salt` never share KV blocks (an adapter and its version, a tenant). With
    `reads_cache` false every prompt position is computed, even by a fork, as prompt logprobs require. `fork_of` names a
    live request with the same prompt and salt: if it has not finished its prefill, this request takes its first token
    from that prefill and shares its blocks. An id that is not live is ignored.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    arrival: float
    stop_token_ids: frozenset[int] = frozenset()
    priority: int = 0
    cache_salt: str = ""
    reads_cache: bool = True
    fork_of: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledSeq:
    """One sequence's share of a step: rows for positions `start .. start + len(token_ids) - 1`.

    `block_table` covers positions `0 .. start + len(token_ids) - 1`: position p lives in block
    `block_table[p // block_size]` at offset `p % block_size`. With `samples`, the last row's logits give a token.
    With `fork_of` the sequence has no rows of its own: its first token is sampled from the last row of that sequence,
    which samples in the same step and comes before it; `start` is then the number of prompt tokens.
    """

    request_id: str
    start: int
    token_ids: tuple[int, ...]
    block_table: tuple[int, ...]
    samples: bool
    is_prefill: bool
    fork_of: str | None = None

    @property
    def num_tokens(self) -> int:
        """Rows of this sequence in the step."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step. Decodes come first, in stable order, then prefill chunks.

    `copies` are pairs (source block, target block), to be copied in all layers before the forward because a sequence
    is about to write to a block that it shares.
    """

    step: int
    generation: int
    seqs: tuple[ScheduledSeq, ...]
    preempted: tuple[str, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        """Rows of the whole step."""
        return sum(seq.num_tokens for seq in self.seqs)

    @property
    def num_prefill_tokens(self) -> int:
        """Rows that are prefill."""
        return sum(seq.num_tokens for seq in self.seqs if seq.is_prefill)

    @property
    def num_decode_tokens(self) -> int:
        """Rows that are decode."""
        return self.num_tokens - self.num_prefill_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Sampled token id of each sequence that `samples`. `failed` names requests whose forward failed."""

    tokens: Mapping[str, int]
    failed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request is queued."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request was not queued.

    `message` gives the limit and the request's value. `retry_after` is in seconds, None if retrying is useless.
    """

    request_id: str
    reason: RejectReason
    message: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The request left the queue: its first chunk was planned at `at`, after `cached_tokens` tokens from the cache.

    For a fork, which computes none of its prompt, `cached_tokens` is the whole prompt.
    """

    request_id: str
    at: float
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token; `index` counts from 0."""

    request_id: str
    token_id: int
    index: int


@dataclass(frozen=True, slots=True)
class Preempted:
    """The request lost its blocks and waits at the front of the queue; at most `recompute` tokens must run again.

    Fewer, if the prefix cache still has some of them when the request starts again.
    """

    request_id: str
    recompute: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The request ended and its blocks are free."""

    request_id: str
    reason: FinishReason
    num_output_tokens: int


Outcome = Started | Token | Preempted | Finished


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """The change is in force from the next plan on."""

    generation: int
    config: EngineConfig


@dataclass(frozen=True, slots=True)
class ChangeRefused:
    """Nothing changed. `problems` lists every reason."""

    problems: tuple[ConfigProblem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """A snapshot for metrics; counters only grow."""

    running: int
    waiting: int
    waiting_tokens: int
    blocks_total: int
    blocks_free: int
    generation: int
    steps: int
    preemptions: int
    tokens_prefill: int
    tokens_decode: int
    tokens_recomputed: int
    tokens_discarded: int = 0  # computed once for requests that were aborted or failed
    cache_queries: int = 0  # prompt tokens looked up in the prefix cache, once for each request
    cache_hits: int = 0  # of these, tokens that were found
    blocks_cached: int = 0  # free blocks whose content can still be hit

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks in use, 0 to 1."""
        return 1.0 - self.blocks_free / self.blocks_total if self.blocks_total else 0.0
