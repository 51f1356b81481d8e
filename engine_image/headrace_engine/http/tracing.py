"""OpenTelemetry traces, if the SDK's environment variables ask for them; otherwise OpenTelemetry is not imported.

One server span for each call, under the client's W3C traceparent; below it queue, prefill and decode of each
generation, from the engine's own times. Attributes follow the GenAI semantic conventions (status: development).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_core.trace.explain import RequestExplanation
from headrace_engine.daemon import in_daemon
from headrace_engine.errors import EngineError
from headrace_engine.http.calls import CLIENT_CLOSED, HttpCall
from headrace_engine.http.state import ServerState
from headrace_engine.metrics.generation_record import GenerationRecord
from headrace_engine.version import VERSION

log = logging.getLogger(__name__)
FLUSH_SECONDS = 5.0
OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP_PROTOCOL = "http/protobuf"
EXPORTERS = frozenset({"otlp", "console"})


def wanted_exporters(environ: Mapping[str, str]) -> list[str]:
    """The exporters that the environment asks for; empty for no traces."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    default = "otlp" if any(environ.get(name) for name in ENDPOINTS) else "none"
    names = [name.strip() for name in (environ.get("OTEL_TRACES_EXPORTER") or default).split(",")]
    return [name for name in names if name and name != "none"]


def start(environ: Mapping[str, str], *, model: str, port: int) -> Tracing | None:
    """Traces as the environment asks for them, or None. If they cannot be sent, that is only a warning.

    `environ` decides whether and to which exporters; the SDK reads their settings, the sampler and the resource from
    the process's environment.
    """
    exporters = wanted_exporters(environ)
    if not exporters:
        return None
    if problem := _problem(exporters, environ):
        log.warning("no traces are sent: %s", problem)
        return None
    try:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter  # noqa: PLC0415
    except ModuleNotFoundError as error:
        log.warning(
            "no traces are sent: %s is not installed; pip install opentelemetry-sdk "
            "opentelemetry-exporter-otlp-proto-http", error.name,
        )  # fmt: skip
        return None
    named = "OTEL_SERVICE_NAME" in environ or "service.name" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({"service.version": VERSION} | ({} if named else {"service.name": "headrace"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for name in exporters:
        exporter = ConsoleSpanExporter() if name == "console" else _otlp()
        provider.add_span_processor(BatchSpanProcessor(exporter))
    log.info("traces are sent", extra={"exporters": exporters})
    return Tracing(provider, model=model, port=port)


def _problem(exporters: list[str], environ: Mapping[str, str]) -> str | None:
    unknown = [name for name in exporters if name not in EXPORTERS]
    if unknown:
        return f"OTEL_TRACES_EXPORTER names {', '.join(unknown)}; this server has {', '.join(sorted(EXPORTERS))}"
    protocol = next((environ[name] for name in PROTOCOLS if environ.get(name)), HTTP_PROTOCOL)
    if protocol != HTTP_PROTOCOL:
        return f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}; this server exports over {HTTP_PROTOCOL} (port 4318)"
    return None


def _otlp() -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

    return OTLPSpanExporter()


@dataclass(frozen=True, slots=True)
class TraceStage:
    """One child span; times in seconds on the monotonic clock."""

    name: str
    start: float
    end: float
    attributes: Mapping[str, Any]


class Tracing:
    """Makes the spans of calls. Used by the event loop only."""

    def __init__(self, provider: Any, *, model: str, port: int) -> None:
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.propagate import extract  # noqa: PLC0415

        self._provider = provider
        self._tracer = provider.get_tracer("headrace_engine", VERSION)
        self._trace, self._extract = trace, extract
        self._model, self._port = model, port
        self._pending: set[asyncio.Task[None]] = set()

    def begin(self, call: HttpCall, headers: Mapping[str, str]) -> None:
        """A call came in; its span continues the client's trace."""
        call.span = self._tracer.start_span(
            f"{call.method} {call.path}" if call.path in OPERATIONS else call.method,
            context=self._extract(headers),
            kind=self._trace.SpanKind.SERVER,
            start_time=call.started_ns,
        )

    def end(self, call: HttpCall, state: ServerState) -> None:
        """The call is over. Its span is finished in the background, once the engine has given its times."""
        ended = self._at(call, call.started + (call.seconds or 0.0))
        task = asyncio.get_running_loop().create_task(self._finish(call, state, ended))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def close(self) -> None:
        """Send what is left, for at most `FLUSH_SECONDS`. Call it before the step thread stops: it still asks it."""
        if self._pending:
            await asyncio.wait(self._pending, timeout=FLUSH_SECONDS)
        try:
            await in_daemon(self._provider.shutdown, name="headrace-traces", seconds=FLUSH_SECONDS)
        except TimeoutError:
            log.warning("the last traces could not be sent within %g s", FLUSH_SECONDS)

    async def _finish(self, call: HttpCall, state: ServerState, ended: int) -> None:
        if call.span.is_recording():
            call.span.set_attributes(self._attributes(call))
            self._set_status(call)
            parent = self._trace.set_span_in_context(call.span)
            for generation in call.generations:
                told = await _explained(state, generation)
                for stage in () if told is None else stages(generation, told):
                    child = self._tracer.start_span(
                        stage.name, context=parent, start_time=self._at(call, stage.start), attributes=stage.attributes
                    )
                    child.end(self._at(call, stage.end))
        call.span.end(ended)

    def _set_status(self, call: HttpCall) -> None:
        problem = next((item.problem for item in call.generations if item.problem is not None), None)
        if call.status >= 500 or problem is not None:
            call.span.set_status(self._trace.StatusCode.ERROR, call.error if problem is None else problem.message)
        if call.status >= 500 or call.status == CLIENT_CLOSED or problem is not None:
            call.span.set_attribute(
                "error.type", call.error or ("engine_error" if problem is not None else str(call.status))
            )

    def _attributes(self, call: HttpCall) -> dict[str, Any]:
        found = {
            "http.request.method": call.method, "url.path": call.path, "http.response.status_code": call.status,
            "client.address": call.client, "server.port": self._port, "headrace.request_id": call.request_id,
            "headrace.config_generation": call.config_generation, "headrace.revision": call.revision,
        } | (self._gen_ai(call) if call.path in OPERATIONS else {})  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}

    def _gen_ai(self, call: HttpCall) -> dict[str, Any]:
        about: dict[str, Any] = {
            "http.route": call.path, "gen_ai.operation.name": OPERATIONS[call.path],
            "gen_ai.provider.name": "headrace", "gen_ai.request.model": self._model,
        }  # fmt: skip
        if not call.generations:
            return about
        first = call.generations[0]
        return about | {
            "gen_ai.response.model": self._model, "gen_ai.response.id": call.call_id,
            "gen_ai.request.max_tokens": first.max_tokens, "gen_ai.request.temperature": first.temperature,
            "gen_ai.request.top_p": first.top_p, "gen_ai.request.choice.count": len(call.generations),
            "gen_ai.response.finish_reasons": [reason or "unknown" for reason in call.finish_reasons],
            "gen_ai.usage.input_tokens": call.prompt_tokens, "gen_ai.usage.output_tokens": call.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": call.cached_tokens,
            "gen_ai.response.time_to_first_chunk": call.ttft,
        }  # fmt: skip

    @staticmethod
    def _at(call: HttpCall, seconds: float) -> int:
        """Unix nanoseconds of a time on the monotonic clock."""
        return call.started_ns + round((seconds - call.started) * 1e9)


def stages(generation: GenerationRecord, told: RequestExplanation) -> Iterator[TraceStage]:
    """Queue, prefill and decode of one generation, up to the stage it reached, with the scheduler's causes of waits."""
    started, first = generation.started, generation.first_token
    last = told.at if generation.ended is None else generation.ended
    about: dict[str, Any] = {"headrace.generation_id": generation.id}
    waits = {f"headrace.wait.{wait.cause}": wait.seconds for wait in told.waits}
    yield TraceStage("queue", generation.arrival, last if started is None else started, about | waits)
    if started is None:
        return
    work = {
        "gen_ai.usage.input_tokens": generation.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": generation.cached_tokens,
        "headrace.chunks": told.num_chunks, "headrace.preemptions": generation.preemptions,
    }  # fmt: skip
    yield TraceStage("prefill", started, last if first is None else first, about | work)
    if first is not None:
        stalls = {f"headrace.stall.{wait.cause}": wait.seconds for wait in told.stalls}
        ending = {
            "gen_ai.usage.output_tokens": generation.output_tokens, "headrace.finish_reason": str(generation.reason)
        }  # fmt: skip
        yield TraceStage("decode", first, max(last, first), about | stalls | ending)


async def _explained(state: ServerState, generation: GenerationRecord) -> RequestExplanation | None:
    try:
        return None if state.engine is None else await state.engine.loop.explain(generation.id)
    except EngineError:
        return None


def trace_id(call: HttpCall) -> str:
    """The trace id as logs show it: 32 hexadecimal digits."""
    return f"{call.span.get_span_context().trace_id:032x}"
