"""Whether the step thread is alive, judged by how long the largest legal step can take.

A running step is a sign of life until it has taken far longer than any legal one could. Between steps the thread is
pinged: a call that does nothing goes through its inbox, and if it stays unanswered the thread hangs. The ping is sent
only when a probe asks while there is work, so an idle engine stays idle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from headrace_core.knobs.resolve import EngineConfig
from headrace_core.sim.step_time import StepShape, StepTimeModel
from headrace_engine.engine import Engine

FLOOR_SECONDS = 60.0  # a machine that swaps or is suspended for a moment does not count as hanging
MARGIN = 3.0
# Before any step was seen: the first may compile kernels, and a big model on a slow CPU takes this long per token.
FIRST_SECONDS = 300.0
SLOW_TOKEN_SECONDS = 0.2


def largest_step(config: EngineConfig) -> int:
    """Tokens of the largest step that `config` allows."""
    whole_prompts = 0 if config.enable_chunked_prefill else int(config.max_model_len or 0)
    return max(config.max_num_batched_tokens, whole_prompts)


def deadline(config: EngineConfig, model: StepTimeModel) -> float:
    """Seconds after which a step is taken to hang.

    A token alone in its step costs more than a token of any larger step, so that cost times the tokens of the largest
    step is an upper bound; `model` predicts the cost.
    """
    tokens = largest_step(config)
    if not model.ready:
        return FIRST_SECONDS + SLOW_TOKEN_SECONDS * tokens
    context = int(config.max_model_len or 1)
    alone = StepShape(rows=1, prefill_rows=0, decode_keys=context, prefill_keys=0, prefill_pairs=0, sampled=1)
    return max(FLOOR_SECONDS, MARGIN * tokens * model.predict(alone))


class Heartbeat:
    """Watches one engine's step thread. Used by the event loop only."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._asked: float | None = None
        self._answer: asyncio.Task[object] | None = None

    def problem(self, *, busy: bool) -> str | None:
        """Why the thread is not alive, or None. `busy`: whether a call is waiting for it."""
        loop = self._engine.loop
        if not loop.alive:
            return "the step thread has ended"
        limit = deadline(loop.state.config, self._engine.metrics.cost_model)
        started = loop.step_started
        if started is not None and (age := self._clock() - started) > limit:
            return f"a step has been running for {age:.0f} s; the largest legal one takes at most {limit:.0f} s"
        if (silent := self._silence(busy or loop.stats.running + loop.stats.waiting > 0)) > limit:
            return f"the step thread has not answered for {silent:.0f} s, at most {limit:.0f} s are legal"
        return None

    def _silence(self, busy: bool) -> float:
        """Seconds since a ping that is still unanswered was sent, else 0."""
        if self._answer is not None and self._answer.done():
            self._answer.exception()  # retrieved and dropped: if the thread ended, `alive` says so
            self._answer = self._asked = None
        if self._answer is None and busy:
            self._asked = self._clock()
            self._answer = asyncio.get_running_loop().create_task(self._engine.loop.explain(""))
        return 0.0 if self._asked is None else self._clock() - self._asked
