"""OpenAI's answer bodies and stream chunks, built from the engine's events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_core.scheduler.events import FinishReason
from headrace_engine.openai import scores
from headrace_engine.openai.prompts import Prompt
from headrace_engine.openai.scores import CompletionScores
from headrace_engine.openai.tool_json import CallArguments, CallName, PlainText, ToolEvent
from headrace_engine.openai.tools import ToolParser
from headrace_engine.outputs import Delta, Done, PromptScored
from headrace_engine.text.token_text import TokenTexts


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseSpec:
    """The shape of the answer to one call. Choice `p * samples + k` is sample k of prompt p."""

    id: str
    created: int
    model: str
    is_chat: bool
    prompts: tuple[Prompt, ...]
    samples: int = 1
    echo: bool = False
    generates: bool = True  # false: only the prompt is scored
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    token_ids: bool = False
    usage: bool = False  # of a stream: at its end
    usage_always: bool = False  # of a stream: in every chunk
    stop_token_ids: frozenset[int] = frozenset()  # the client's own
    new_parser: Callable[[], ToolParser] | None = None
    max_calls: int | None = None
    texts: TokenTexts | None = None  # set if the answer names any token

    @property
    def generations(self) -> int:
        """How many choices the answer has."""
        return len(self.prompts) * self.samples

    @property
    def scores_prompt(self) -> bool:
        """Whether the answer shows the scores of the prompt."""
        return self.prompt_logprobs is not None or (self.echo and self.logprobs is not None)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts; samples share their prompt, so it counts once."""
        return sum(len(prompt.ids) for prompt in self.prompts)

    def head(self, *, chunk: bool) -> dict[str, Any]:
        """The fields that every body or chunk begins with."""
        kind = "chat.completion" + (".chunk" if chunk else "") if self.is_chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def usage_of(self, output_tokens: int, *, cached: int | None = None) -> dict[str, Any]:
        """OpenAI's usage block; `cached` prompt tokens were in the prefix cache."""
        output = output_tokens if self.generates else 0
        prompt = self.num_prompt_tokens
        usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        return usage | ({} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}})


class ChoiceWriter:
    """Turns the engine's events for one choice into the choices of chunks, or into the choice of a whole body."""

    def __init__(self, spec: ResponseSpec, index: int) -> None:
        self._spec = spec
        self._index = index
        self._prompt = spec.prompts[index // spec.samples]
        self._parser = None if spec.new_parser is None else spec.new_parser()
        self._called = False
        has_scores = not spec.is_chat and spec.logprobs is not None and spec.texts is not None
        self._scores = CompletionScores(spec.texts, top=spec.logprobs or 0) if has_scores and spec.texts else None

    def first(self, scored: PromptScored | None) -> dict[str, Any] | None:
        """The choice of the chunk that precedes any text (the role, or the prompt), or None."""
        spec = self._spec
        if spec.is_chat:
            return self._choice() | {"delta": {"role": "assistant", "content": ""}}
        if not (spec.echo or spec.token_ids):
            return None
        choice = self._choice() | {"text": self._prompt.text if spec.echo else ""}
        if spec.echo and scored is not None and self._scores is not None:
            choice["logprobs"] = self._scores.write(scores.scored_prompt(self._prompt.ids, scored.scores))
        return choice | ({"prompt_token_ids": self._prompt.ids, "token_ids": []} if spec.token_ids else {})

    def more(self, event: Delta | Done) -> list[dict[str, Any]]:
        """The choices of the chunks for an event: at least one, unless a tool call is being read."""
        choice = self._choice() | {"logprobs": self._logprobs(event)} | self._token_ids(event)
        if self._parser is not None:
            choices = self._tool_chunks(choice, event)
        elif self._spec.is_chat:
            choices = [choice | {"delta": {"content": event.text}}]
        else:
            choices = [choice | {"text": self._text(event)}]
        if isinstance(event, Done):
            choices[-1] |= self._ending(event)
        return choices

    def whole(self, done: Done, scored: PromptScored | None) -> dict[str, Any]:
        """The choice of a body. `done` must hold all text, tokens and scores."""
        spec = self._spec
        choice = self._choice() | self._token_ids(done)
        if spec.is_chat:
            choice["message"] = self._message(done.text)
            choice["logprobs"] = self._logprobs(done)
            return choice | self._ending(done)
        choice["text"] = (self._prompt.text if spec.echo else "") + self._text(done)
        if self._scores is not None:
            before = scores.scored_prompt(self._prompt.ids, scored.scores) if spec.echo and scored else []
            choice["logprobs"] = self._scores.write([*before, *self._output(done)])
        if spec.prompt_logprobs is not None and scored is not None:
            choice["prompt_logprobs"] = prompt_logprobs(spec, self._prompt, scored)
        return choice | self._ending(done) | ({"prompt_token_ids": self._prompt.ids} if spec.token_ids else {})

    def _choice(self) -> dict[str, Any]:
        return {"index": self._index, "logprobs": None, "finish_reason": None}

    def _text(self, event: Delta | Done) -> str:
        return event.text if self._spec.generates else ""

    def _output(self, event: Delta | Done) -> list[scores.Scored]:
        return scores.scored_output(event.scores if self._spec.generates else ())

    def _token_ids(self, event: Delta | Done) -> dict[str, Any]:
        if not self._spec.token_ids:
            return {}
        return {"token_ids": event.token_ids if self._spec.generates else ()}

    def _logprobs(self, event: Delta | Done) -> dict[str, Any] | None:
        texts, top = self._spec.texts, self._spec.logprobs
        if self._scores is not None:
            return self._scores.write(self._output(event))
        if texts is None or top is None:
            return None
        return scores.in_chat(event.scores, texts, top=top)

    def _ending(self, done: Done) -> dict[str, Any]:
        reason = str(done.reason) if self._spec.generates else str(FinishReason.LENGTH)
        if self._called and done.reason is FinishReason.STOP:
            reason = "tool_calls"
        stop = done.stop_reason
        named = stop if isinstance(stop, str) or stop in self._spec.stop_token_ids else None
        return {"finish_reason": reason, "stop_reason": named}

    def _read_tools(self, text: str, *, last: bool) -> list[ToolEvent]:
        parser, limit = self._parser, self._spec.max_calls
        if parser is None:
            return [PlainText(text)] if text else []
        events = [*parser.push(text), *(parser.finish() if last else ())]
        kept = [event for event in events if isinstance(event, PlainText) or limit is None or event.index < limit]
        self._called = self._called or any(isinstance(event, CallName) for event in kept)
        return kept

    def _tool_chunks(self, choice: dict[str, Any], event: Delta | Done) -> list[dict[str, Any]]:
        last = isinstance(event, Done)
        deltas = [self._tool_delta(item) for item in self._read_tools(event.text, last=last)]
        if not deltas and not last and choice["logprobs"] is None and not self._spec.token_ids:
            return []
        plain = self._choice()
        return [(plain if at else choice) | {"delta": delta} for at, delta in enumerate(deltas or [{}])]

    def _tool_delta(self, event: ToolEvent) -> dict[str, Any]:
        match event:
            case PlainText(text=text):
                return {"content": text}
            case CallName(index=index, name=name):
                return {"tool_calls": [{"index": index} | self._call(index, name, "")]}
            case CallArguments(index=index, text=text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

    def _message(self, text: str) -> dict[str, Any]:
        said, names, arguments = "", list[str](), list[str]()
        for event in self._read_tools(text, last=True):
            match event:
                case PlainText(text=more):
                    said += more
                case CallName(name=name):
                    names.append(name)
                    arguments.append("")
                case CallArguments(index=index, text=more):
                    arguments[index] += more
        message: dict[str, Any] = {"role": "assistant", "content": said, "refusal": None}
        if not names:
            return message
        calls = [self._call(at, *call) for at, call in enumerate(zip(names, arguments, strict=True))]
        return message | {"content": said or None, "tool_calls": calls}

    def _call(self, index: int, name: str, arguments: str) -> dict[str, Any]:
        unique = f"call_{self._spec.id.rpartition('-')[2]}_{self._index}_{index}"
        return {"id": unique, "type": "function", "function": {"name": name, "arguments": arguments}}


def prompt_logprobs(spec: ResponseSpec, prompt: Prompt, scored: PromptScored) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs` of one prompt."""
    assert spec.texts is not None  # noqa: S101  (given wherever scores are asked for)
    pairs = scores.scored_prompt(prompt.ids, scored.scores)
    return scores.of_prompt(pairs, spec.texts, top=spec.prompt_logprobs or 0)


def whole_body(spec: ResponseSpec, ends: Sequence[Done], scored: Sequence[PromptScored | None]) -> dict[str, Any]:
    """The body of a call that does not stream. `ends` has one `Done` per choice, `scored` one entry per prompt."""
    choices = [ChoiceWriter(spec, at).whole(done, scored[at // spec.samples]) for at, done in enumerate(ends)]
    cached = sum(done.cached_tokens for done in ends[:: spec.samples])
    body = spec.head(chunk=False) | {
        "choices": choices,
        "usage": spec.usage_of(sum(done.num_output_tokens for done in ends), cached=cached),
    }
    if spec.is_chat and spec.prompt_logprobs is not None and scored[0] is not None:
        body["prompt_logprobs"] = prompt_logprobs(spec, spec.prompts[0], scored[0])
    return body | ({"prompt_token_ids": spec.prompts[0].ids} if spec.is_chat and spec.token_ids else {})
