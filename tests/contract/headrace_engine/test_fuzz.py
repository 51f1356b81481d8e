"""Hostile and ordinary calls in a wild mix: never a 5xx, nobody stuck, no block lost, and the next call works.

500 calls here; `HEADRACE_FUZZ=10000` makes it as many. A case follows from the seed and its number alone
(`HEADRACE_FUZZ_SEED`), and one that fails is printed with its body.
"""

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from headrace_core.scheduler import invariants

Serve = Any
COUNT = int(os.environ.get("HEADRACE_FUZZ", "500"))
SEED = os.environ.get("HEADRACE_FUZZ_SEED", "1")
AT_ONCE = 8
STUCK_SECONDS = 120
AUTH = {"Authorization": "Bearer s3cret"}
MAX_LEN = 256

HOSTILE: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.0, 1e308, 5e-324, float("nan"),
    float("inf"), "", " ", "x", "NaN", "1", "\x00", "\ud800", "\udfff\ud800", "\U0001f600", "\u202e", "a" * 10_000,
    [], [[]], [None], [0], [-1], [10**6], [2**70], ["", "x"], ["x"] * 200, [[1, 2], [3]], [1, "x"], {}, {"": {}},
    {"type": "json_object"}, {"type": "json_schema"}, {"type": "object"}, {"$ref": "#"}, {"a": float("inf")},
    {"5": 1e9}, {"-1": 1}, {"300": 1}, {"x": 1}, {"1" * 5000: 1},
)  # fmt: skip
REGEXES = (
    "", "(", "[", "(a+)+$", "a{1,100}", "[a-z]{3}", r"\d{1,3}(\.\d{1,3}){3}", "(?=a)b", r"(a)\1", "\\", "🙂{2}",
    "a{100000}", "(((((((((((a*)*)*)*)*)*)*)*)*)*)*", "[^\\x00-\\x{10FFFF}]",
)  # fmt: skip
SCHEMAS: tuple[Any, ...] = (
    {}, True, {"type": "object"}, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3}, {"enum": ["x", 1, None]},
    {"$ref": "#/nowhere"}, {"$ref": "#"}, {"type": "wombat"}, {"type": "string", "pattern": "("}, {"not": {}},
    {"anyOf": []}, {"type": "integer", "minimum": 5, "maximum": 1},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
)  # fmt: skip


MUTABLE = (
    "n", "best_of", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "stop", "stream", "model", "suffix",
    "response_format", "tools", "tool_choice", "guided_json", "guided_regex", "stream_options", "min_tokens", "wombat",
    "max_completion_tokens", "logit_bias", "user", "metadata", "chat_template_kwargs", "functions",
)  # fmt: skip
PATHS = (
    "/", "/v1", "/v1/models", "/v1/models/x%00y", "/v1/models/%ff", "/v1/completions", "/metrics", "/health/live",
    "/openapi.json", "/../../etc/passwd", "/v1/models/" + "a" * 5000, "/%2e%2e/", "/?a=" + "b" * 2000,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One call. With `leave` the client goes after so many lines of the answer; `valid`: it must be served."""

    method: str
    path: str
    body: bytes = b""
    admin: bool = False
    leave: int | None = None
    valid: bool = False


def text(rng: random.Random, most: int = 60) -> str:
    alphabet = rng.choice(("ab ", "etaoin shrdlu\n", "äöü€🙂漢字", "".join(map(chr, range(32, 127)))))
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, most)))


def sampling(rng: random.Random) -> dict[str, Any]:
    """Parameters that are all right, some of them."""
    choices: dict[str, Callable[[], Any]] = {
        "temperature": lambda: rng.choice((0, 0.5, 1, 2)), "top_p": lambda: rng.choice((0.1, 0.9, 1)),
        "top_k": lambda: rng.choice((-1, 0, 1, 5, 1000)), "min_p": lambda: rng.choice((0, 0.1, 1)),
        "seed": lambda: rng.randint(-9, 9), "n": lambda: rng.randint(1, 3),
        "stop": lambda: rng.choice(("e", ["a", "zz"], "", [])),
        "presence_penalty": lambda: rng.uniform(-2, 2), "frequency_penalty": lambda: rng.uniform(-2, 2),
        "repetition_penalty": lambda: rng.uniform(0.5, 2),
        "logit_bias": lambda: {str(rng.randint(0, 255)): rng.randint(-100, 100)},
        "ignore_eos": lambda: rng.random() < 0.5, "priority": lambda: rng.randint(-3, 3),
        "stop_token_ids": lambda: [rng.randint(0, 255)], "cache_salt": lambda: rng.choice(("a", "b")),
        "structured_outputs": lambda: {"regex": "[a-z]{1,5}"}, "guided_choice": lambda: ["yes", "no"],
    }  # fmt: skip
    kept = rng.sample(sorted(choices), rng.randint(0, 5))
    if {"structured_outputs", "guided_choice"} <= set(kept):
        kept.remove("guided_choice")
    return {name: choices[name]() for name in kept}


def ordinary(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A path and a body that must be served."""
    body = sampling(rng) | {"max_tokens": rng.randint(1, 20)}
    if rng.random() < 0.4:
        body["stream"] = True
    if rng.random() < 0.4:
        roles = ["system"] * rng.randint(0, 1) + ["user", "assistant"] * rng.randint(0, 1) + ["user"]
        return "/v1/chat/completions", body | {"messages": [{"role": role, "content": text(rng, 20)} for role in roles]}
    prompts: tuple[Callable[[], Any], ...] = (
        lambda: text(rng), lambda: [text(rng, 20) for _ in range(rng.randint(1, 3))],
        lambda: [rng.randint(0, 255) for _ in range(rng.randint(1, 150))], lambda: [[rng.randint(0, 255)], [1, 2, 3]],
        lambda: "the same beginning of every prompt " * 3 + text(rng, 5),
    )  # fmt: skip
    return "/v1/completions", body | {"prompt": rng.choice(prompts)()}


def mutated(rng: random.Random) -> Case:
    """An ordinary call with one or two fields turned hostile."""
    path, body = ordinary(rng)
    for _ in range(rng.randint(1, 2)):
        name = rng.choice([*body, *MUTABLE])
        body[name] = rng.choice(HOSTILE)
        if name == "guided_regex":
            body[name] = rng.choice(REGEXES)
        elif name == "guided_json":
            body[name] = rng.choice(SCHEMAS)
        elif name == "response_format" and rng.random() < 0.7:
            body[name] = {"type": "json_schema", "json_schema": {"name": "x", "schema": rng.choice(SCHEMAS)}}
        elif name == "messages":
            role = rng.choice(("user", "tool", "assistant", "boss", "developer"))
            body[name] = [{"role": role, "content": rng.choice(HOSTILE)}]
    body["max_tokens"] = min(20, body["max_tokens"]) if type(body["max_tokens"]) is int else body["max_tokens"]
    return Case("POST", path, json.dumps(body).encode(), leave=_leave(rng))


def broken(rng: random.Random) -> Case:
    """A body that is not JSON, or barely."""
    path, body = ordinary(rng)
    good = json.dumps(body).encode()
    at = rng.randrange(len(good))
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: good[:at], lambda: good[:at] + bytes([rng.randrange(256)]) + good[at + 1 :], lambda: good + good,
        lambda: b"[" * rng.choice((10, 1000, 100_000)), lambda: b'{"a":' * 5000 + b"1" + b"}" * 5000, lambda: b"",
        lambda: b"\xef\xbb\xbf" + good, lambda: good.decode().encode("utf-16"),
        lambda: rng.randbytes(rng.randrange(200)),
        lambda: b'{"prompt": "x", "prompt": "y", "max_tokens": 1}', lambda: b"null", lambda: b"[]", lambda: b'"x"',
        lambda: b'{"prompt": "x", "seed": 1' + b"0" * 5000 + b"}",
        lambda: b'{"prompt": "x", "top_p": 0.' + b"1" * 5000 + b"}",
        lambda: b'{"prompt": "\\ud800"}', lambda: b'{"prompt": "\xed\xa0\x80"}', lambda: b'{"prompt": 1e999}',
        lambda: b'{"messages": [{"role": "user", "content": "\\udc00"}]}', lambda: b'{"__proto__": 1, "prompt": "x"}',
    )  # fmt: skip
    return Case("POST", path, rng.choice(kinds)())


def tokens(rng: random.Random) -> Case:
    path = rng.choice(("/tokenize", "/detokenize"))
    name = rng.choice(("prompt", "tokens", "messages", "x"))
    bodies: list[Any] = [{"prompt": text(rng)}, {"tokens": [rng.randint(-2, 300) for _ in range(9)]}]
    bodies += [{name: rng.choice(HOSTILE)}, rng.choice(HOSTILE)]
    return Case("POST", path, json.dumps(rng.choice(bodies)).encode())


def other(rng: random.Random) -> Case:
    method = rng.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"))
    return Case(method, rng.choice(PATHS), rng.choice((b"", b"{}", b"x" * 1000)))


def admin(rng: random.Random) -> Case:
    """Changes of the config, sane and otherwise; questions about requests."""
    if rng.random() < 0.2:
        name = rng.choice(("x", "", "%ff", "a" * 3000, "cmpl-0", "mine"))
        return Case("GET", "/admin/explain?request=" + name, admin=True)
    knobs: dict[str, Callable[[], Any]] = {
        "max_num_seqs": lambda: rng.randint(1, 8), "max_num_batched_tokens": lambda: rng.choice((8, 16, 64, 128)),
        "prefill_chunk_size": lambda: rng.choice((1, 7, 16, 64)), "decode_ratio": lambda: rng.choice((0.0, 0.3, 0.9)),
        "enable_chunked_prefill": lambda: rng.random() < 0.7, "preemptible": lambda: rng.random() < 0.5,
        "max_num_partial_prefills": lambda: rng.randint(1, 4), "max_queue_len": lambda: rng.choice((4, 64, 1024)),
        "long_prefill_token_threshold": lambda: rng.choice((0, 5, 50)),
        "scheduling_policy": lambda: rng.choice(("fcfs", "priority")),
        "priority_ageing_seconds": lambda: rng.choice((0.05, 0.2)),
    }  # fmt: skip
    body: dict[str, Any] = {"knobs": {name: knobs[name]() for name in rng.sample(sorted(knobs), rng.randint(0, 3))}}
    if rng.random() < 0.3:
        body["slo"] = rng.choice((None, {"ttft_seconds": 0.1}, {"e2e_seconds": 1, "itl_seconds": 0.01}, *HOSTILE))
    if rng.random() < 0.3:
        body["knobs"][rng.choice(("seed", "wombat", *knobs))] = rng.choice(HOSTILE)
    if rng.random() < 0.1:
        body[rng.choice(("revision", "if_generation", "wombat", "knobs"))] = rng.choice(HOSTILE)
    return Case("PATCH", "/admin/config", json.dumps(body).encode(), admin=True)


def _leave(rng: random.Random) -> int | None:
    return rng.randint(0, 6) if rng.random() < 0.25 else None


def make(number: int) -> Case:
    """Case `number` of the seed."""
    rng = random.Random(f"{SEED}-{number}")
    kind = rng.random()
    if kind < 0.35:
        path, body = ordinary(rng)
        leave = _leave(rng)
        return Case("POST", path, json.dumps(body).encode(), leave=leave, valid=leave is None)
    for limit, maker in ((0.65, mutated), (0.78, broken), (0.85, tokens), (0.92, admin)):
        if kind < limit:
            return maker(rng)
    return other(rng)


@dataclass
class Answer:
    status: int
    text: str


async def call(server: Any, case: Case) -> Answer:
    """Send a case; what came until the client left."""
    client: httpx.AsyncClient = server.admin if case.admin else server.http
    headers = {"Content-Type": "application/json", "X-Request-Id": "mine"} | (AUTH if case.admin else {})
    lines: list[str] = []
    async with _stream(client, case, headers) as answer:
        async for line in answer.aiter_lines():
            if case.leave is not None and len(lines) >= case.leave:
                break
            lines.append(line)
    return Answer(answer.status_code, "\n".join(lines))


@contextlib.asynccontextmanager
async def _stream(client: httpx.AsyncClient, case: Case, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
    url = httpx.URL(str(client.base_url).rstrip("/")).copy_with(raw_path=case.path.encode())
    async with client.stream(case.method, url, content=case.body, headers=headers) as answer:
        yield answer


def complaint(case: Case, answer: Answer) -> str | None:
    """What is wrong with an answer, or None."""
    if answer.status >= 500:
        return "a 5xx"
    if case.valid and answer.status not in (200, 429):
        return "a valid call was refused"
    if '"type":"server_error"' in answer.text:
        return "an error of the server inside a stream"
    streams = case.valid and answer.status == 200 and b'"stream": true' in case.body
    if streams and "data: [DONE]" not in answer.text:
        return "a stream without its end"
    return None


@pytest.mark.timeout(600 + COUNT)
async def test_nothing_that_a_client_sends_harms_the_server(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await serve(
        max_num_seqs=8, max_num_batched_tokens=128, max_model_len=MAX_LEN, block_size=16, kv_cache_bytes=40 * 4096,
        priority_ageing_seconds=0.2,  # else a low priority may wait, as it should, until all others are through
    )  # fmt: skip
    for client in (server.http, server.admin):
        monkeypatch.setattr(client, "timeout", STUCK_SECONDS)
    numbers, failures = iter(range(COUNT)), list[str]()

    async def work() -> None:
        for number in numbers:
            case = make(number)
            try:
                async with asyncio.timeout(STUCK_SECONDS):
                    answer = await call(server, case)
                problem = complaint(case, answer)
            except (TimeoutError, httpx.HTTPError) as error:
                answer, problem = Answer(0, repr(error)), "stuck, or no answer"
            if problem is not None:
                failures.append(
                    f"{problem}: HEADRACE_FUZZ_SEED={SEED}, case {number}: {case.method} {case.path[:200]}\n"
                    f"  body {case.body[:3000]!r}\n  answer {answer.status} {answer.text[:500]}"
                )
            if len(failures) >= 5:
                return

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    assert not failures, "\n".join(failures)
    await _all_well(server)


async def _all_well(server: Any) -> None:
    """The scheduler's books are right, no request is left, and the server is alive and serves."""
    loop = server.engine.loop
    async with asyncio.timeout(STUCK_SECONDS):
        await server.idle()
        while len(server.state.calls):
            await asyncio.sleep(0.01)
    assert loop.alive
    await asyncio.to_thread(invariants.check, loop._scheduler)  # the step thread is idle
    assert loop.stats.blocks_free == loop.stats.blocks_total
    assert loop._live == {}
    assert (await server.http.get("/health/ready")).status_code == 200
    assert (await server.http.get("/metrics")).status_code == 200
    reset = {"max_num_batched_tokens": 128, "prefill_chunk_size": 128, "max_num_seqs": 8}
    assert (await server.admin.patch("/admin/config", json={"knobs": reset}, headers=AUTH)).status_code == 200
    answer = await server.complete(max_tokens=5, ignore_eos=True)
    assert answer.json()["usage"]["completion_tokens"] == 5


def test_a_case_follows_from_its_seed_and_number() -> None:
    cases = [make(number) for number in range(300)]
    assert cases == [make(number) for number in range(300)]
    assert sum(case.valid for case in cases) > 50
    assert sum(case.leave is not None for case in cases) > 10
    assert sum(case.admin for case in cases) > 10
