"""The routes of OpenAI's API, and vLLM's `/tokenize` and `/detokenize`, over the engine loop."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace_engine.engine import Engine
from headrace_engine.http.calls import CLIENT_CLOSED, submit
from headrace_engine.http.errors import ApiError
from headrace_engine.http.state import ServerState
from headrace_engine.openai import streaming
from headrace_engine.openai.backend import Backend
from headrace_engine.openai.fields import Strict
from headrace_engine.openai.generation_request import GenerationRequest, live_requests, response_spec
from headrace_engine.openai.prompts import Prompt
from headrace_engine.openai.schema import ChatBody, CompletionBody, GenerationBody, parse
from headrace_engine.openai.streaming import Channel, OwningStream
from headrace_engine.openai.tokens import DetokenizeBody, TokenizeBody, detokenize, tokenize

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
T = TypeVar("T", bound=Strict)


class Operation(NamedTuple):
    """One route, for the router and for `/openapi.json`."""

    method: str
    path: str
    body: type[BaseModel] | None
    result: str  # the answer's schema, a key of `openapi.ANSWERS`
    about: str


OPERATIONS = (
    Operation(
        "POST", "/v1/completions", CompletionBody, "Completion",
        "The completions; a stream of them with `stream: true`.",
    ),
    Operation(
        "POST", "/v1/chat/completions", ChatBody, "ChatCompletion",
        "The assistant's message; a stream of it with `stream: true`.",
    ),
    Operation("GET", "/v1/models", None, "Models", "The one model."),
    Operation("GET", "/v1/models/{name}", None, "Model", "The one model, by name."),
    Operation(
        "POST", "/tokenize", TokenizeBody, "Tokens", "Token ids, their number, and the server's `max_model_len`."
    ),
    Operation("POST", "/detokenize", DetokenizeBody, "Text", "The text as `prompt`."),
)  # fmt: skip


class OpenAiApi:
    """The routes. Needs a ready engine in `state`."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._backend: Backend | None = None
        self._ordinal = itertools.count()
        handlers: dict[str, Callable[..., Any]] = {
            "/v1/completions": self.completions,
            "/v1/chat/completions": self.chat,
            "/v1/models": self.models,
            "/v1/models/{name}": self.one_model,
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
        }
        # Model names contain slashes.
        self.routes = [
            Route(each.path.replace("{name}", "{name:path}"), handlers[each.path], methods=[each.method])
            for each in OPERATIONS
        ]

    async def completions(self, request: Request) -> Response:
        """Complete one prompt or several."""
        return await self._generate(request, CompletionBody)

    async def chat(self, request: Request) -> Response:
        """Continue a conversation."""
        return await self._generate(request, ChatBody)

    async def models(self, _: Request) -> Response:
        """The one model."""
        return JSONResponse({"object": "list", "data": [self._model_card()]})

    async def one_model(self, request: Request) -> Response:
        """The one model, by name."""
        name = request.path_params["name"]
        if name != self._state.served_name:
            raise self._unknown_model(name)
        return JSONResponse(self._model_card())

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text or a conversation."""
        backend = self._backend_of(self._state.loaded())
        body = await self._read(request, backend, TokenizeBody)
        self._check_model(body.model)
        return await _json(backend, await tokenize(body, backend.prompts))

    async def detokenize(self, request: Request) -> Response:
        """Text of token ids."""
        backend = self._backend_of(self._state.loaded())
        body = await self._read(request, backend, DetokenizeBody)
        self._check_model(body.model)
        return await _json(backend, await detokenize(body, backend.prompts))

    async def _generate(self, request: Request, kind: type[GenerationBody]) -> Response:
        arrival = time.monotonic()
        engine = self._state.accepting()
        with contextlib.ExitStack() as stack:
            backend = self._backend_of(engine)
            body = await self._read(request, backend, kind)
            self._check_model(body.model)
            wanted = await self._generation_request(backend, body, arrival)
            spec, channel = response_spec(wanted, backend.texts), Channel()
            live = live_requests(wanted, engine, channel, hides_special=backend.hides_special(body))
            stack.callback(engine.loop.abort, [each.id for each in live])
            await submit(engine.loop, live, channel)
            answer = spec, channel, backend.executors
            if not body.stream:
                whole = await streaming.unless_gone(request, streaming.collect(*answer))
                return Response(status_code=CLIENT_CLOSED) if whole is None else _body(whole)
            # From here on the stream owns the resources: it closes them however it ends.
            return OwningStream(streaming.stream(*answer), stack.pop_all())

    async def _generation_request(self, backend: Backend, body: GenerationBody, arrival: float) -> GenerationRequest:
        backend.check(body)
        prompts: list[Prompt]
        if isinstance(body, ChatBody):
            prompts, param = [await backend.prompts.of_chat(body)], "messages"
            wanted, limit, default = *body.wanted_tokens, None
        else:
            assert isinstance(body, CompletionBody)  # noqa: S101  (there are two)
            prompts, param = await backend.prompts.of_completion(body), "prompt"
            wanted, limit, default = body.max_tokens, "max_tokens", DEFAULT_COMPLETION_TOKENS
        budget = functools.partial(backend.prompts.budget, wanted=wanted, default=default, param=param, limit=limit)
        budgets = tuple(budget(prompt.ids) for prompt in prompts)
        # A request without a seed gets a new one, so that two equal requests differ, as people expect.
        own = f"{backend.engine.config.seed}-{next(self._ordinal)}"
        return GenerationRequest(
            call_id=("chatcmpl-" if isinstance(body, ChatBody) else "cmpl-") + uuid.uuid4().hex,
            model=self._state.served_name, body=body, prompts=tuple(prompts), budgets=budgets, arrival=arrival,
            seed=own if body.seed is None else f"request-{body.seed}", grammar=await backend.grammar(body),
            new_parser=backend.tool_parser(body),
        )  # fmt: skip

    async def _read(self, request: Request, backend: Backend, kind: type[T]) -> T:
        raw = await request.body()
        return await backend.executors.unless_small(lambda: parse(raw, kind), size=len(raw))

    def _backend_of(self, engine: Engine) -> Backend:
        if self._backend is None or self._backend.engine is not engine:
            self._backend = Backend(engine, tool_call_parser=self._state.tool_call_parser)
        return self._backend

    def _model_card(self) -> dict[str, Any]:
        engine = self._state.loaded()
        return {
            "id": self._state.served_name,
            "object": "model",
            "created": int(engine.started_at),
            "owned_by": "headrace",
            "max_model_len": engine.max_model_len,
        }

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._state.served_name:
            raise self._unknown_model(name)

    def _unknown_model(self, name: str) -> ApiError:
        return ApiError(
            404, f"model {name!r} is not served here; this server has {self._state.served_name!r}",
            param="model", code="model_not_found",
        )  # fmt: skip


async def _json(backend: Backend, values: dict[str, Any]) -> Response:
    size = 8 * int(values.get("count", 0))
    return _body(await backend.executors.unless_small(lambda: streaming.to_bytes(values), size=size))


def _body(raw: bytes) -> Response:
    return Response(raw, media_type="application/json")
