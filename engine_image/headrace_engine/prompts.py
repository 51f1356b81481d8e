"""From a request's body to token ids: tokenizing, chat template, and every check on length and vocabulary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from jinja2 import TemplateError

from headrace_engine.http_errors import invalid
from headrace_engine.openai_schema import MAX_PROMPTS, ChatBody, CompletionBody

T = TypeVar("T")


class Prompts:
    """Tokenizes beside the event loop, so that no stream stalls, in one thread: a tokenizer is not thread-safe."""

    def __init__(self, tokenizer: Any, *, vocab_size: int, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headrace-tokenize")

    async def of_completion(self, body: CompletionBody) -> list[tuple[int, ...]]:
        """Token ids of each prompt. Raises `ApiError` 400."""
        prompts = body.prompts()
        if not prompts or any(len(prompt) == 0 for prompt in prompts):
            raise invalid("prompt is empty: give at least one character or token", param="prompt", code="empty_prompt")
        if len(prompts) > MAX_PROMPTS:
            raise invalid(f"prompt has {len(prompts)} entries, at most {MAX_PROMPTS} are allowed", param="prompt")
        return [await self._ids(prompt) for prompt in prompts]

    async def of_chat(self, body: ChatBody) -> tuple[int, ...]:
        """Token ids of a conversation in the model's own chat template. Raises `ApiError` 400."""
        if not getattr(self._tokenizer, "chat_template", None):
            raise invalid(
                "this model has no chat template: use /v1/completions", param="messages", code="no_chat_template"
            )
        messages = [message.for_template() for message in body.messages]
        for message in messages:
            _refuse_surrogates(message["content"], "messages")
        text = await self._beside(lambda: self._render(messages))
        return await self._beside(lambda: self._encode(text, special=False))

    def budget(self, prompt: Sequence[int], wanted: int | None, *, default: int | None, param: str) -> int:
        """Output tokens for a prompt: as wanted, else `default`, else what the context leaves. Raises `ApiError`."""
        left = self._max_model_len - len(prompt)
        if left < 1:
            raise invalid(
                f"the prompt has {len(prompt)} tokens; this server's max_model_len is {self._max_model_len} and one "
                "output token needs room too: shorten the prompt",
                param=param, code="context_length_exceeded",
            )  # fmt: skip
        if wanted is None:
            return left if default is None else min(default, left)
        if wanted > left:
            raise invalid(
                f"the prompt's {len(prompt)} tokens and max_tokens {wanted} exceed max_model_len "
                f"{self._max_model_len}: ask for at most {left}",
                param="max_tokens", code="context_length_exceeded",
            )  # fmt: skip
        return wanted

    async def _ids(self, prompt: str | list[int]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            _refuse_surrogates(prompt, "prompt")
            return await self._beside(lambda: self._encode(prompt, special=True))
        outside = next((token for token in prompt if not 0 <= token < self._vocab_size), None)
        if outside is not None:
            raise invalid(
                f"prompt holds token id {outside}; the vocabulary is 0 to {self._vocab_size - 1}", param="prompt"
            )
        return tuple(prompt)

    def _render(self, messages: list[dict[str, str]]) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise invalid(f"the model's chat template refuses these messages: {error}", param="messages") from error
        return text

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])

    async def _beside(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


def _refuse_surrogates(text: str, param: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise invalid(
            f"{param} holds a lone surrogate (half a character) at position {error.start}: send valid Unicode",
            param=param,
        ) from error
