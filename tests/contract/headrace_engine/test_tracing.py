"""Traces over real OTLP/HTTP to a receiver on loopback, and no traces unless they are asked for."""

import asyncio
import gzip
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from headrace_engine.http import tracing

Serve = Any
CHAT = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0.5, "seed": 1, "ignore_eos": True}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSET, ERROR = 0, 2


class Receiver:
    """An OTLP/HTTP collector that keeps what it receives and answers with `status`."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                raw = gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw
                receiver.paths.append(self.path)
                receiver.requests.append(ExportTraceServiceRequest.FromString(raw))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def spans(self) -> list[Any]:
        return [
            span for request in self.requests for resource in request.resource_spans for scope in resource.scope_spans
            for span in scope.spans
        ]  # fmt: skip

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    made = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    yield made
    made.close()


def start() -> tracing.Tracing:
    traces = tracing.start(os.environ, model="tiny", port=8000)
    assert traces is not None
    return traces


def attributes(span: Any) -> dict[str, Any]:
    kinds = {"string_value": str, "int_value": int, "double_value": float, "bool_value": bool}
    found = {}
    for item in span.attributes:
        kind = item.value.WhichOneof("value")
        if kind == "array_value":
            found[item.key] = [value.string_value for value in item.value.array_value.values]
        else:
            found[item.key] = kinds[kind](getattr(item.value, kind))
    return found


async def test_a_call_is_one_server_span_with_queue_prefill_and_decode(
    serve: Serve, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace_engine.access")
    traces = start()
    server = await serve(http={"traces": traces})
    answer = await server.http.post(
        "/v1/chat/completions", json=CHAT | {"max_tokens": 9, "top_p": 0.5},
        headers={"traceparent": PARENT, "X-Request-Id": "mine"},
    )  # fmt: skip
    await traces.close()
    assert set(receiver.paths) == {"/v1/traces"}
    (span,) = receiver.named("POST /v1/chat/completions")
    assert span.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert span.parent_span_id.hex() == "b7ad6b7169203331"
    assert (span.kind, span.status.code) == (2, UNSET)
    body, told = answer.json(), attributes(span)
    expected = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "headrace", "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny", "gen_ai.response.id": body["id"], "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 0.5, "gen_ai.request.choice.count": 1,
        "gen_ai.response.finish_reasons": ["length"], "gen_ai.usage.input_tokens": body["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 9, "gen_ai.usage.cache_read.input_tokens": 0, "http.request.method": "POST",
        "http.route": "/v1/chat/completions", "url.path": "/v1/chat/completions", "http.response.status_code": 200,
        "headrace.request_id": "mine", "headrace.config_generation": 1, "headrace.revision": "r1",
    }  # fmt: skip
    assert expected.items() <= told.items()
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    assert {name for name in told if name.startswith("gen_ai.")} <= known, "only names of the conventions"
    children = [receiver.named(name)[0] for name in ("queue", "prefill", "decode")]
    assert {child.parent_span_id for child in children} == {span.span_id}
    queue, prefill, decode = children
    assert span.start_time_unix_nano <= queue.start_time_unix_nano
    assert queue.end_time_unix_nano == prefill.start_time_unix_nano
    assert prefill.end_time_unix_nano == decode.start_time_unix_nano < decode.end_time_unix_nano
    assert attributes(decode)["gen_ai.usage.output_tokens"] == 9
    ttft = (prefill.end_time_unix_nano - queue.start_time_unix_nano) / 1e9
    assert told["gen_ai.response.time_to_first_chunk"] == pytest.approx(ttft, abs=1e-8), "of one record"
    assert ttft > 0
    (line,) = [record for record in caplog.records if record.name == "headrace_engine.access"]
    assert vars(line)["trace_id"] == span.trace_id.hex()
    resource = {
        item.key: item.value.string_value for item in receiver.requests[0].resource_spans[0].resource.attributes
    }
    assert resource["service.name"] == "headrace"


async def test_every_generation_of_a_call_has_its_spans_and_streams_too(serve: Serve, receiver: Receiver) -> None:
    traces = start()
    server = await serve(http={"traces": traces})
    body = {"prompt": ["one", "two"], "n": 2, "max_tokens": 3, "ignore_eos": True, "stream": True}
    text = (await server.http.post("/v1/completions", json=body)).text
    await traces.close()
    (span,) = receiver.named("POST /v1/completions")
    told = attributes(span)
    assert (told["gen_ai.request.choice.count"], told["gen_ai.usage.output_tokens"]) == (4, 12)
    assert told["gen_ai.usage.input_tokens"] == 6, "a prompt counts once"
    call_id = json.loads(text.split("\n\n")[0].removeprefix("data: "))["id"]
    for name in ("queue", "prefill", "decode"):
        ids = sorted(attributes(child)["headrace.generation_id"] for child in receiver.named(name))
        assert ids == [f"{call_id}-{at}" for at in range(4)]
    assert span.parent_span_id == b"", "a trace of its own where the client has none"


async def test_failures_are_reported_by_the_conventions(
    serve: Serve, receiver: Receiver, gate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = start()
    server = await serve(http={"traces": traces})
    await server.complete(model="other")
    steps = gate(server)
    left = asyncio.create_task(server.complete(max_tokens=900, ignore_eos=True))
    steps.let(3)
    await steps.begun(4)
    left.cancel()
    while len(server.state.calls):
        await asyncio.sleep(0.002)
    steps.open()
    await server.idle()

    def broken(*_: Any) -> Any:
        raise RuntimeError("injected")

    monkeypatch.setattr(server.engine.runner, "run", broken)
    assert (await server.complete()).status_code == 500
    await traces.close()
    refused, gone, failed = receiver.named("POST /v1/completions")
    assert (refused.status.code, attributes(refused)["http.response.status_code"]) == (UNSET, 404)
    assert "error.type" not in attributes(refused), "a client's mistake is not a server error"
    assert (gone.status.code, attributes(gone)["error.type"]) == (UNSET, "499")
    assert attributes(gone)["gen_ai.response.finish_reasons"] == ["abort"]
    assert (failed.status.code, attributes(failed)["error.type"]) == (ERROR, "engine_error")
    assert "injected" in failed.status.message
    ends = {attributes(span)["headrace.generation_id"]: span.name for span in receiver.spans if span.parent_span_id}
    assert len(ends) == 2, "the refused call started nothing"


async def test_probes_are_not_traced_and_a_client_that_wants_no_sample_gets_none(
    serve: Serve, receiver: Receiver
) -> None:
    traces = start()
    server = await serve(http={"traces": traces})
    await server.http.get("/health/live")
    await server.http.get("/metrics")
    await server.http.get("/v1/models", headers={"traceparent": PARENT[:-2] + "00"})
    await server.http.get("/v1/models", headers={"traceparent": "nonsense"})
    await traces.close()
    assert [span.name for span in receiver.spans] == ["GET"]


async def test_a_collector_that_is_down_harms_no_call(
    serve: Serve, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.status = 400
    traces = start()
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 1.0)
    server = await serve(http={"traces": traces})
    assert (await server.complete()).status_code == 200
    receiver.close()
    assert (await server.complete()).status_code == 200
    await traces.close()
    receiver.close = lambda: None  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("environ", "exporters"),
    [({}, []), ({"OTEL_SERVICE_NAME": "x"}, []), ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, ["otlp"]),
     ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, ["otlp"]), ({"OTEL_TRACES_EXPORTER": "otlp"}, ["otlp"]),
     ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ["console", "otlp"]),
     ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, []),
     ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "TRUE"}, []),
     ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, [])],
)  # fmt: skip
def test_the_environment_decides(environ: dict[str, str], exporters: list[str]) -> None:
    assert tracing.wanted_exporters(environ) == exporters


@pytest.mark.parametrize(
    ("environ", "words"),
    [({"OTEL_TRACES_EXPORTER": "zipkin"}, "names zipkin"),
     ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf")],
)  # fmt: skip
def test_traces_that_cannot_be_sent_are_a_warning_and_the_server_starts(
    environ: dict[str, str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert tracing.start(environ, model="tiny", port=1) is None
    assert words in caplog.text


def test_without_the_variables_opentelemetry_is_not_imported() -> None:
    """Not by us: transformers imports its API if it is installed."""
    code = (
        "import sys\nfrom headrace_engine import server\nfrom headrace_engine.http import tracing\n"
        "assert tracing.start({}, model='m', port=1) is None\n"
        "print([n for n in sys.modules if n.startswith(('opentelemetry.exporter', 'opentelemetry.sdk.trace'))])"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=clean)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_without_the_library_the_server_starts_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    assert tracing.start({"OTEL_TRACES_EXPORTER": "console"}, model="tiny", port=1) is None
    assert "pip install opentelemetry-sdk" in caplog.text


def test_httpx_is_not_instrumented_here() -> None:
    """A check of the receiver itself: it keeps only what was posted to it."""
    made = Receiver()
    try:
        request = ExportTraceServiceRequest()
        assert httpx.post(made.url + "/v1/traces", content=request.SerializeToString()).status_code == 200
        assert made.spans == []
    finally:
        made.close()
