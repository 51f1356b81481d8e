"""Prompts of a length: token ids, or English-looking text for servers that take no ids. Pure and seeded by a salt."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headrace_client.load.client import TOKEN_HIGH, TOKEN_LOW, RequestMessage
from headrace_core.workload.plans import PlannedRequest, prompt_ids

# Frequent words are one token in most vocabularies, and sentences make a model continue in sentences.
_WORDS = {
    "adjectives": "old young quiet bright heavy early late small open narrow wide cold warm distant common strange "
    "simple careful green dark empty busy gentle proud",
    "nouns": "captain river garden letter city window market teacher winter story engine village forest painter bridge "
    "kitchen doctor island student machine morning road harbor mountain library farmer train valley child queen",
    "verbs": "found opened carried watched built followed remembered painted crossed visited described repaired",
    "places": "near behind above beside inside across under before after without",
}
ADJECTIVES, NOUNS, VERBS, PLACES = (words.split() for words in _WORDS.values())


class Api(StrEnum):
    """Which of OpenAI's APIs."""

    COMPLETIONS = "completions"
    CHAT = "chat"


PATHS = {Api.COMPLETIONS: "/v1/completions", Api.CHAT: "/v1/chat/completions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The parts of the API that a server takes, and how many tokens its tokenizer makes of our text.

    `ids`: prompts as token ids; `ignore_eos`: answers of the exact length can be asked for; `usage`: token counts at
    the end of the stream can be; `limit`: the field that bounds an answer; `temperature`: None leaves it out. A text
    of n words has `overhead + n * tokens_per_word` tokens. `extra` fields go into every body.
    """

    api: Api = Api.COMPLETIONS
    ids: bool = True
    ignore_eos: bool = True
    usage: bool = True
    limit: str = "max_tokens"
    temperature: float | None = 0.0
    tokens_per_word: float = 1.2
    overhead: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, model: str, prompt: object, max_tokens: int) -> dict[str, Any]:
        """The JSON body of a request; `prompt` is text, ids, or a list of messages."""
        values: dict[str, Any] = {"model": model, self.limit: max_tokens, "stream": True}
        if self.api is Api.CHAT:
            text = isinstance(prompt, str)
            values["messages"] = [{"role": "user", "content": prompt}] if text else prompt
        else:
            values["prompt"] = prompt
        if self.temperature is not None:
            values["temperature"] = self.temperature
        if self.ignore_eos:
            values["ignore_eos"] = True
        if self.usage:
            values["stream_options"] = {"include_usage": True}
        return values | dict(self.extra)

    def words(self, tokens: int) -> int:
        """Words of a text that has about `tokens` tokens."""
        return max(1, round((tokens - self.overhead) / self.tokens_per_word))


@dataclass(frozen=True, slots=True, kw_only=True)
class Composer:
    """Makes the message of a planned request. The same salt and number give the same prompt."""

    dialect: Dialect
    model: str
    salt: str

    def __call__(self, planned: PlannedRequest, number: int) -> RequestMessage:
        """The message of the request with number `number` in its plan."""
        prompt = self._given(planned) if planned.content is not None else self._made(planned, number)
        body = self.dialect.body(self.model, prompt, planned.output_tokens)
        return RequestMessage(PATHS[self.dialect.api], json.dumps(body).encode())

    def _given(self, planned: PlannedRequest) -> object:
        """A trace's own prompt, for whichever API is asked."""
        if isinstance(planned.content, str):
            return planned.content
        messages = list(planned.content or ())
        if self.dialect.api is Api.CHAT:
            return messages
        return "\n".join(f"{item.get('role', 'user')}: {item.get('content', '')}" for item in messages) + "\nassistant:"

    def _made(self, planned: PlannedRequest, number: int) -> object:
        own, start = f"{self.salt}:{number}", planned.prefix_tokens
        shared = f"{self.salt}:prefix:{planned.prefix_group}"
        if self.dialect.ids and self.dialect.api is Api.COMPLETIONS:
            rest = prompt_ids(planned.prompt_tokens - start, salt=own, low=TOKEN_LOW, high=TOKEN_HIGH)
            return prompt_ids(start, salt=shared, low=TOKEN_LOW, high=TOKEN_HIGH) + rest
        words = self.dialect.words(planned.prompt_tokens)
        first = min(words - 1, round(start / self.dialect.tokens_per_word))
        return " ".join([*text_words(first, salt=shared), *text_words(words - first, salt=own)])


class Prepared:
    """Messages made before the first is due: making them during the run would delay others."""

    def __init__(self, composer: Composer, plan: Sequence[PlannedRequest]) -> None:
        self._messages = [composer(request, number) for number, request in enumerate(plan)]

    def __call__(self, planned: PlannedRequest, number: int) -> RequestMessage:
        """The message of the request with that number."""
        del planned
        return self._messages[number]


def text_words(count: int, *, salt: str) -> list[str]:
    """`count` words of sentences; another salt gives others."""
    rng, words = random.Random(salt), list[str]()  # noqa: S311  (repeatable, not secret)
    while len(words) < count:
        words += _sentence(rng)
    return words[:count]


def _sentence(rng: random.Random) -> list[str]:
    first = ["The", rng.choice(ADJECTIVES), rng.choice(NOUNS), rng.choice(VERBS), "the", rng.choice(NOUNS)]
    return [*first, rng.choice(PLACES), "the", rng.choice(ADJECTIVES), rng.choice(NOUNS) + "."]
