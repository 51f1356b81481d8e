"""`headrace bench quality`: does config B say the same as config A, and as transformers?"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headrace_engine.cli import errors, hush_progress, plain_errors
from headrace_engine.errors import SettingsError

if TYPE_CHECKING:
    import torch

    from headrace_engine.quality.run import QualityPlan


def bench_quality(
    model: Annotated[str, typer.Argument(help="Folder, .gguf file, file:// address, or hub id.")],
    *,
    a: Annotated[str, typer.Option("--a", help="Knobs of the base: knob=value,… Default: the defaults.")] = "",
    b: Annotated[
        str | None,
        typer.Option("--b", help="Knobs of the candidate; num_blocks=N: so few KV blocks that some are preempted."),
    ] = None,
    reference: Annotated[str | None, typer.Option(help="transformers: compare with transformers itself too.")] = None,
    reference_dtype: Annotated[str | None, typer.Option(help="Number format of the reference. Default: A's.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Texts in flight at a time.")] = 8,
    prompts: Annotated[str, typer.Option(help='JSON lines with "text" and perhaps "id", or built-in.')] = "built-in",
    text_tokens: Annotated[int, typer.Option(min=4, help="Cut texts to this many tokens.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=1, help="Greedy tokens for each text.")] = 32,
    margin: Annotated[
        float, typer.Option(help="Most that B may lose, nats a token: 0.01 is 1 % of perplexity.")
    ] = 0.01,
    min_agreement: Annotated[
        float, typer.Option(min=0, max=1, help="Least share of texts with equal greedy outputs, ties aside.")
    ] = 0.8,
    confidence: Annotated[float, typer.Option(help="Of the intervals, between 0.5 and 1.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Decides the order in which the texts arrive.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of the model. Default: all cores but one.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Compare what two configs say: greedy outputs, and likelihood of forced text.

    Exit code: 0 NonInferior, 3 Inferior, 4 Inconclusive, 2 for a wrong flag.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import torch  # noqa: PLC0415

    from headrace_engine import banner  # noqa: PLC0415
    from headrace_engine import device as devices  # noqa: PLC0415
    from headrace_engine.quality import report  # noqa: PLC0415
    from headrace_engine.quality.run import run  # noqa: PLC0415
    from headrace_engine.quality.verdict import EXIT_CODES  # noqa: PLC0415

    with plain_errors():
        hush_progress()
        torch.set_num_threads(threads or devices.default_threads())
        plan = make_plan(
            model, a=a, b=b, reference=reference, reference_dtype=reference_dtype, concurrency=concurrency,
            prompts=prompts, text_tokens=text_tokens, output_tokens=output_tokens, margin=margin,
            min_agreement=min_agreement, confidence=confidence, seed=seed, device=device,
        )  # fmt: skip
        with _Bars() as bars:
            result = run(plan, bars)
    if json:
        banner.print_json(report.as_dict(plan, result, _machine(plan.device)))
    else:
        Console().print(report.tables(plan, result))
    raise typer.Exit(EXIT_CODES[result.decision.verdict])


def make_plan(
    model: str, *, a: str, b: str | None, reference: str | None, reference_dtype: str | None, concurrency: int,
    prompts: str, text_tokens: int, output_tokens: int, margin: float, min_agreement: float, confidence: float,
    seed: int, device: str,
) -> QualityPlan:  # fmt: skip
    """Check the flags. Raises `SettingsError`."""
    from headrace_engine import device as devices  # noqa: PLC0415
    from headrace_engine.quality import sides  # noqa: PLC0415
    from headrace_engine.quality.run import QualityPlan  # noqa: PLC0415
    from headrace_engine.quality.texts import read_texts  # noqa: PLC0415
    from headrace_engine.quality.verdict import VerdictRules  # noqa: PLC0415

    if b is None and reference is None:
        raise SettingsError("there is nothing to compare A with: give --b KNOBS, or --reference transformers, or both")
    if not margin > 0:
        raise SettingsError(f"--margin {margin:g}: must be more than 0 nats a token, such as 0.01")
    if not 0.5 <= confidence < 1:
        raise SettingsError(f"--confidence {confidence:g}: must be at least 0.5 and less than 1, such as 0.95")
    where = devices.pick_device(device)
    specs = [sides.parse("A", a, device=where.type)]
    if b is not None:
        specs.append(sides.parse("B", b, device=where.type))
    return QualityPlan(
        model=model,
        specs=tuple(specs),
        reference=_reference(reference, reference_dtype, sides.dtype(specs[0], where)),
        texts=read_texts(prompts),
        text_tokens=text_tokens,
        output_tokens=output_tokens,
        concurrency=concurrency,
        seed=seed,
        rules=VerdictRules(margin=margin, least_agreement=min_agreement, confidence=confidence),
        device=where,
    )


def _reference(name: str | None, dtype: str | None, default: torch.dtype) -> torch.dtype | None:
    from headrace_engine import device as devices  # noqa: PLC0415
    from headrace_engine.quality.run import REFERENCE  # noqa: PLC0415

    if name is None:
        if dtype is not None:
            raise SettingsError(f"--reference-dtype {dtype}: needs --reference {REFERENCE}")
        return None
    if name != REFERENCE:
        raise SettingsError(f"--reference {name}: only {REFERENCE} is known")
    if dtype is not None and dtype not in devices.DTYPES:
        raise SettingsError(f"--reference-dtype {dtype}: must be one of {', '.join(devices.DTYPES)}")
    return default if dtype is None else devices.DTYPES[dtype]


def _machine(device: torch.device) -> dict[str, Any]:
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    from headrace_engine import device as devices  # noqa: PLC0415

    return {
        "device": device.type,
        "device_name": devices.device_name(device),
        "cpu_features": list(devices.cpu_features()),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


class _Bars:
    """Progress on standard error, one bar for each side."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(),
            console=errors,
        )  # fmt: skip

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, what: str, total: int) -> Callable[[], None]:
        task = self._progress.add_task(what.replace("[", r"\["), total=total)
        return lambda: self._progress.advance(task)
