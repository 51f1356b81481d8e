"""Commands: `serve`, `model demo`, `bench engine`. torch is imported late; knob flags come from the knob table."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from headrace_api.engine_exit import TERMINATION_LOG, EngineExit
from headrace_core.knobs.table import KNOBS, Knob, KnobKind, KnobValue
from headrace_engine.errors import EngineError, SettingsError
from headrace_engine.model import demo as demo_model
from headrace_engine.model.demo import ensure_demo_model

if TYPE_CHECKING:
    from headrace_engine.model.weights import WeightSource
    from headrace_engine.settings import ServerSettings

ALIASES = {"prefill_chunk_size": ("--max-chunk-size",)}
TYPES: Mapping[KnobKind, type] = {KnobKind.INT: int, KnobKind.FLOAT: float, KnobKind.BOOL: bool, KnobKind.CHOICE: str}
errors = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Print an `EngineError` as one line and exit with 2. In a pod, leave its kind for the operator."""
    try:
        yield
    except EngineError as error:
        write_termination_log(error)
        errors.print(f"[bold red]error:[/] {str(error).replace('[', chr(92) + '[')}")
        raise typer.Exit(2) from error


def write_termination_log(error: EngineError, path: Path = Path(TERMINATION_LOG)) -> None:
    """Tell the kubelet why the engine gives up. Outside a pod there is no such file, and nothing is written."""
    with suppress(OSError):
        if path.is_file():
            path.write_text(EngineExit(error.exit_kind, str(error)).to_text(), encoding="utf-8", errors="replace")


def _knob_parameter(knob: Knob) -> inspect.Parameter:
    flags = (knob.flag, *ALIASES.get(knob.name, ()))
    if knob.kind is KnobKind.BOOL:
        flags = (f"{knob.flag}/--no-{knob.flag[2:]}",)
    text = knob.doc if knob.default is None else f"{knob.doc} Default: {knob.default}."
    if knob.choices:
        text += f" One of {', '.join(knob.choices)}."
    panel = f"Knobs ({knob.klass})"
    kind: Any = TYPES[knob.kind]
    annotation: Any = Annotated[kind | None, typer.Option(*flags, help=text, rich_help_panel=panel)]
    return inspect.Parameter(knob.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def with_knob_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace `**knobs` in the signature of `command` with one option for each knob in the table."""
    signature = inspect.signature(command, eval_str=True)
    own = [item for item in signature.parameters.values() if item.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [*own, *(_knob_parameter(knob) for knob in KNOBS)]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    return command


ApiKeyFile = Annotated[
    Path | None, typer.Option(help="File with API keys, one per line as key or name:key; read again when it changes.")
]
ToolCallParser = Annotated[
    str, typer.Option(help="Format of the model's tool calls: auto (from its template), hermes, llama3_json, none.")
]
ChatTemplate = Annotated[Path | None, typer.Option(help="Jinja file to use instead of the model's chat template.")]
GenerationConfig = Annotated[
    str,
    typer.Option(help="auto: calls default to the sampling in the model's generation_config.json. none: ignore it."),
]
AllowedOrigins = Annotated[
    str | None,
    typer.Option(help="Origins of web pages that may call from a browser, separated by commas, or *. Default: none."),
]
Recording = Annotated[
    Path | None, typer.Option(help="File to record scheduler calls in, for `headrace sim replay`. Contains token ids.")
]


@with_knob_flags
def serve(
    model: Annotated[str, typer.Argument(help="Folder, .gguf file, file:// URL, or hub id.")],
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Serving port; 0 picks a free one and logs it.")] = 8000,
    admin_port: Annotated[int | None, typer.Option(help="Admin port. Default: the serving port plus 1.")] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="Model name in the API. Default: the folder's name.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="engine.json with revision, config, ceilings, slo.")] = None,
    scheduler_max_num_seqs: Annotated[
        int | None, typer.Option(help="Active sequence cap; --max-num-seqs is then its ceiling.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads of the model. Default: all cores but one.")] = None,
    admin_token_file: Annotated[Path | None, typer.Option(help="File with the admin token.")] = None,
    api_key_file: ApiKeyFile = None,
    access_log: Annotated[bool, typer.Option(help="Log one line per call, without prompts and outputs.")] = True,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Add request bodies and outputs to the access log.")
    ] = False,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that running requests have to finish after SIGTERM.")
    ] = 30.0,
    log_format: Annotated[str, typer.Option(help="auto (rich on a terminal, else json), rich or json.")] = "auto",
    tool_call_parser: ToolCallParser = "auto",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    chat_template: ChatTemplate = None,
    generation_config: GenerationConfig = "auto",
    allowed_origins: AllowedOrigins = None,
    record: Recording = None,
    **knobs: KnobValue,
) -> None:
    """Serve a model over the OpenAI API."""
    with plain_errors():
        from headrace_engine import settings as parts  # noqa: PLC0415
        from headrace_engine.model.weights import find_source  # noqa: PLC0415

        source = find_source(model, revision=revision, chat_template=chat_template)
        settings = _settings(
            source, knobs, host=host, port=port, admin_port=admin_port, served_name=served_model_name, file=config,
            active_num_seqs=scheduler_max_num_seqs, device=device, threads=threads, token_file=admin_token_file,
            drain_timeout=drain_timeout, log_format=log_format, key_file=api_key_file,
        )  # fmt: skip
        about: dict[str, Any] = {
            "access_log": access_log,
            "log_prompts": log_prompts,
            "tool_call_parser": parts.one_of(parts.TOOL_CALL_PARSERS, "--tool-call-parser", tool_call_parser),
            "record": record,
            "generation_config": parts.one_of(parts.GENERATION_CONFIGS, "--generation-config", generation_config),
            "allowed_origins": parts.origins_of(allowed_origins),
        }
        _run_server(replace(settings, **about))


def _settings(
    source: WeightSource, knobs: Mapping[str, KnobValue], *, host: str, port: int, admin_port: int | None,
    served_name: str | None, file: Path | None, active_num_seqs: int | None, device: str, threads: int | None,
    token_file: Path | None, drain_timeout: float, log_format: str, key_file: Path | None,
) -> ServerSettings:  # fmt: skip
    from headrace_engine import device as devices  # noqa: PLC0415
    from headrace_engine import settings as parts  # noqa: PLC0415
    from headrace_engine.http import auth  # noqa: PLC0415

    parts.one_of(("auto", "rich", "json"), "--log-format", log_format)
    if threads is not None and threads < 1:
        raise SettingsError(f"--threads {threads}: must be at least 1")
    if not drain_timeout >= 0:
        raise SettingsError(f"--drain-timeout {drain_timeout}: must be 0 or more seconds")
    engine_file = parts.read_engine_file(file)
    flags = {name: value for name, value in knobs.items() if value is not None}
    return parts.ServerSettings(
        source=source,
        config=parts.engine_config(
            engine_file, flags, active_num_seqs=active_num_seqs, device=devices.pick_device(device).type
        ),
        device=device,
        host=host,
        port=port,
        admin_port=(port + 1 if port else 0) if admin_port is None else admin_port,
        served_name=served_name or source.name,
        revision=engine_file.revision,
        slo=engine_file.slo,
        admin_token=parts.admin_token(token_file),
        api_keys=auth.keys_file(key_file),
        drain_timeout=drain_timeout,
        threads=threads or devices.default_threads(),
        json_logs=log_format == "json" or (log_format == "auto" and not sys.stderr.isatty()),
    )


def _run_server(settings: ServerSettings) -> None:
    import logging  # noqa: PLC0415

    from headrace_engine import banner, logs, server  # noqa: PLC0415

    logs.configure(as_json=settings.json_logs, access_log=settings.access_log)
    if settings.json_logs:
        hush_progress()
    log = logging.getLogger("headrace_engine")
    log.info("loading %s", settings.source.where)
    if settings.admin_token is None and not settings.on_loopback:
        log.warning(
            "admin routes answer 403, since there is no token and --host is not loopback: set --admin-token-file or "
            "HEADRACE_ADMIN_TOKEN"
        )

    def ready(engine: Any, settings: ServerSettings) -> None:
        if not settings.json_logs:
            errors.print(banner.startup(engine, settings))
            errors.print(banner.first_request(settings), markup=False, soft_wrap=True)
        about = {
            "model": settings.served_name, "dtype": str(engine.model.dtype), "device": str(engine.model.device),
            "attention_backend": engine.runner.backend.name, "sampling": engine.sampling.differences,
        }  # fmt: skip
        log.info(
            "ready", extra=about | {"host": settings.host, "port": settings.port, "admin_port": settings.admin_port}
        )

    server.serve(settings, on_ready=ready)


def hush_progress() -> None:
    """Turn off transformers' progress bars."""
    from transformers.utils import logging as transformers_logging  # noqa: PLC0415

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


model_app = typer.Typer(no_args_is_help=True, add_completion=False)


@model_app.callback()
def model_root() -> None:
    """Get a demo model."""


@model_app.command("demo")
def model_demo(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(demo_model.MODELS)}.")] = demo_model.DEFAULT,
) -> None:
    """Build a demo model in the cache, unless it is there, and print its folder."""
    with plain_errors():
        folder = ensure_demo_model(lambda message: errors.print(f"[cyan]demo model[/] {message}"), name)
    typer.echo(folder)


@model_app.command("list")
def model_list() -> None:
    """Show the demo models and whether they are in the cache."""
    table = Table("name", "download", "size", Column("folder", overflow="fold"), "about")
    for name, model in demo_model.MODELS.items():
        folder = demo_model.demo_model_folder(name)
        place = str(folder) if demo_model.has_demo_model(name) else f"not built yet: headrace model demo {name}"
        table.add_row(name, f"{model.download} MB", f"{model.size} MB", place, model.about)
    Console().print(table)


def bench_engine(
    model: Annotated[str, typer.Argument(help="Folder, .gguf file, file:// URL, or hub id.")],
    *,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    block_size: Annotated[int, typer.Option(help="Tokens in one KV block.")] = 16,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the model. Default: all cores but one.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Time single steps of a model on this machine."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import torch  # noqa: PLC0415

    from headrace_engine import banner, calibrate, settings  # noqa: PLC0415
    from headrace_engine import device as devices  # noqa: PLC0415

    with plain_errors():
        hush_progress()
        torch.set_num_threads(threads or devices.default_threads())
        chosen = devices.pick_device(device)
        flags: dict[str, KnobValue] = {"dtype": dtype, "block_size": block_size}
        empty = settings.read_engine_file(None)
        config = settings.engine_config(empty, flags, active_num_seqs=None, device=chosen.type)

        def report(case: calibrate.Case, seconds: float) -> None:
            errors.print(f"[dim]{case.kind} {case.size}: {seconds * 1e3:.1f} ms[/]")

        result = calibrate.calibrate(model, config, device=chosen, report=report)
    if json:
        banner.print_json(result)
    else:
        Console().print(banner.step_times(result))
