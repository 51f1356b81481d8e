"""From a checked body and its prompts to the engine's requests and the shape of the answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace_core.scheduler.events import Request as SchedulerRequest
from headrace_engine.engine import Engine
from headrace_engine.http.errors import invalid
from headrace_engine.loop.live_request import LiveRequest
from headrace_engine.model.generation import SuggestedSampling
from headrace_engine.openai.prompts import Prompt
from headrace_engine.openai.responses import ResponseSpec
from headrace_engine.openai.schema import ChatBody, CompletionBody, GenerationBody
from headrace_engine.openai.tools import ToolParser
from headrace_engine.outputs import EventSink
from headrace_engine.sampling.params import SamplingParams
from headrace_engine.text.detokenize import TextStream
from headrace_engine.text.token_text import TokenTexts


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What one call asks of the engine. `budgets` has the most output tokens for each prompt."""

    call_id: str
    model: str
    body: GenerationBody
    prompts: tuple[Prompt, ...]
    budgets: tuple[int, ...]
    arrival: float
    seed: str
    grammar: Any = None
    new_parser: Callable[[], ToolParser] | None = None

    @property
    def generates(self) -> bool:
        """Whether any new token is wanted."""
        return not (isinstance(self.body, CompletionBody) and self.body.max_tokens == 0)

    @property
    def logprobs(self) -> int | None:
        """How many of the likeliest tokens to report at each output position, None for no scores."""
        if isinstance(self.body, ChatBody):
            return (self.body.top_logprobs or 0) if self.body.logprobs else None
        return self.body.logprobs if isinstance(self.body, CompletionBody) else None

    @property
    def echoes(self) -> bool:
        """Whether the prompt comes first in the answer."""
        return isinstance(self.body, CompletionBody) and bool(self.body.echo)

    @property
    def prompt_scores(self) -> int | None:
        """How many of the likeliest tokens to report at each prompt position, None for no scores."""
        wanted = [self.body.prompt_logprobs, self.logprobs if self.echoes else None]
        return max((top for top in wanted if top is not None), default=None)


def response_spec(request: GenerationRequest, texts: Callable[[], TokenTexts]) -> ResponseSpec:
    """The shape of the answer. `texts` is slow the first time, and called only if the answer names tokens."""
    body = request.body
    options = body.stream_options
    is_chat = isinstance(body, ChatBody)
    single = isinstance(body, ChatBody) and body.parallel_tool_calls is False
    return ResponseSpec(
        id=request.call_id,
        created=int(time.time()),  # noqa: TID251  (OpenAI's `created` is unix time)
        model=request.model,
        is_chat=is_chat,
        prompts=request.prompts,
        samples=body.choices,
        echo=request.echoes,
        generates=request.generates,
        logprobs=request.logprobs,
        prompt_logprobs=body.prompt_logprobs,
        token_ids=bool(body.return_token_ids),
        usage=options is not None and bool(options.include_usage),
        usage_always=options is not None and bool(options.continuous_usage_stats),
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        new_parser=request.new_parser,
        max_calls=1 if single else None,
        texts=texts() if request.logprobs is not None or body.prompt_logprobs is not None else None,
    )


def live_requests(
    request: GenerationRequest, engine: Engine, sink: EventSink, *, hides_special: bool
) -> list[LiveRequest]:
    """One per sample of each prompt; a prompt's later samples are forks of its first. Raises `ApiError` 400."""
    made = []
    for at, (prompt, budget) in enumerate(zip(request.prompts, request.budgets, strict=True)):
        if request.body.min_tokens > budget:
            raise invalid(
                f"min_tokens {request.body.min_tokens} exceeds the {budget} tokens that may be generated: lower it, or "
                "raise max_tokens", param="min_tokens", code="invalid_value",
            )  # fmt: skip
        first = at * request.body.choices
        made += [
            _live_request(request, engine, prompt, budget=budget, index=first + sample, first=first, sink=sink,
                          hides_special=hides_special)
            for sample in range(request.body.choices)
        ]  # fmt: skip
    return made


def _live_request(
    request: GenerationRequest, engine: Engine, prompt: Prompt, *, budget: int, index: int, first: int, sink: EventSink,
    hides_special: bool,
) -> LiveRequest:  # fmt: skip
    body, is_fork = request.body, index != first
    ends = frozenset(body.stop_token_ids or ()) | (frozenset() if body.ignore_eos else engine.model.eos_token_ids)
    # Samples share their prompt's scores.
    prompt_scores = None if is_fork else request.prompt_scores
    return LiveRequest(
        SchedulerRequest(
            request_id=f"{request.call_id}-{index}", prompt_token_ids=prompt.ids, max_tokens=max(1, budget),
            arrival=request.arrival, stop_token_ids=ends, priority=body.priority, cache_salt=body.cache_salt or "",
            reads_cache=prompt_scores is None, fork_of=f"{request.call_id}-{first}" if is_fork else None,
        ),
        _params(
            request, engine.sampling, prompt_len=len(prompt.ids), ends=ends, index=index, prompt_scores=prompt_scores
        ),
        TextStream(
            engine.model.tokenizer, prompt.ids, stops=body.stops, incremental=bool(body.stream),
            include_stop=body.include_stop_str_in_output, min_tokens=body.min_tokens, skip_special=hides_special,
        ),
        sink=sink, index=index, eos_token_ids=engine.model.eos_token_ids,
    )  # fmt: skip


def _params(
    request: GenerationRequest, default: SuggestedSampling, *, prompt_len: int, ends: frozenset[int], index: int,
    prompt_scores: int | None,
) -> SamplingParams:  # fmt: skip
    body = request.body
    return SamplingParams(
        prompt_len=prompt_len,
        temperature=default.temperature if body.temperature is None else body.temperature,
        top_p=default.top_p if body.top_p is None else body.top_p,
        top_k=default.top_k if body.top_k is None else max(0, body.top_k),
        min_p=default.min_p if body.min_p is None else body.min_p,
        repetition_penalty=default.repetition_penalty if body.repetition_penalty is None else body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=tuple(sorted(body.biases.items())),
        seed=f"{request.seed}-{index}",
        min_tokens=body.min_tokens,
        stop_token_ids=ends,
        logprobs=request.logprobs if request.generates else None,
        prompt_logprobs=prompt_scores,
        grammar=request.grammar,
    )
