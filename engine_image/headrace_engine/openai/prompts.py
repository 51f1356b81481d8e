"""From a request's body to token ids: tokenizing, the chat template, and all checks on length and vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace_engine.executors import Executors
from headrace_engine.http.errors import invalid
from headrace_engine.openai.chat_template import ChatTemplate, Conversation
from headrace_engine.openai.fields import MAX_CHOICES
from headrace_engine.openai.schema import ChatBody, CompletionBody


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine takes it; `text` is set only if it is echoed."""

    ids: tuple[int, ...]
    text: str = ""


class Prompts:
    """Tokenizes outside the event loop, so that streams do not stall. Every method raises `ApiError` 400."""

    def __init__(self, tokenizer: Any, executors: Executors, *, vocab_size: int, max_model_len: int) -> None:
        self.template = ChatTemplate(tokenizer)
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self._tokenizer = tokenizer
        self._executors = executors

    async def of_completion(self, body: CompletionBody) -> list[Prompt]:
        """The prompts of a completion, in order."""
        prompts = body.prompts()
        if not prompts or any(len(prompt) == 0 for prompt in prompts):
            raise invalid("prompt is empty: give at least one character or token", param="prompt", code="empty_prompt")
        check_choices(len(prompts), body.choices)
        made = []
        for prompt in prompts:
            if isinstance(prompt, str):
                ids = await self.encode(prompt, special=body.add_special_tokens)
                if not ids:
                    raise invalid("prompt has no tokens: give some text", param="prompt", code="empty_prompt")
                made.append(Prompt(ids, prompt if body.echo else ""))
            else:
                self.check_ids(prompt, param="prompt")
                text = await self.decode(prompt, skip_special=body.skip_special_tokens) if body.echo else ""
                made.append(Prompt(tuple(prompt), text))
        return made

    async def of_chat(self, body: ChatBody) -> Prompt:
        """The prompt that the model's chat template makes of a conversation."""
        check_choices(1, body.choices)
        variables = dict(body.chat_template_kwargs or {})
        if body.reasoning_effort is not None:
            variables["reasoning_effort"] = body.reasoning_effort
        talk = Conversation(
            messages=body.messages, tools=[] if body.choice_of_tools == "none" else body.tools or [],
            variables=variables, add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        )  # fmt: skip
        ids = await self.of_conversation(talk)
        if not ids:
            raise invalid("messages give an empty prompt", param="messages", code="empty_prompt")
        return Prompt(ids)

    async def of_conversation(self, talk: Conversation, *, special: bool = False) -> tuple[int, ...]:
        """Token ids of a conversation. `special` is for tokens that the template does not write itself."""
        self.template.check(talk)
        text = await self._executors.run_sized(lambda: self.template.render(talk), size=talk.size)
        return await self.encode(text, special=special)

    async def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Token ids of a text."""
        return await self._executors.run_sized(lambda: self._encode(text, special=special), size=len(text))

    async def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """Text of token ids."""

        def work() -> str:
            text: str = self._tokenizer.decode(
                list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
            )
            return text

        return await self._executors.run_sized(work, size=len(ids))

    async def pieces(self, ids: Sequence[int]) -> list[str]:
        """The tokenizer's internal spelling of each token."""

        def work() -> list[str]:
            return [piece or "" for piece in self._tokenizer.convert_ids_to_tokens(list(ids))]

        return await self._executors.run_sized(work, size=len(ids))

    def check_ids(self, ids: Sequence[int], *, param: str) -> None:
        """Every id must be in the vocabulary."""
        if not ids or (min(ids) >= 0 and max(ids) < self.vocab_size):
            return
        outside = next(token for token in ids if not 0 <= token < self.vocab_size)
        raise invalid(
            f"{param} holds token id {outside}; the vocabulary is 0 to {self.vocab_size - 1}",
            param=param, code="token_out_of_vocabulary",
        )  # fmt: skip

    def budget(self, prompt: Sequence[int], wanted: int | None, *, default: int | None, param: str, limit: str) -> int:
        """The most output tokens for a prompt: as wanted, else `default`, else what the context leaves.

        In errors, `param` is the field of the prompt and `limit` the field of `wanted`.
        """
        left = self.max_model_len - len(prompt)
        if left < 1:
            raise invalid(
                f"the prompt has {len(prompt)} tokens; this server's max_model_len is {self.max_model_len} and one "
                "output token needs room too: shorten the prompt",
                param=param, code="context_length_exceeded",
            )  # fmt: skip
        if wanted is None:
            return left if default is None else min(default, left)
        if wanted > left:
            raise invalid(
                f"the prompt's {len(prompt)} tokens and {limit} {wanted} exceed max_model_len "
                f"{self.max_model_len}: ask for at most {left}",
                param=limit, code="context_length_exceeded",
            )  # fmt: skip
        return wanted

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        # Without masks: making them would hold the GIL, and so stall all other threads.
        made = self._tokenizer(
            text, add_special_tokens=special, verbose=False, return_attention_mask=False, return_token_type_ids=False
        )
        return tuple(made["input_ids"])


def check_choices(prompts: int, samples: int) -> None:
    """Refuse a call that would start more than `MAX_CHOICES` generations. Raises `ApiError` 400."""
    if prompts * samples > MAX_CHOICES:
        many = f"{prompts} prompts with n {samples}" if prompts > 1 else f"n {samples}"
        raise invalid(
            f"{many} make {prompts * samples} generations; one call may have {MAX_CHOICES}: send several calls",
            param="n" if samples > 1 else "prompt", code="too_many_choices",
        )  # fmt: skip
