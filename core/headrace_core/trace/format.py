"""The text of a recording: one canonical JSON object a line. Equal texts mean equal calls and equal answers.

The first line is the header. Every other line is one call: `{"answer": .., "args": .., "call": name, "now": seconds}`.
A plan holds only the part of each block table that changed since that request's last plan, since most of it never
does: with whole tables, a step of 256 long sequences would take 100 KB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, assert_never

from headrace_core.knobs.resolve import EngineConfig, resolve
from headrace_core.scheduler.events import (
    Admitted,
    ChangeRefused,
    Finished,
    Outcome,
    Preempted,
    Reconfigured,
    Rejected,
    Request,
    ScheduledSeq,
    Started,
    StepPlan,
    StepResult,
    Token,
)

FORMAT, VERSION = "headrace-schedule", 1


def canonical(value: object) -> str:
    """JSON with sorted keys and no spaces, so that equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def header(config: EngineConfig, *, num_blocks: int, max_model_len: int, cache_namespace: str) -> dict[str, object]:
    """Everything needed to construct the scheduler again."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "config": config.values(),
        "ceilings": dict(config.ceilings),
        "num_blocks": num_blocks,
        "max_model_len": max_model_len,
        "cache_namespace": cache_namespace,
    }


def read_header(data: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for the scheduler's constructor. Raises `ValueError` if the header is wrong."""
    if data.get("format") != FORMAT:
        raise ValueError(f"format must be {FORMAT!r}, got {data.get('format')!r}: not a scheduler recording")
    if data.get("version") != VERSION:
        raise ValueError(
            f"version must be {VERSION}, got {data.get('version')!r}: replay with the release that recorded it"
        )
    try:
        return {
            "config": resolve(data["config"], ceilings=data["ceilings"]),
            "num_blocks": int(data["num_blocks"]),
            "max_model_len": int(data["max_model_len"]),
            "cache_namespace": str(data["cache_namespace"]),
        }
    except KeyError as error:
        raise ValueError(f"{error.args[0]} is missing") from error


def request_to_json(request: Request) -> dict[str, object]:
    """All fields except those that have their default."""
    data: dict[str, object] = {
        "id": request.request_id,
        "prompt": list(request.prompt_token_ids),
        "max_tokens": request.max_tokens,
        "arrival": request.arrival,
    }
    optional = {
        "stop": sorted(request.stop_token_ids),
        "priority": request.priority,
        "salt": request.cache_salt,
        "fork_of": request.fork_of,
    }
    data |= {name: value for name, value in optional.items() if value}
    return data if request.reads_cache else data | {"reads_cache": False}


def request_from_json(data: Mapping[str, Any]) -> Request:
    """The inverse of `request_to_json`."""
    return Request(
        request_id=data["id"],
        prompt_token_ids=tuple(data["prompt"]),
        max_tokens=data["max_tokens"],
        arrival=data["arrival"],
        stop_token_ids=frozenset(data.get("stop", ())),
        priority=data.get("priority", 0),
        cache_salt=data.get("salt", ""),
        reads_cache=data.get("reads_cache", True),
        fork_of=data.get("fork_of"),
    )


def result_to_json(result: StepResult) -> dict[str, object]:
    """Tokens by request id, and the ids of failed requests."""
    return {"tokens": dict(result.tokens), "failed": sorted(result.failed)}


def result_from_json(data: Mapping[str, Any]) -> StepResult:
    """The inverse of `result_to_json`."""
    return StepResult(tokens=data["tokens"], failed=frozenset(data["failed"]))


class PlanWriter:
    """Turns the plans of one scheduler, in order, into JSON values."""

    def __init__(self) -> None:
        self._tables: dict[str, tuple[int, ...]] = {}

    def to_json(self, plan: StepPlan | None) -> dict[str, object] | None:
        """`seqs` are [id, kind, start, tokens, first changed block index, blocks from there, sibling of a fork]."""
        if plan is None:
            return None
        return {
            "step": plan.step,
            "generation": plan.generation,
            "seqs": [self._seq(row) for row in plan.seqs],
            "preempted": list(plan.preempted),
            "copies": [list(copy) for copy in plan.copies],
        }

    def forget(self, request_id: str) -> None:
        """The request ended: its id may be used again."""
        self._tables.pop(request_id, None)

    def _seq(self, row: ScheduledSeq) -> list[object]:
        before, table = self._tables.get(row.request_id, ()), row.block_table
        same = len(before) if table[: len(before)] == before else _common(before, table)
        self._tables[row.request_id] = table
        kind = ("p" if row.is_prefill else "d") + ("!" if row.samples else "")
        data = [row.request_id, kind, row.start, list(row.token_ids), same, list(table[same:])]
        return data if row.fork_of is None else [*data, row.fork_of]


def _common(before: tuple[int, ...], table: tuple[int, ...]) -> int:
    pairs = zip(before, table, strict=False)
    return next((at for at, (old, new) in enumerate(pairs) if old != new), min(len(before), len(table)))


def outcome_to_json(outcome: Outcome) -> list[object]:
    """A list with the kind first."""
    match outcome:
        case Started():
            return ["started", outcome.request_id, outcome.at, outcome.cached_tokens]
        case Token():
            return ["token", outcome.request_id, outcome.token_id, outcome.index]
        case Preempted():
            return ["preempted", outcome.request_id, outcome.recompute]
        case Finished():
            return ["finished", outcome.request_id, str(outcome.reason), outcome.num_output_tokens]
    assert_never(outcome)


def admission_to_json(answer: Admitted | Rejected) -> dict[str, object]:
    """The answer to `submit`."""
    if isinstance(answer, Admitted):
        return {"admitted": answer.request_id}
    return {"rejected": str(answer.reason), "message": answer.message, "retry_after": answer.retry_after}


def change_to_json(answer: Reconfigured | ChangeRefused) -> dict[str, object]:
    """The answer to `reconfigure`."""
    if isinstance(answer, Reconfigured):
        return {"generation": answer.generation, "config": answer.config.hot_values()}
    return {"refused": [[problem.knob, problem.message] for problem in answer.problems]}
