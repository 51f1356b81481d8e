"""Why a request is not in a step."""

from __future__ import annotations

from enum import StrEnum


class WaitCause(StrEnum):
    """Why a request was left out of a step: the first cause that applies, in the order in which they are checked."""

    NEXT_STEP = "next_step"  # it arrived while a step was running
    SIBLING = "sibling"  # a fork waits for its sibling's prefill, to share it
    QUEUE_ORDER = "queue_order"  # others were ahead of it
    STATIC_BATCH = "static_batch"  # a static batch runs until its last sequence ends
    SEQUENCE_CAP = "sequence_cap"  # max_num_seqs sequences are running
    TOKEN_BUDGET = "token_budget"  # decodes and earlier prefills filled the step  # noqa: S105
    KV_BLOCKS = "kv_blocks"  # too few are free
    KV_PEAK = "kv_peak"  # enough are free, but running requests are expected to need them
    PARTIAL_PREFILL_LIMIT = "partial_prefill_limit"  # max_num_partial_prefills prompts are partly prefilled
    LONG_PREFILL_LIMIT = "long_prefill_limit"  # another long prompt is in prefill
    PREFILL_OF_OTHERS = "prefill_of_others"  # the chunks of another go first, or run back to back
    AFTER_PREEMPTION = "after_preemption"  # it lost its blocks and waits to start again
