"""Whether a request may join the queue, and when to come back if not."""

from __future__ import annotations

import math
from collections import deque

from headrace_core.scheduler.events import Rejected, RejectReason, Request
from headrace_core.scheduler.policies import Batching
from headrace_core.scheduler.state import SchedulerState

MAX_PRIORITY = 2**53  # beyond this, adding an age is lost in rounding
RETRY_BOUNDS = (0.5, 60.0)  # seconds: sooner would only add load, and after a longer wait clients give up


class FinishRate:
    """How fast requests end, from the last `window` that did. The base of Retry-After."""

    def __init__(self, window: int = 64) -> None:
        self._times: deque[float] = deque(maxlen=window)

    def record(self, now: float) -> None:
        """One request ended."""
        self._times.append(now)

    def restart(self) -> None:
        """Forget: another config has another rate."""
        self._times.clear()

    def seconds_for(self, requests: float, *, now: float) -> float:
        """Expected seconds until `requests` more end, within `RETRY_BOUNDS`. A stall up to `now` makes it longer."""
        low, high = RETRY_BOUNDS
        if len(self._times) < 2 or now <= self._times[0]:
            return 1.0
        pace = (now - self._times[0]) / (len(self._times) - 1)
        return min(high, max(low, requests * pace))


def check_call(request: Request, state: SchedulerState) -> None:
    """Raise `ValueError` for mistakes of the driver, as opposed to those of a client."""
    name = f"request {request.request_id!r}"
    if request.max_tokens < 1:
        raise ValueError(f"{name}: max_tokens must be at least 1, got {request.max_tokens}")
    if not math.isfinite(request.arrival):
        raise ValueError(f"{name}: arrival must be a time, got {request.arrival}")
    if abs(request.priority) > MAX_PRIORITY:
        raise ValueError(f"{name}: priority must be within {MAX_PRIORITY} of 0, got {request.priority}")
    sibling = state.live.get(request.fork_of) if request.fork_of is not None else None
    if sibling is None:
        return
    other = sibling.request
    if (other.prompt_token_ids, other.cache_salt) != (request.prompt_token_ids, request.cache_salt):
        raise ValueError(f"{name}: fork_of names {request.fork_of!r}, which has another prompt or cache_salt")


def check(
    request: Request, state: SchedulerState, *, max_model_len: int, rate: FinishRate, now: float
) -> Rejected | None:
    """Why `request` may not join the queue, or None."""
    impossible = _never(request, state, max_model_len)
    if impossible is not None:
        return Rejected(request.request_id, *impossible)
    full = _queue_full(request, state)
    if full is None:
        return None
    message, excess = full
    wait = rate.seconds_for(excess, now=now)
    return Rejected(request.request_id, RejectReason.QUEUE_FULL, f"{message}; try again in {wait:.1f} s", wait)


def _never(request: Request, state: SchedulerState, max_model_len: int) -> tuple[RejectReason, str] | None:
    prompt, output = len(request.prompt_token_ids), request.max_tokens
    if prompt == 0:
        return RejectReason.EMPTY_PROMPT, "the prompt has 0 tokens, at least 1 is needed"
    if request.request_id in state.live:
        return RejectReason.DUPLICATE_ID, f"request id {request.request_id!r} is in use by 1 request that has not ended"
    if prompt + output > max_model_len:
        return RejectReason.TOO_LONG, (
            f"prompt of {prompt} tokens plus max_tokens {output} is {prompt + output}, more than max_model_len "
            f"{max_model_len}: {_what_fits(prompt, min(max_model_len, _capacity(state)))}"
        )
    if prompt + output > _capacity(state):
        pool = state.pool
        needed = pool.blocks_for(prompt + output - 1)
        return RejectReason.NEVER_FITS, (
            f"prompt of {prompt} tokens plus max_tokens {output} needs {needed} KV blocks of {pool.block_size} tokens, "
            f"the whole cache has {pool.total}: {_what_fits(prompt, _capacity(state))}, or give the engine more KV "
            f"memory"
        )
    return None


def _capacity(state: SchedulerState) -> int:
    """Longest prompt plus output that fits: one more than there are positions, as the last token is never fed back."""
    return state.pool.total * state.pool.block_size + 1


def _what_fits(prompt: int, limit: int) -> str:
    if prompt < limit:
        return f"max_tokens of at most {limit - prompt} fits this prompt"
    return f"shorten the prompt, at most {limit - 1} tokens and max_tokens 1 fit"


def _queue_full(request: Request, state: SchedulerState) -> tuple[str, float] | None:
    """Why the queue is full, and how many requests must end first; None if it is not."""
    config, waiting = state.config, state.waiting
    places = _free_places(state)
    if len(waiting) >= config.max_queue_len + places:
        excess = len(waiting) + 1 - config.max_queue_len - places
        return f"{len(waiting)} requests wait, max_queue_len is {config.max_queue_len}", excess
    limit = config.max_queue_tokens
    # A fork has nothing to prefill: its sibling does it.
    prompt = 0 if state.sibling_of(request) is not None else len(request.prompt_token_ids)
    # A queue with nothing to prefill takes any prompt: waiting would not make it shorter.
    if limit is None or not waiting.tokens or waiting.tokens + prompt <= limit:
        return None
    mean = waiting.tokens / len(waiting)
    message = f"{waiting.tokens} tokens wait, with this prompt's {prompt} that exceeds max_queue_tokens {limit}"
    return message, (waiting.tokens + prompt - limit) / mean


def _free_places(state: SchedulerState) -> int:
    """Places in the batch that the next step could fill. Requests that wait only for those do not count as queued."""
    if state.config.batching == Batching.STATIC and state.running:
        return 0
    return max(0, state.config.max_num_seqs - len(state.running))
