"""`/v1/completions`, `/v1/chat/completions`, `/v1/models`: OpenAI's API over the engine loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from headrace_core.events import FinishReason
from headrace_core.events import Request as EngineRequest
from headrace_engine.detokenize import TextStream
from headrace_engine.engine import Engine
from headrace_engine.http_errors import ApiError, failed
from headrace_engine.loop import Submission
from headrace_engine.openai_schema import ChatBody, CompletionBody, GenerationBody, parse
from headrace_engine.outputs import Delta, Done, Event, PromptScored
from headrace_engine.prompts import Prompts
from headrace_engine.sampling import SamplingParams
from headrace_engine.state import ServerState

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
MAX_BODY_BYTES = 64 << 20
CLIENT_CLOSED = 499  # nobody reads it; for the access log
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP call: a generation for each prompt. `events` are in the order of the prompts."""

    id: str
    created: int
    model: str
    body: GenerationBody
    is_chat: bool
    submissions: tuple[Submission, ...]

    @property
    def request_ids(self) -> list[str]:
        """The engine's requests."""
        return [item.request.request_id for item in self.submissions]

    def usage(self, output_tokens: int) -> dict[str, int]:
        """OpenAI's usage block."""
        prompt = sum(len(item.request.prompt_token_ids) for item in self.submissions)
        return {"prompt_tokens": prompt, "completion_tokens": output_tokens, "total_tokens": prompt + output_tokens}

    def head(self, *, chunk: bool) -> dict[str, Any]:
        """What every body and chunk begins with."""
        kind = "chat.completion" + (".chunk" if chunk else "") if self.is_chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class OpenAiApi:
    """The routes. Needs a ready engine in `state`."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._prompts: Prompts | None = None
        self._ordinal = itertools.count()
        self.router = APIRouter()
        self.router.add_api_route("/v1/completions", self.completions, methods=["POST"], response_model=None)
        self.router.add_api_route("/v1/chat/completions", self.chat, methods=["POST"], response_model=None)
        self.router.add_api_route("/v1/models", self.models, methods=["GET"])
        self.router.add_api_route("/v1/models/{name:path}", self.one_model, methods=["GET"])

    async def completions(self, request: Request) -> Response:
        """Complete one prompt or several."""
        arrival = time.monotonic()
        engine = self._state.accepting()
        body = parse(await _read(request), CompletionBody)
        self._check_model(body)
        prompts = self._tokenizing(engine)
        ids = await prompts.of_completion(body)
        budgets = [
            prompts.budget(one, body.max_tokens, default=DEFAULT_COMPLETION_TOKENS, param="prompt") for one in ids
        ]
        return await self._answer(request, engine, body, list(zip(ids, budgets, strict=True)), arrival)

    async def chat(self, request: Request) -> Response:
        """Continue a conversation."""
        arrival = time.monotonic()
        engine = self._state.accepting()
        body = parse(await _read(request), ChatBody)
        self._check_model(body)
        prompts = self._tokenizing(engine)
        ids = await prompts.of_chat(body)
        wanted = body.max_completion_tokens or body.max_tokens
        budget = prompts.budget(ids, wanted, default=None, param="messages")
        return await self._answer(request, engine, body, [(ids, budget)], arrival)

    async def models(self) -> dict[str, Any]:
        """The one model."""
        return {"object": "list", "data": [self._model_card()]}

    async def one_model(self, name: str) -> dict[str, Any]:
        """The one model, by name."""
        if name != self._state.served_name:
            raise self._unknown_model(name)
        return self._model_card()

    def _model_card(self) -> dict[str, Any]:
        engine = self._state.loaded()
        return {
            "id": self._state.served_name,
            "object": "model",
            "created": int(engine.started_at),
            "owned_by": "headrace",
            "max_model_len": engine.max_model_len,
        }

    def _tokenizing(self, engine: Engine) -> Prompts:
        if self._prompts is None:
            model = engine.model
            self._prompts = Prompts(model.tokenizer, vocab_size=model.vocab_size, max_model_len=engine.max_model_len)
        return self._prompts

    def _check_model(self, body: GenerationBody) -> None:
        if body.model is not None and body.model != self._state.served_name:
            raise self._unknown_model(body.model)

    def _unknown_model(self, name: str) -> ApiError:
        return ApiError(
            404, f"model {name!r} is not served here; this server has {self._state.served_name!r}",
            param="model", code="model_not_found",
        )  # fmt: skip

    async def _answer(
        self, request: Request, engine: Engine, body: GenerationBody, prompts: Sequence[tuple[tuple[int, ...], int]],
        arrival: float,
    ) -> Response:  # fmt: skip
        call = self._call(engine, body, prompts, arrival)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._state.in_flight())
            stack.callback(engine.loop.abort, call.request_ids)
            await engine.loop.submit(call.submissions)
            if not body.stream:
                whole = await _unless_gone(request, _collect(call))
                return Response(status_code=CLIENT_CLOSED) if whole is None else JSONResponse(whole)
            # From here on the stream owns both: it ends them however it ends.
            return _OwningStream(_stream(call), stack.pop_all())

    def _call(
        self, engine: Engine, body: GenerationBody, prompts: Sequence[tuple[tuple[int, ...], int]], arrival: float
    ) -> Call:
        is_chat = isinstance(body, ChatBody)
        call_id = ("chatcmpl-" if is_chat else "cmpl-") + uuid.uuid4().hex
        stop_ids = frozenset[int]() if body.ignore_eos else engine.model.eos_token_ids
        submissions = [
            Submission(
                request=EngineRequest(
                    request_id=f"{call_id}-{index}", prompt_token_ids=ids, max_tokens=budget, arrival=arrival,
                    stop_token_ids=stop_ids, priority=body.priority,
                ),
                params=self._sampling(engine, body, prompt_len=len(ids), index=index),
                text=TextStream(engine.model.tokenizer, ids, stops=body.stops, incremental=bool(body.stream)),
                events=asyncio.Queue(),
            )
            for index, (ids, budget) in enumerate(prompts)
        ]  # fmt: skip
        created = int(time.time())  # noqa: TID251  (OpenAI's `created` is unix time)
        return Call(call_id, created, self._state.served_name, body, is_chat, tuple(submissions))

    def _sampling(self, engine: Engine, body: GenerationBody, *, prompt_len: int, index: int) -> SamplingParams:
        # A request without a seed gets one of its own, so that two equal requests differ, as people expect.
        seed = f"{engine.config.seed}-{next(self._ordinal)}" if body.seed is None else f"request-{body.seed}"
        return SamplingParams(
            prompt_len=prompt_len,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_k=max(0, body.top_k or 0),
            seed=f"{seed}-{index}",
        )


class _OwningStream(StreamingResponse):
    """Server-sent events that own resources: closed when the stream ends, by itself or because the client left."""

    def __init__(self, content: AsyncIterator[bytes], resources: contextlib.ExitStack) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._resources = resources

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._resources:
            await super().__call__(scope, receive, send)


async def _read(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body.extend(piece)
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(413, f"the body exceeds {MAX_BODY_BYTES} bytes: send a shorter prompt")
    return bytes(body)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None as soon as the client disconnects."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass(slots=True)
class _Whole:
    pieces: list[str] = field(default_factory=list)
    done: Done | None = None


async def _collect(call: Call) -> dict[str, Any]:
    """The body of a call that does not stream. Raises `ApiError` 500 if a forward failed."""
    choices, tokens = [], 0
    for index, submission in enumerate(call.submissions):
        whole = _Whole()
        while whole.done is None:
            event = await submission.events.get()
            if isinstance(event, PromptScored):
                continue
            whole.pieces.append(event.text)
            whole.done = event if isinstance(event, Done) else None
        if whole.done.reason is FinishReason.ERROR:
            raise failed(whole.done.problem or "the request failed")
        tokens += whole.done.num_output_tokens
        choices.append(_choice(call, index, "".join(whole.pieces), whole.done))
    return call.head(chunk=False) | {"choices": choices, "usage": call.usage(tokens)}


def _choice(call: Call, index: int, text: str, done: Done) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": str(done.reason)}
    return choice | ({"message": {"role": "assistant", "content": text}} if call.is_chat else {"text": text})


async def _stream(call: Call) -> AsyncIterator[bytes]:
    """One event for each token, then the usage if asked for, then `[DONE]`."""
    tokens, seen = 0, set[int]()
    no_usage = {"usage": None} if call.body.wants_usage else {}
    async with contextlib.aclosing(_merged(call)) as events:
        async for index, event in events:
            if isinstance(event, PromptScored):
                continue
            if isinstance(event, Done):
                tokens += event.num_output_tokens
                if event.reason is FinishReason.ERROR:
                    yield _sse(failed(event.problem or "the request failed").body)
                    break
            choice = _delta(call, index, event, first=index not in seen)
            seen.add(index)
            yield _sse(call.head(chunk=True) | {"choices": [choice]} | no_usage)
        else:
            if call.body.wants_usage:
                yield _sse(call.head(chunk=True) | {"choices": [], "usage": call.usage(tokens)})
    yield b"data: [DONE]\n\n"


def _delta(call: Call, index: int, event: Delta | Done, *, first: bool) -> dict[str, Any]:
    reason = str(event.reason) if isinstance(event, Done) else None
    choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": reason}
    if not call.is_chat:
        return choice | {"text": event.text}
    return choice | {"delta": ({"role": "assistant"} if first else {}) | {"content": event.text}}


async def _merged(call: Call) -> AsyncGenerator[tuple[int, Event], None]:
    """Events of all generations of a call as they come."""
    if len(call.submissions) == 1:
        events = call.submissions[0].events
        while True:
            event = await events.get()
            yield 0, event
            if isinstance(event, Done):
                return
    waiting = {asyncio.ensure_future(item.events.get()): at for at, item in enumerate(call.submissions)}
    try:
        while waiting:
            ready, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(ready, key=lambda task: waiting[task]):
                at, event = waiting.pop(task), task.result()
                yield at, event
                if not isinstance(event, Done):
                    waiting[asyncio.ensure_future(call.submissions[at].events.get())] = at
    finally:
        for task in waiting:
            task.cancel()


def _sse(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
