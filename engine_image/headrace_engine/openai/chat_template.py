"""The model's own chat template: which variables it reads, and rendering messages with it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, TemplateError
from transformers import PreTrainedTokenizerBase

from headrace_engine.http.errors import invalid
from headrace_engine.openai.messages import ChatMessage, Tool

# Variables that the renderer sets itself.
RESERVED = frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) | {"messages", "kwargs"}
SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a template renders. `add_generation_prompt` None means: unless the last message is to be continued."""

    messages: Sequence[ChatMessage]
    tools: Sequence[Tool] = ()
    variables: Mapping[str, Any]
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @property
    def begins_answer(self) -> bool:
        """Whether the template opens the assistant's turn."""
        asked = self.add_generation_prompt
        return not self.continue_final_message if asked is None else asked

    @property
    def size(self) -> int:
        """About how many characters the rendered text will have."""
        said = sum(len(message.text or "") for message in self.messages)
        called = sum(len(call.function.arguments) for message in self.messages for call in message.tool_calls or ())
        return said + called + sum(256 + len(tool.function.description or "") for tool in self.tools)


class ChatTemplate:
    """The chat template of a tokenizer, if it has one. Rendering is slow: run it in an executor."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._names: dict[str, frozenset[str]] = {}

    @property
    def exists(self) -> bool:
        """Whether the model has a chat template."""
        return bool(getattr(self._tokenizer, "chat_template", None))

    def source(self, *, tools: bool) -> str:
        """The template's source; some models have a different one for tools. Raises `ApiError` 400 if there is none."""
        if not self.exists:
            raise invalid(
                "this model has no chat template: use /v1/completions", param="messages", code="no_chat_template"
            )
        try:
            text: str = self._tokenizer.get_chat_template(tools=[{}] if tools else None)
        except ValueError as error:
            raise invalid(str(error), param="messages", code="no_chat_template") from error
        return text

    def knows(self, variable: str, *, tools: bool = False) -> bool:
        """Whether the template reads `variable`."""
        source = self.source(tools=tools)
        if source not in self._names:
            self._names[source] = _names(source)
        return variable in self._names[source]

    def check(self, talk: Conversation) -> None:
        """Refuse what the template would silently drop, or what the server sets. Raises `ApiError` 400."""
        if talk.tools and not self.knows("tools", tools=True):
            raise invalid(
                "this model's chat template does not support tools: leave tools out, or serve a model trained for them",
                param="tools", code="unsupported_parameter",
            )  # fmt: skip
        if "reasoning_effort" in talk.variables and not self.knows("reasoning_effort", tools=bool(talk.tools)):
            raise invalid(
                "this model's chat template does not read reasoning_effort: leave it out",
                param="reasoning_effort", code="unsupported_parameter",
            )  # fmt: skip
        taken = sorted(RESERVED.intersection(talk.variables))
        if taken:
            raise invalid(
                f"chat_template_kwargs.{taken[0]} is set by the server: leave it out",
                param="chat_template_kwargs", code="invalid_value",
            )  # fmt: skip

    def render(self, talk: Conversation) -> str:
        """The prompt as text. Raises `ApiError` 400 where the template refuses."""
        knows_developer = "developer" in self.source(tools=bool(talk.tools))
        messages = [message.for_template(knows_developer=knows_developer) for message in talk.messages]
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, tools=[tool.for_template() for tool in talk.tools] or None, tokenize=False,
                add_generation_prompt=talk.begins_answer, continue_final_message=talk.continue_final_message,
                **talk.variables,
            )  # fmt: skip
            text.encode()
        except Exception as error:
            # A template may raise anything: it is the model's code, run on the client's values.
            why = " ".join(str(error).split())[:SHOWN_CHARS]
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise invalid(
                f"the model's chat template refuses these messages: {kind}{why}", param="messages",
                code="template_error",
            ) from error  # fmt: skip
        return text


def _names(source: str) -> frozenset[str]:
    """Names in the template's code, not in its text. Uses only the lexer, so unknown extension tags do no harm."""
    try:
        return frozenset(value for _, kind, value in Environment().lex(source) if kind == "name")  # noqa: S701
    except TemplateError:
        return frozenset()  # it cannot be rendered either
