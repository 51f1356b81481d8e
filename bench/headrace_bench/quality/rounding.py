"""How far rounding alone may move a logit, so that a tie can be told from a difference and a fault from noise.

Batching, chunking, preemption and cache hits change the shapes of matrix products, and with them the order in which
the same numbers are added; nothing else. Each addition errs by at most `unit` of its result, at random, so errors add
up like a random walk: a sum of K numbers is off by about sqrt(K) units of the size of what it sums. The residual stream
of L layers takes 2 L such sums one after another, and the head one more: sqrt((2 L + 1) K) units, relative to the
spread of the logits. Where products are accumulated in a wider format than they are stored in (bfloat16, float16),
only what is stored errs, `STORED` times in each half layer. SAFETY covers the tail of millions of logits and what a
layer may amplify. This bounds one side's distance from exact arithmetic; two sides differ by at most the sum of both.

A log-probability is a logit less the log-sum-exp of its row, which moves by no more than the largest move of a logit:
so it moves by at most twice as much. The same holds for the gap between two logits. Neither step is a guess.
"""

from __future__ import annotations

import math

from headrace_core.observations import ModelWidths, Number

SAFETY = 4.0
STORED = 6.0  # roundings of what half a layer stores: norm, projections, activation or attention, residual sum

UNIT = {Number.FLOAT32: 2.0**-24, Number.BFLOAT16: 2.0**-9, Number.FLOAT16: 2.0**-12}


def bound(shape: ModelWidths, dtype: Number, kv_dtype: Number) -> float:
    """Most that a logit of one side may be off, relative to the spread of a row's logits."""
    halves = 2 * shape.layers + 1
    each = shape.width if dtype is Number.FLOAT32 else STORED
    computed = UNIT[dtype] * math.sqrt(halves * each)
    # A narrower cache rounds each key and each value once a layer.
    cached = UNIT[kv_dtype] * math.sqrt(2 * shape.layers) if UNIT[kv_dtype] > UNIT[dtype] else 0.0
    return SAFETY * math.hypot(computed, cached)
