"""`headrace bench quality`: does config B give the same output as config A, and as transformers?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from headrace_bench.errors import BenchError
from headrace_bench.quality import report
from headrace_bench.quality.observe import observe
from headrace_bench.quality.run import QualityPlan, evaluate
from headrace_bench.quality.specs import parse
from headrace_bench.quality.texts import read_texts
from headrace_bench.quality.verdict import EXIT_CODES, VerdictRules
from headrace_client.terminal import console, plain_errors, run_async, write_json
from headrace_core.observations import Number, ObservationRequest

REFERENCE = "transformers"
SIDE = Column(max_width=36, no_wrap=True, overflow="ellipsis")


def bench_quality(
    model: Annotated[str, typer.Argument(help="Folder, .gguf file, file:// address, or hub id.")],
    *,
    a: Annotated[str, typer.Option("--a", help="Knobs of the base: knob=value,… Default: the defaults.")] = "",
    b: Annotated[
        str | None,
        typer.Option(
            "--b", help="Knobs of the candidate; num_blocks=N: a number of KV blocks small enough to force preemptions."
        ),
    ] = None,
    reference: Annotated[str | None, typer.Option(help="transformers: also compare with transformers itself.")] = None,
    reference_dtype: Annotated[str | None, typer.Option(help="Number format of the reference. Default: A's.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Texts in flight at a time.")] = 8,
    prompts: Annotated[
        str, typer.Option(help='File of JSON lines with "text" and optionally "id", or built-in.')
    ] = "built-in",
    text_tokens: Annotated[int, typer.Option(min=4, help="Cut texts to this many tokens.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=1, help="Greedy tokens for each text.")] = 32,
    margin: Annotated[
        float, typer.Option(help="Most that B may lose, in nats a token: 0.01 is 1 % of perplexity.")
    ] = 0.01,
    min_agreement: Annotated[
        float, typer.Option(min=0, max=1, help="Least share of texts with equal greedy outputs, ties aside.")
    ] = 0.8,
    confidence: Annotated[float, typer.Option(help="Confidence level of the intervals, between 0.5 and 1.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Decides the order in which the texts arrive.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of the model. Default: all cores but one.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Compare the outputs of two configs: greedy outputs, and likelihood of forced text.

    Exit code: 0 NonInferior, 3 Inferior, 4 Inconclusive, 2 for a wrong flag.
    """
    with plain_errors():
        plan = make_plan(
            model, a=a, b=b, reference=reference, reference_dtype=reference_dtype, concurrency=concurrency,
            prompts=prompts, text_tokens=text_tokens, output_tokens=output_tokens, margin=margin,
            min_agreement=min_agreement, confidence=confidence, seed=seed, device=device, threads=threads,
        )  # fmt: skip
    with _Bars() as bars:
        seen = run_async(observe(plan.request, bars))
    result = evaluate(plan, seen)
    if json:
        write_json("-", report.as_dict(plan, result))
    else:
        Console().print(report.tables(plan, result))
    raise typer.Exit(EXIT_CODES[result.decision.verdict])


def make_plan(
    model: str, *, a: str, b: str | None, reference: str | None, reference_dtype: str | None, concurrency: int,
    prompts: str, text_tokens: int, output_tokens: int, margin: float, min_agreement: float, confidence: float,
    seed: int, device: str, threads: int | None,
) -> QualityPlan:  # fmt: skip
    """Check the flags that can be checked without the model. Raises `BenchError`."""
    if b is None and reference is None:
        raise BenchError("there is nothing to compare A with: give --b KNOBS, or --reference transformers, or both")
    if not margin > 0:
        raise BenchError(f"--margin {margin:g}: must be more than 0 nats a token, such as 0.01")
    if not 0.5 <= confidence < 1:
        raise BenchError(f"--confidence {confidence:g}: must be at least 0.5 and less than 1, such as 0.95")
    sides = [parse("A", a)]
    if b is not None:
        sides.append(parse("B", b))
    request = ObservationRequest(
        model=model,
        sides=tuple(sides),
        reference=reference is not None,
        reference_dtype=_reference_dtype(reference, reference_dtype),
        texts=read_texts(prompts),
        text_tokens=text_tokens,
        output_tokens=output_tokens,
        concurrency=concurrency,
        seed=seed,
        device=device,
        threads=threads,
    )
    rules = VerdictRules(margin=margin, least_agreement=min_agreement, confidence=confidence)
    return QualityPlan(request=request, rules=rules)


def _reference_dtype(name: str | None, dtype: str | None) -> Number | None:
    if name is None and dtype is not None:
        raise BenchError(f"--reference-dtype {dtype}: needs --reference {REFERENCE}")
    if name not in (None, REFERENCE):
        raise BenchError(f"--reference {name}: only {REFERENCE} is known")
    if dtype is not None and dtype not in list(Number):
        raise BenchError(f"--reference-dtype {dtype}: must be one of {', '.join(Number)}")
    return None if dtype is None else Number(dtype)


class _Bars:
    """Progress on standard error, one bar for each side."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", table_column=SIDE), BarColumn(bar_width=24), MofNCompleteColumn(),
            TimeElapsedColumn(), console=console,
        )  # fmt: skip

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, what: str, total: int) -> Callable[[], None]:
        task = self._progress.add_task(what.replace("[", r"\["), total=total)
        return lambda: self._progress.advance(task)
