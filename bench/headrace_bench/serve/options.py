"""The flags of `headrace bench serve`, checked as a whole."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from headrace_bench.command_options import duration, option
from headrace_bench.errors import BenchError
from headrace_bench.serve.prompts import Api, Dialect
from headrace_core.evidence.slo import SloSet
from headrace_core.workload.arrivals import ArrivalProcess, Arrivals
from headrace_core.workload.lengths import FORMS, Length
from headrace_core.workload.plans import Prefix, RequestMix

LOAD, REQUESTS, SERVER, SLO, OUT = "Load", "Requests", "Server", "SLO", "Output"
NEW_CONNECTIONS = "Reuse connections. Default: a new one per request, so that a load balancer spreads them."
KEY_VARIABLE = "HEADRACE_API_KEY"


class PromptForm(StrEnum):
    """How made-up prompts are sent."""

    AUTO = "auto"
    TEXT = "text"


class TraceUnit(StrEnum):
    """Unit of a trace's numbers."""

    SECONDS = "s"
    MILLISECONDS = "ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The flags of `headrace bench serve`. Durations in seconds."""

    rate: Annotated[float, option("Requests per second, planned ahead (open loop); inf: all at once.", panel=LOAD)] = (
        1.0
    )
    duration: Annotated[float, duration("How long requests arrive.", panel=LOAD)] = 20.0
    requests: Annotated[int | None, option("Number of requests, instead of --duration.", panel=LOAD, min=1)] = None
    arrivals: Annotated[ArrivalProcess, option("How gaps are drawn.", panel=LOAD)] = ArrivalProcess.POISSON
    burstiness: Annotated[float, option("Gamma shape of the gaps of bursts; 1 is Poisson.", panel=LOAD)] = 0.3
    ramp_to: Annotated[float | None, option("Rate at the end; it rises or falls steadily.", panel=LOAD)] = None
    concurrency: Annotated[
        int | None, option("Closed loop: this many requests at once instead of a rate.", panel=LOAD, min=1)
    ] = None
    trace: Annotated[Path | None, option("JSONL trace to replay instead of a rate.", panel=LOAD)] = None
    trace_unit: Annotated[TraceUnit, option("Unit of the trace's numbers.", panel=LOAD)] = TraceUnit.SECONDS
    time_scale: Annotated[float, option("Stretch the trace's time: 0.5 plays it in half.", panel=LOAD)] = 1.0
    warmup: Annotated[float, duration("Load before the window, not counted.", panel=LOAD)] = 0.0
    drain: Annotated[float, duration("Longest wait for unfinished requests at the end.", panel=LOAD)] = 120.0
    timeout: Annotated[float, duration("Limit of one request.", panel=LOAD)] = 300.0
    max_in_flight: Annotated[int, option("Requests above this are counted but not sent.", panel=LOAD, min=1)] = 2048
    seed: Annotated[int, option("Seed of arrivals and lengths.", panel=LOAD)] = 0

    prompt_tokens: Annotated[
        str, option(f"Length: {FORMS}.", "--prompt-tokens", "--short-prompt-tokens", panel=REQUESTS)
    ] = "64"
    long_prompt_tokens: Annotated[str, option("Length of long prompts.", panel=REQUESTS)] = "512"
    long_share: Annotated[float, option("Share of long prompts, 0 to 1.", panel=REQUESTS)] = 0.0
    output_tokens: Annotated[str, option("Length of answers.", panel=REQUESTS)] = "32"
    prefix_tokens: Annotated[int, option("Length of a prefix that prompts share.", panel=REQUESTS)] = 0
    prefix_share: Annotated[float, option("Share of requests that begin with it.", panel=REQUESTS)] = 1.0
    prefix_groups: Annotated[int, option("Number of different prefixes.", panel=REQUESTS)] = 1
    salt: Annotated[
        str | None,
        option("Makes prompts differ. Default: new in each run, so that no cache holds them.", panel=REQUESTS),
    ] = None

    api: Annotated[Api, option("Which of OpenAI's APIs.", panel=SERVER)] = Api.COMPLETIONS
    model: Annotated[str | None, option("Model name. Default: the server's first.", panel=SERVER)] = None
    prompt_form: Annotated[
        PromptForm, option("auto: token ids, which have exact lengths, if the server takes them.", panel=SERVER)
    ] = PromptForm.AUTO
    ignore_eos: Annotated[bool, option("Ask for answers of the full length.", panel=SERVER)] = True
    temperature: Annotated[float, option("0: the likeliest token.", panel=SERVER)] = 0.0
    extra_body: Annotated[str | None, option("JSON object with extra fields for the body.", panel=SERVER)] = None
    api_key_file: Annotated[Path | None, option(f"File with the API key. Default: ${KEY_VARIABLE}.", panel=SERVER)] = (
        None
    )
    keep_alive: Annotated[bool, option(NEW_CONNECTIONS, panel=SERVER)] = False

    slo_ttft: Annotated[float | None, duration("Time to first token, from the planned arrival.", panel=SLO)] = None
    slo_itl: Annotated[float | None, duration("Time between tokens.", panel=SLO)] = None
    slo_itl_percentile: Annotated[
        float, option("Percentile of a request's gaps that must meet --slo-itl.", panel=SLO)
    ] = 99.0
    slo_tpot: Annotated[float | None, duration("Mean time of each token after the first.", panel=SLO)] = None
    slo_e2e: Annotated[float | None, duration("Time to the last token.", panel=SLO)] = None

    json: Annotated[str | None, option("Write the result there as JSON; - for stdout.", panel=OUT)] = None
    records: Annotated[Path | None, option("Write one JSON line a request there.", panel=OUT)] = None
    strict: Annotated[bool, option("Exit 3 if the client, not the server, was the limit.", panel=OUT)] = False

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form of the options."""
        values = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}
        values["rate"] = None if math.isinf(self.rate) else self.rate
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options, parsed into the types of arrivals, mix and SLO."""

    arrivals: Arrivals
    shape: RequestMix
    requests: int
    duration: float
    slo: SloSet
    dialect: Dialect
    headers: dict[str, str]


def understand(options: ServeOptions) -> Asked:
    """Check the options together. Raises `BenchError` that names the flag."""
    try:
        _check_numbers(options)
        arrivals = Arrivals(
            process=options.arrivals, rate=options.rate, ramp_to=options.ramp_to, burstiness=options.burstiness
        )
        shape, slo = _shape(options), _slo(options)
    except ValueError as error:
        # The parts name their field first, and flags are named after the fields.
        name, _, text = str(error).removeprefix("slo.").partition(": ")
        raise BenchError(f"--{name.replace('_', '-')}: {text}") from error
    if options.trace is not None and options.concurrency is not None:
        raise BenchError("--trace and --concurrency exclude each other: a closed loop has no arrival times")
    if math.isinf(options.rate) and options.requests is None:
        raise BenchError("--rate inf needs --requests: how many come at once")
    _check_outputs(options)
    requests = options.requests or arrivals.count(options.duration)
    return Asked(
        arrivals=arrivals,
        shape=shape,
        requests=requests,
        duration=options.duration if options.requests is None else arrivals.seconds(requests),
        slo=slo,
        dialect=_dialect(options),
        headers=_headers(options),
    )


def _check_numbers(options: ServeOptions) -> None:
    for name in ("duration", "timeout", "time_scale"):
        value = getattr(options, name)
        if not 0 < value < math.inf:
            raise ValueError(f"{name}: must be above 0, got {value:g}")
    for name in ("warmup", "drain"):
        value = getattr(options, name)
        if not 0 <= value < math.inf:
            raise ValueError(f"{name}: must not be negative, got {value:g}")
    if not 0 <= options.temperature <= 2:
        raise ValueError(f"temperature: must be from 0 to 2, got {options.temperature:g}")


def _check_outputs(options: ServeOptions) -> None:
    """Check that files can be written now, not after the run."""
    json_path = None if options.json in (None, "-") else Path(str(options.json))
    for flag, path in (("--json", json_path), ("--records", options.records)):
        if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
            raise BenchError(f"{flag} {path}: cannot be written: is its folder there, and yours to write to?")
        if path is not None and path.is_dir():
            raise BenchError(f"{flag} {path}: is a folder; name a file in it")


def _shape(options: ServeOptions) -> RequestMix:
    lengths = {}
    for name in ("prompt_tokens", "long_prompt_tokens", "output_tokens"):
        try:
            lengths[name] = Length.parse(getattr(options, name))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return RequestMix(
        prompt=lengths["prompt_tokens"],
        output=lengths["output_tokens"],
        long=lengths["long_prompt_tokens"],
        long_share=options.long_share,
        prefix=Prefix(tokens=options.prefix_tokens, share=options.prefix_share, groups=options.prefix_groups),
    )


def _slo(options: ServeOptions) -> SloSet:
    try:
        return SloSet(
            ttft_seconds=options.slo_ttft,
            itl_seconds=options.slo_itl,
            itl_percentile=options.slo_itl_percentile,
            tpot_seconds=options.slo_tpot,
            e2e_seconds=options.slo_e2e,
        )
    except ValueError as error:
        raise ValueError("slo_" + str(error).removeprefix("slo.").replace("_seconds", "")) from error


def _dialect(options: ServeOptions) -> Dialect:
    try:
        extra = {} if options.extra_body is None else json.loads(options.extra_body)
    except ValueError as error:
        raise BenchError(f"--extra-body: is not JSON: {error}") from error
    if not isinstance(extra, dict):
        raise BenchError("--extra-body: must be a JSON object")
    return Dialect(
        api=options.api,
        ids=options.prompt_form is not PromptForm.TEXT and options.api is Api.COMPLETIONS,
        ignore_eos=options.ignore_eos,
        temperature=options.temperature,
        extra=extra,
    )


def _headers(options: ServeOptions) -> dict[str, str]:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if options.api_key_file is not None:
        try:
            key = options.api_key_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BenchError(f"--api-key-file {options.api_key_file}: cannot be read: {error}") from error
        if not key:
            raise BenchError(f"--api-key-file {options.api_key_file}: is empty; put the key into it")
    if any(ord(char) < 33 or ord(char) > 126 for char in key):
        raise BenchError("the API key has characters that no header can carry")
    return {"Authorization": f"Bearer {key}"} if key else {}
