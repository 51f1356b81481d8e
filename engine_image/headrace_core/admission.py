"""Whether a request may join the queue, and when to come back if not."""

from __future__ import annotations

from collections import deque

from headrace_core.events import Rejected, RejectReason, Request
from headrace_core.ledger import Ledger
from headrace_core.policies import Batching

RETRY_BOUNDS = (0.5, 60.0)  # seconds; a client that comes back sooner only adds load, one told later gives up


class FinishRate:
    """How fast requests end, from the last few that did: what a Retry-After is computed from."""

    def __init__(self, window: int = 64) -> None:
        self._times: deque[float] = deque(maxlen=window)

    def record(self, now: float) -> None:
        """One request ended."""
        self._times.append(now)

    def restart(self) -> None:
        """Forget: another config has another rate."""
        self._times.clear()

    def seconds_for(self, requests: float, *, now: float) -> float:
        """Until that many more end, within `RETRY_BOUNDS`; up to `now`, so that a stall makes it longer."""
        low, high = RETRY_BOUNDS
        if len(self._times) < 2 or now <= self._times[0]:
            return 1.0
        pace = (now - self._times[0]) / (len(self._times) - 1)
        return min(high, max(low, requests * pace))


def check(request: Request, ledger: Ledger, *, max_model_len: int, rate: FinishRate, now: float) -> Rejected | None:
    """Why `request` may not join the queue, or None."""
    impossible = _never(request, ledger, max_model_len)
    if impossible is not None:
        return Rejected(request.request_id, *impossible)
    full = _queue_full(request, ledger)
    if full is None:
        return None
    message, excess = full
    wait = rate.seconds_for(excess, now=now)
    return Rejected(request.request_id, RejectReason.QUEUE_FULL, f"{message}; try again in {wait:.1f} s", wait)


def _never(request: Request, ledger: Ledger, max_model_len: int) -> tuple[RejectReason, str] | None:
    prompt, output = len(request.prompt_token_ids), request.max_tokens
    if prompt == 0:
        return RejectReason.EMPTY_PROMPT, "the prompt has 0 tokens, at least 1 is needed"
    if request.request_id in ledger.live:
        return RejectReason.DUPLICATE_ID, f"request id {request.request_id!r} is in use by 1 request that has not ended"
    if prompt + output > max_model_len:
        return RejectReason.TOO_LONG, (
            f"prompt of {prompt} tokens plus max_tokens {output} is {prompt + output}, more than max_model_len "
            f"{max_model_len}: shorten the prompt or lower max_tokens"
        )
    pool = ledger.pool
    needed = pool.blocks_for(prompt + output - 1)  # the last token is never fed back
    if needed > pool.total:
        return RejectReason.NEVER_FITS, (
            f"prompt of {prompt} tokens plus max_tokens {output} needs {needed} KV blocks of {pool.block_size} tokens, "
            f"the whole cache has {pool.total}: lower max_tokens or give the engine more KV memory"
        )
    return None


def _queue_full(request: Request, ledger: Ledger) -> tuple[str, float] | None:
    """Message, and how many requests must end first."""
    config, waiting = ledger.config, ledger.waiting
    places = _free_places(ledger)
    if len(waiting) >= config.max_queue_len + places:
        excess = len(waiting) + 1 - config.max_queue_len - places
        return f"{len(waiting)} requests wait, max_queue_len is {config.max_queue_len}", excess
    limit, prompt = config.max_queue_tokens, len(request.prompt_token_ids)
    # An empty queue takes any prompt: waiting would not make it shorter.
    if limit is None or not len(waiting) or waiting.tokens + prompt <= limit:
        return None
    mean = waiting.tokens / len(waiting)
    message = f"{waiting.tokens} tokens wait, with this prompt's {prompt} that exceeds max_queue_tokens {limit}"
    return message, (waiting.tokens + prompt - limit) / mean


def _free_places(ledger: Ledger) -> int:
    """Places in the batch that the next step could fill: who waits for those does not wait long."""
    if ledger.config.batching == Batching.STATIC and ledger.running:
        return 0
    return max(0, ledger.config.max_num_seqs - len(ledger.running))
