"""The OpenAI request bodies that are understood. What would change the answer and is not built is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace_engine.http_errors import ApiError, invalid

MAX_STOPS = 16
MAX_PROMPTS = 1024

# Fields of OpenAI's (and vLLM's) API that are not built yet, with the values that ask for nothing.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "suffix": ("",),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
}
# Fields that never change the text.
IGNORED = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
)

# Where a field has alternatives, the first one's message would mislead.
UNION_MESSAGES = {
    "prompt": "must be a string, a list of strings, a list of token ids, or a list of lists of token ids",
    "stop": "must be a string or a list of strings",
}
T = TypeVar("T", bound="GenerationBody")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Strict):
    """What a stream tells beside its text."""

    include_usage: bool = False


class GenerationBody(_Strict):
    """What both generating routes take."""

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)

    @property
    def stops(self) -> list[str]:
        """Stop strings, without empty ones."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in stops if stop]

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(GenerationBody):
    """`/v1/completions`: one prompt or several, as text or token ids."""

    prompt: str | list[str] | list[int] | list[list[int]]

    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, one by one."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt  # type: ignore[return-value]


class TextPart(_Strict):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class Message(_Strict):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart]
    name: str | None = None

    def for_template(self) -> dict[str, str]:
        """The form that chat templates read."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": content}


class ChatBody(GenerationBody):
    """`/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = Field(default=None, ge=1)


def parse(raw: bytes, kind: type[T]) -> T:
    """Read a body. Raises `ApiError` 400 that names the field."""
    values = _read_json(raw)
    _drop_neutral(values)
    try:
        body = kind.model_validate(values)
    except ValidationError as error:
        _raise_first(error)
    if len(body.stops) > MAX_STOPS:
        raise invalid(f"stop has {len(body.stops)} strings, at most {MAX_STOPS} are allowed", param="stop")
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options needs stream: true", param="stream_options")
    return body


def _read_json(raw: bytes) -> dict[str, Any]:
    try:
        values = json.loads(raw, parse_constant=_refuse_constant)
    except ApiError:
        raise
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise invalid("the body must be a JSON object")
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise invalid(f"the body is not JSON: {name} is no JSON number")


def _drop_neutral(values: dict[str, Any]) -> None:
    for name in IGNORED.intersection(values):
        del values[name]
    for name, neutral in NEUTRAL.items():
        if name not in values:
            continue
        value = values.pop(name)
        if value is not None and not _is_one_of(value, neutral):
            raise invalid(
                f"{name} is not supported by this server yet: leave it out (or {json.dumps(neutral[0])})",
                param=name,
                code="unsupported_parameter",
            )


def _is_one_of(value: object, neutral: tuple[object, ...]) -> bool:
    # True == 1 in Python, but not to a client: logprobs 0 and false both ask for nothing, n true is an error.
    return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in neutral)


def _raise_first(error: ValidationError) -> NoReturn:
    first = error.errors(include_url=False)[0]
    # A union adds a segment for the alternative that it tried; the person wrote only names and indices.
    path = [str(part) for part in first["loc"] if isinstance(part, int) or (part.isidentifier() and part != "str")]
    name = path[0] if path else None
    where = ".".join(path)
    if first["type"] == "extra_forbidden":
        raise invalid(f"{where} is not a parameter of this server", param=name, code="unknown_parameter") from error
    raise invalid(f"{where}: {UNION_MESSAGES.get(str(name), first['msg'])}", param=name) from error
