"""The request bodies. Fields that would change the answer but are not supported are refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import Discriminator, Field, Tag, ValidationError

from headrace_engine.http.errors import invalid
from headrace_engine.model.generation import LIMITS
from headrace_engine.openai import fields
from headrace_engine.openai.fields import (
    Count,
    Flag,
    JsonObject,
    Priority,
    StopString,
    StopStrings,
    Strict,
    TokenIds,
)
from headrace_engine.openai.messages import (
    MAX_MESSAGES,
    ChatMessage,
    NamedChoice,
    Tool,
    ToolChoice,
    doubled,
)

# Fields of OpenAI's API that are not supported, with the values that have no effect.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "verbosity": ("medium",),
    "web_search_options": (),
}
MODELS_OWN = "as the model's generation_config.json"
PROMPT_FORMS = "must be a string, a list of strings, a list of token ids, or a list of lists of token ids"


def _prompt_form(value: object) -> str | None:
    """Which of the four forms, judged by the first entry alone, as a prompt may have a million of them."""
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    return "ids" if isinstance(first, int) else "id_lists" if isinstance(first, list) else "texts"


PromptField = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Field(fail_fast=True), Tag("texts")]
    | Annotated[list[int], Field(fail_fast=True), Tag("ids")]
    | Annotated[list[Annotated[list[int], Field(fail_fast=True)]], Field(fail_fast=True), Tag("id_lists")],
    Discriminator(_prompt_form, custom_error_type="prompt_type", custom_error_message=PROMPT_FORMS),
]


class StreamOptions(Strict):
    """What a stream sends besides its text."""

    include_usage: bool | None = Field(default=None, description="End with an event that has the usage.")
    continuous_usage_stats: bool | None = Field(default=None, description="Usage so far in every event.")
    include_obfuscation: bool | None = Field(default=None, description="Accepted; events are never padded.")


class JsonSchemaFormat(Strict):
    """The schema that an answer must follow. It is always enforced, whatever `strict` says."""

    name: str
    description: str | None = None
    schema_: JsonObject | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """OpenAI's way to ask for JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(Strict):
    """vLLM's way to constrain the text: exactly one of these."""

    json_: JsonObject | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=1024)] | None = None
    json_object: bool | None = None


class Accepted(Strict):
    """Fields that never change the text: accepted and ignored."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class GenerationBody(Accepted):
    """What both generating routes take."""

    model: str | None = Field(default=None, description="The served name; absent: the one model.")
    temperature: float | None = Field(
        default=None, **LIMITS["temperature"], description=f"0 takes the likeliest. Default {MODELS_OWN}, else 1."
    )
    top_p: float | None = Field(default=None, **LIMITS["top_p"], description=f"Default {MODELS_OWN}, else 1: off.")
    top_k: int | None = Field(
        default=None, **LIMITS["top_k"], description=f"0 and -1: off. Default {MODELS_OWN}, else off."
    )
    min_p: float | None = Field(default=None, **LIMITS["min_p"], description=f"Default {MODELS_OWN}, else 0: off.")
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(
        default=None, **LIMITS["repetition_penalty"], description=f"Default {MODELS_OWN}, else 1: off."
    )
    logit_bias: fields.Biases | None = Field(default=None, description="Token id to what is added to its logit.")
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    n: int | None = Field(default=None, ge=1, description="Samples of each prompt.")
    stop: StopString | StopStrings | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: Flag = False
    min_tokens: Count = 0
    ignore_eos: Flag = False
    skip_special_tokens: Flag = True
    prompt_logprobs: int | None = Field(default=None, ge=0, le=fields.MAX_LOGPROBS)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonObject | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(min_length=1, max_length=1024)] | None = None
    priority: Priority = Field(default=0, description="Lower is served first.")
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    return_token_ids: bool | None = None

    @property
    def stops(self) -> list[str]:
        """Stop strings, without empty ones."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in stops if stop]

    @property
    def choices(self) -> int:
        """Samples of each prompt."""
        return self.n or 1

    @property
    def biases(self) -> dict[int, float]:
        """`logit_bias` by token id. Raises `ApiError` 400."""
        try:
            return {int(key): value for key, value in (self.logit_bias or {}).items()}
        except ValueError as error:
            raise invalid(
                f"logit_bias: its keys must be token ids: {error}", param="logit_bias", code="invalid_value"
            ) from error

    def check(self) -> None:
        """Check fields against each other. Raises `ApiError` 400."""
        _ = self.biases
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options needs stream: true", param="stream_options", code="invalid_value")
        if self.stream and self.prompt_logprobs is not None:
            raise invalid("prompt_logprobs cannot be used with stream", param="prompt_logprobs", code="invalid_value")


class CompletionBody(GenerationBody):
    """`/v1/completions`: one prompt or several, as text or token ids."""

    prompt: PromptField
    max_tokens: int | None = Field(default=None, ge=0, description="Default 16; 0 only with echo.")
    echo: bool | None = Field(default=None, description="Begin each answer with its prompt.")
    logprobs: int | None = Field(default=None, ge=0, le=fields.MAX_LOGPROBS)
    best_of: int | None = Field(default=None, ge=1, description="Must equal n.")
    add_special_tokens: Flag = Field(default=True, description="Add tokens such as BOS to prompts given as text.")

    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts as a list, even if there is only one."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt  # type: ignore[return-value]

    def check(self) -> None:
        """Check fields against each other. Raises `ApiError` 400."""
        super().check()
        if self.best_of is not None and self.best_of != self.choices:
            raise invalid(
                f"best_of {self.best_of} with n {self.choices}: answers are not ranked here; leave best_of out, "
                "or raise n", param="best_of", code="unsupported_parameter",
            )  # fmt: skip
        if self.max_tokens == 0 and not self.echo:
            raise invalid(
                "max_tokens 0 asks for nothing: give at least 1, or echo: true to score the prompt",
                param="max_tokens", code="invalid_value",
            )  # fmt: skip


class ChatBody(GenerationBody):
    """`/v1/chat/completions`: a conversation to continue."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: int | None = Field(default=None, ge=1, description="Default: what the context leaves.")
    max_completion_tokens: int | None = Field(default=None, ge=1, description="OpenAI's newer name for max_tokens.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=fields.MAX_LOGPROBS, description="Needs logprobs: true.")
    tools: Annotated[list[Tool], Field(max_length=fields.MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = Field(default=None, description="false: at most one call. Default true.")
    chat_template_kwargs: JsonObject | None = Field(default=None, description="Variables of the chat template.")
    add_generation_prompt: bool | None = Field(default=None, description="Default: not continue_final_message.")
    continue_final_message: Flag = Field(default=False, description="Continue the last message.")
    reasoning_effort: str | None = Field(default=None, description="For chat templates that know it.")
    prediction: Any = Field(default=None, description="Accepted and ignored.")

    @property
    def wanted_tokens(self) -> tuple[int | None, str]:
        """The output limit and the field that it came from."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"

    @property
    def choice_of_tools(self) -> str | NamedChoice:
        """`tool_choice` with its default, `none` without tools."""
        if not self.tools:
            return "none"
        return "auto" if self.tool_choice is None else self.tool_choice

    def check(self) -> None:
        """Check fields against each other. Raises `ApiError` 400."""
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs needs logprobs: true", param="top_logprobs", code="invalid_value")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise invalid(
                f"max_tokens {self.max_tokens} and max_completion_tokens {self.max_completion_tokens} are the same "
                "limit: give one", param="max_completion_tokens", code="invalid_value",
            )  # fmt: skip
        check_conversation(self, self.messages)
        self._check_choice()

    def _check_choice(self) -> None:
        choice = self.tool_choice
        if choice not in (None, "none", "auto") and not self.tools:
            raise invalid("tool_choice needs tools", param="tool_choice", code="invalid_value")
        names = [tool.function.name for tool in self.tools or ()]
        if isinstance(choice, NamedChoice) and choice.function.name not in names:
            raise invalid(
                f"tool_choice names {choice.function.name!r}; tools has {', '.join(names)}",
                param="tool_choice", code="invalid_value",
            )  # fmt: skip


class Talk(Protocol):
    """The fields of a body that say how its messages are rendered."""

    tools: list[Tool] | None
    add_generation_prompt: bool | None
    continue_final_message: bool


def check_conversation(body: Talk, messages: list[ChatMessage]) -> None:
    """Check messages, tools and rendering options against each other. Raises `ApiError` 400."""
    for at, message in enumerate(messages):
        if (problem := message.problem()) is not None:
            raise invalid(f"messages[{at}]: {problem.message}", param="messages", code=problem.code)
    if (name := doubled(body.tools or ())) is not None:
        raise invalid(f"tools has two functions named {name!r}: rename one", param="tools", code="invalid_value")
    if body.add_generation_prompt and body.continue_final_message:
        raise invalid(
            "continue_final_message continues the last message, add_generation_prompt begins another: set only one",
            param="continue_final_message", code="invalid_value",
        )  # fmt: skip


T = TypeVar("T", bound=Strict)


def parse(raw: bytes, kind: type[T]) -> T:
    """Read a body. Raises `ApiError` 400 that names the field."""
    values = fields.read_object(raw)
    _drop_neutral(values)
    # Clients of typed languages send null for what they leave out.
    values = {name: value for name, value in values.items() if value is not None or name not in kind.model_fields}
    try:
        body = kind.model_validate(values)
    except ValidationError as error:
        fields.raise_first(error, values)
    if (check := getattr(body, "check", None)) is not None:
        check()
    return body


def _drop_neutral(values: dict[str, Any]) -> None:
    for name, neutral in NEUTRAL.items():
        if name not in values:
            continue
        value = values.pop(name)
        if value is not None and not any(value == item for item in neutral):
            advice = f"leave it out (or {json.dumps(neutral[0])})" if neutral else "leave it out"
            raise invalid(f"{name} is not supported by this server: {advice}", param=name, code="unsupported_parameter")
