"""`/tokenize` and `/detokenize`, in vLLM's format."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from headrace_engine.http.errors import invalid
from headrace_engine.openai.chat_template import Conversation
from headrace_engine.openai.fields import MAX_TOOLS, Flag, JsonObject, Strict
from headrace_engine.openai.messages import MAX_MESSAGES, ChatMessage, Tool
from headrace_engine.openai.prompts import Prompts
from headrace_engine.openai.schema import check_conversation

MAX_TOKENS = 1 << 17


class TokenizeBody(Strict):
    """`/tokenize`: a text or a conversation, exactly one."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = Field(default=None, description="Default: not continue_final_message.")
    continue_final_message: Flag = False
    add_special_tokens: bool | None = Field(default=None, description="Default: true for a text, false for messages.")
    return_token_strs: bool | None = Field(default=None, description="Include how the tokenizer spells each token.")

    def check(self) -> None:
        """Check fields against each other. Raises `ApiError` 400."""
        if (self.prompt is None) == (self.messages is None):
            raise invalid(
                "give either prompt, a text, or messages, a conversation",
                param="prompt" if self.messages is None else "messages",
                code="missing_required_parameter" if self.messages is None else "conflicting_parameters",
            )
        check_conversation(self, self.messages or [])


class DetokenizeBody(Strict):
    """`/detokenize`: at most 131072 token ids."""

    model: str | None = None
    tokens: Annotated[list[int], Field(max_length=MAX_TOKENS, fail_fast=True)]


async def tokenize(body: TokenizeBody, prompts: Prompts) -> dict[str, Any]:
    """The answer to `/tokenize`. Raises `ApiError` 400."""
    if body.messages is None:
        ids = await prompts.encode(body.prompt or "", special=body.add_special_tokens is not False)
    else:
        talk = Conversation(
            messages=body.messages, tools=body.tools or [], variables=body.chat_template_kwargs or {},
            add_generation_prompt=body.add_generation_prompt, continue_final_message=body.continue_final_message,
        )  # fmt: skip
        ids = await prompts.of_conversation(talk, special=bool(body.add_special_tokens))
    names = await prompts.pieces(ids) if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": prompts.max_model_len, "tokens": ids, "token_strs": names}


async def detokenize(body: DetokenizeBody, prompts: Prompts) -> dict[str, Any]:
    """The answer to `/detokenize`. Raises `ApiError` 400."""
    prompts.check_ids(body.tokens, param="tokens")
    return {"prompt": await prompts.decode(body.tokens, skip_special=False)}
