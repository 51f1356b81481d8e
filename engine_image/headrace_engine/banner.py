"""Output for people: the start-up banner and the table of step times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from headrace_engine import device as devices
from headrace_engine.engine import Engine
from headrace_engine.settings import ServerSettings


def startup(engine: Engine, settings: ServerSettings) -> Panel:
    """A panel with model, device, context, sampling, knobs and addresses."""
    config, model = engine.config, engine.model
    url = _url(settings, settings.port)
    pretend = " (pretend GPU)" if devices.pretends_gpu() else ""
    cached = (engine.runner.pool.num_blocks - 1) * config.block_size
    where = f"{devices.device_name(model.device)}{pretend}"
    rows = {
        "model": f"{settings.served_name}  ({model.architecture}, {model.num_parameters / 1e6:,.0f} M parameters)",
        "device": f"{where}, {devices.dtype_name(model.dtype)}, {settings.threads} threads",
        "attention": engine.runner.backend.name,
        "context": f"{engine.max_model_len:,} tokens per request, {cached:,} in the KV cache",
        "sampling": _sampling(engine),
        "knobs": _words({name: value for name, value in config.hot_values().items() if value is not None}),
        "serving": f"{url}/v1  (metrics at {url}/metrics)",
        "admin": _admin(settings),
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(f"[bold cyan]{name}[/]", value.replace("[", r"\["))
    return Panel(table, title="headrace is ready", border_style="green", expand=False)


def first_request(settings: ServerSettings) -> str:
    """A curl command on one line, so it can be copied without borders or line breaks."""
    body = json.dumps({"model": settings.served_name, "prompt": "The capital of France is", "max_tokens": 16})
    where = f"{_url(settings, settings.port)}/v1/completions"
    return f"curl {where} -H 'Content-Type: application/json' -d '{body}'"


def _sampling(engine: Engine) -> str:
    suggested = engine.sampling.differences
    return f"{_words(suggested)}  (the model's defaults; calls can override them)" if suggested else "OpenAI's defaults"


def _words(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _url(settings: ServerSettings, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{port}"


def _admin(settings: ServerSettings) -> str:
    where = f"{_url(settings, settings.admin_port)}/admin/config"
    if settings.admin_token is not None:
        return f"{where}  (with the token)"
    if settings.on_loopback:
        return f"{where}  (no token: loopback only)"
    return "off, since there is no token and the host is not loopback: set --admin-token-file or HEADRACE_ADMIN_TOKEN"


def step_times(result: dict[str, Any]) -> Table:
    """The calibration as a table: milliseconds and tokens/s of each step."""
    where = f"{result['device_name']}, {result['dtype']}, {result['threads']} threads"
    table = Table(title=f"Step times: {result['model']}, {where}, {result['attention_backend']} attention")
    for name in ("step", "milliseconds", "tokens/s"):
        table.add_column(name, justify="right" if name != "step" else "left")
    for kind in ("decode", "prefill"):
        for size, seconds in result[f"{kind}_step_seconds"].items():
            what = f"decode {size} sequences" if kind == "decode" else f"prefill {size} tokens"
            table.add_row(what, f"{seconds * 1e3:.1f}", f"{int(size) / seconds:,.0f}")
    return table


def print_json(value: dict[str, Any]) -> None:
    """Plain JSON on standard output, for programs."""
    Console(highlight=False, soft_wrap=True, markup=False).print(json.dumps(value, indent=2))
