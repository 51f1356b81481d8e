"""Messages and tools of a chat, and the form that chat templates expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from pydantic_core import from_json

from headrace_engine.openai.fields import JsonObject, Name, Strict

MAX_MESSAGES = 4096


class TextPart(Strict):
    """A piece of a message. Only text: images and audio are not supported."""

    type: Literal["text"]
    text: str


class CalledFunction(Strict):
    """The function that an assistant called; `arguments` is JSON as the model wrote it."""

    name: str
    arguments: str


class ToolCall(Strict):
    """One call in an assistant's message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None  # left in by clients that reassemble a stream

    def for_template(self) -> dict[str, Any]:
        """The call with its arguments as an object: templates turn them into JSON themselves."""
        function = {"name": self.function.name, "arguments": _object_or_text(self.function.arguments)}
        return {"type": "function", "function": function} | ({"id": self.id} if self.id else {})


def _object_or_text(arguments: str) -> dict[str, Any] | str:
    if not arguments.strip():
        return {}
    try:
        value = from_json(arguments, allow_inf_nan=False)
    except ValueError:
        return arguments  # what the model once wrote is history, right or wrong
    return value if isinstance(value, dict) else arguments


class MessageProblem(NamedTuple):
    """How the fields of a message contradict each other, with OpenAI's error code."""

    message: str
    code: str = "invalid_value"


class ChatMessage(Strict):
    """One turn. An assistant's may have `tool_calls` instead of content; a tool's answers one of those calls."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(default=None, description="An assistant's thoughts, for templates with them.")
    # An answer of this server has these, and clients send it back as history.
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None

    @property
    def text(self) -> str | None:
        """The content as one string; parts are joined by line breaks."""
        if self.content is None or isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)

    def problem(self) -> MessageProblem | None:
        """The first contradiction between the fields, or None."""
        if self.tool_calls is not None and self.role != "assistant":
            return MessageProblem("tool_calls belong to role assistant")
        if self.tool_call_id is not None and self.role != "tool":
            return MessageProblem("tool_call_id belongs to role tool")
        if self.content is None and not self.tool_calls:
            return MessageProblem("content is missing", code="missing_required_parameter")
        return None

    def for_template(self, *, knows_developer: bool) -> dict[str, Any]:
        """The form that chat templates read. Role `developer` becomes `system` unless the template knows it."""
        role = "system" if self.role == "developer" and not knows_developer else self.role
        message: dict[str, Any] = {"role": role, "content": self.text or ""}
        optional = {
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "reasoning_content": self.reasoning_content,
            "tool_calls": [call.for_template() for call in self.tool_calls or ()] or None,
        }
        return message | {key: value for key, value in optional.items() if value is not None}


class FunctionSpec(Strict):
    """A function that the model may call. `parameters` is a JSON schema."""

    name: Name
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = Field(default=None, description="Arguments always follow the schema where a call is forced.")

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        """JSON schema of the arguments; without `parameters`, of an empty object."""
        return self.parameters or {"type": "object", "properties": {}, "additionalProperties": False}


class Tool(Strict):
    """A tool. Functions are the only type."""

    type: Literal["function"]
    function: FunctionSpec

    def for_template(self) -> dict[str, Any]:
        """The form that chat templates print, without `strict`, which models were not trained on."""
        given = {"name": self.function.name, "description": self.function.description}
        given |= {"parameters": self.function.parameters}  # type: ignore[dict-item]
        return {"type": "function", "function": {key: value for key, value in given.items() if value is not None}}


class ChosenName(Strict):
    """The name of the function that must be called."""

    name: str


class NamedChoice(Strict):
    """`tool_choice` that names a function."""

    type: Literal["function"]
    function: ChosenName


ToolChoice = Literal["none", "auto", "required"] | NamedChoice


def doubled(tools: Sequence[Tool]) -> str | None:
    """The first name that two tools share, or None."""
    names = [tool.function.name for tool in tools]
    return next((name for at, name in enumerate(names) if name in names[:at]), None)
