"""One live request of the engine loop: collects its tokens and turns them into events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace_core.scheduler.events import FinishReason, Rejected, Request
from headrace_engine.errors import EngineError
from headrace_engine.metrics.generation_record import GenerationRecord
from headrace_engine.outputs import Delta, Done, Event, EventSink, PromptScored, RequestProblem, TokenScore
from headrace_engine.sampling.params import SamplingParams
from headrace_engine.sampling.token_state import TokenState
from headrace_engine.text.detokenize import TextStream


class RejectedError(EngineError):
    """The scheduler rejected a request; `rejected` says why."""

    def __init__(self, rejected: Rejected) -> None:
        super().__init__(rejected.message)
        self.rejected = rejected


class LiveRequest:
    """The scheduler's request, with everything else the loop needs. Once submitted, only the step thread uses it.

    `index` is its number among the generations of its call, whose events all go to `sink`. `eos_token_ids` are the
    model's: a request that ends with one of them reports no stop reason.
    """

    def __init__(
        self, request: Request, params: SamplingParams, text: TextStream, *, sink: EventSink, index: int = 0,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        self.request = request
        self.sink = sink
        self.record = GenerationRecord.of(request, index=index, temperature=params.temperature, top_p=params.top_p)
        self.state = TokenState(params, request.prompt_token_ids)
        self.prompt_scores: list[TokenScore] = []
        self._text = text
        self._eos = eos_token_ids
        self._prompt_told = params.prompt_logprobs is None
        self._newest: int | None = None
        # Not published yet:
        self._piece = ""
        self._tokens: list[int] = []
        self._scores: list[TokenScore] = []

    @property
    def id(self) -> str:
        """The request id that the scheduler knows it by."""
        return self.request.request_id

    def score_prompt(self, scores: Sequence[TokenScore]) -> None:
        """Add the scores of the next tokens of the prompt."""
        self.prompt_scores.extend(scores)
        self.state.prompt_scored = len(self.prompt_scores)

    def score_prompt_like(self, lead: LiveRequest) -> None:
        """Copy the prompt scores of `lead`, of which this request is a fork."""
        if self.state.wants_prompt_scores:
            top = self.state.params.prompt_logprobs or 0
            self.score_prompt([replace(score, top=score.top[:top]) for score in lead.prompt_scores])

    def take(self, token: int, score: TokenScore | None) -> None:
        """Take in a generated token. Raises whatever the grammar or the detokenizer raises."""
        if self.state.wants_prompt_scores:
            raise ValueError("the prompt's scores are not known: the request that this one was forked from has none")
        self._newest = token
        self._tokens.append(token)
        if score is not None:
            self._scores.append(score)
        self.state.accept(token)
        if not self._ends(token) or self._text.include_stop:
            self._piece += self._text.push(token)

    @property
    def is_over(self) -> bool:
        """Whether a stop string or a complete grammar ends the request, neither of which the scheduler sees."""
        return self._text.stopped or self.state.is_complete

    def tell(self) -> list[Event]:
        """The events for tokens taken since the last call, while the request continues."""
        events = self._tell_prompt()
        if self._tokens:
            text, tokens, scores = self._untold()
            events.append(Delta(text=text, token_ids=tokens, scores=scores))
        return events

    def end(self, reason: FinishReason) -> list[Event]:
        """The last events. Raises whatever decoding the rest of the text raises."""
        events = self._tell_prompt() if self._newest is not None else []
        self._piece += self._text.finish()
        if reason is FinishReason.LENGTH and self.is_over:
            reason = FinishReason.STOP
        return [*events, self._done(reason, stop_reason=self._stop_reason(reason))]

    def fail(self, problem: RequestProblem) -> list[Event]:
        """The last event of a request that failed."""
        return [self._done(FinishReason.ERROR, problem=problem)]

    def _done(
        self, reason: FinishReason, *, problem: RequestProblem | None = None, stop_reason: str | int | None = None
    ) -> Done:
        text, tokens, scores = self._untold()
        return Done(
            text=text, reason=reason, num_output_tokens=self.record.output_tokens, token_ids=tokens, scores=scores,
            problem=problem, stop_reason=stop_reason, cached_tokens=self.record.cached_tokens,
        )  # fmt: skip

    def _untold(self) -> tuple[str, tuple[int, ...], tuple[TokenScore, ...]]:
        told = self._piece, tuple(self._tokens), tuple(self._scores)
        self._piece, self._tokens, self._scores = "", [], []
        if (kept := self.record.text) is not None:
            kept.append(told[0])
        return told

    def _tell_prompt(self) -> list[Event]:
        if self._prompt_told:
            return []
        self._prompt_told = True
        return [PromptScored(scores=(None, *self.prompt_scores))]

    def _ends(self, token: int) -> bool:
        """Whether `token` only marks the end of the output."""
        return token in self.request.stop_token_ids or (self.state.matcher is not None and token in self._eos)

    def _stop_reason(self, reason: FinishReason) -> str | int | None:
        if reason is not FinishReason.STOP:
            return None
        if self._text.stop is not None:
            return self._text.stop
        token = self._newest
        return token if token in self.request.stop_token_ids and token not in self._eos else None
