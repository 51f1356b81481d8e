"""`headrace tune`: the same study as the Job's, on an engine outside a cluster, with its records in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from rich.console import Console

from headrace_api.base import InvalidResource
from headrace_api.v1alpha1.records import StudyRecord
from headrace_api.v1alpha1.slo import LatencyTarget, SloSpec
from headrace_api.v1alpha1.tuningrun import TuningRun
from headrace_core.knobs.table import KnobValue
from headrace_tuner.connections import Addresses, Connections, connect
from headrace_tuner.errors import TrialVoid, TunerError
from headrace_tuner.records.store import FolderStore
from headrace_tuner.report.lines import trial_line, verdict_panel
from headrace_tuner.settings import study_plan
from headrace_tuner.study.runner import Setup, StudyRunner
from headrace_tuner.study.space import Space
from headrace_tuner.targets.base import KnobsRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class CliStudy:
    """One run of `headrace tune`: its arguments."""

    url: str
    spec: Path
    prometheus_url: str
    admin_url: str | None = None
    token: str = ""
    records: Path | None = None

    async def run(self, console: Console) -> StudyRecord:
        """Run the study and restore the engine's knobs, however it ends. Raises `TunerError`."""
        run = read_run(self.spec)
        folder = self.records or Path("tuning") / run.metadata.name
        addresses = Addresses(
            trial_url=self.url,
            admin_url=self.admin_url or next_port(self.url),
            prometheus_url=self.prometheus_url,
            token=self.token,
        )
        async with connect(addresses) as connections:
            setup = _setup(run, connections, folder, console)
            runner = StudyRunner(setup)
            console.print(f"engine {connections.endpoint.model} at {self.url}; records in {folder}")
            try:
                study = await runner.run()
            finally:
                await _restore(runner, connections, console)
        console.print(verdict_panel(study))
        if study.proposal is not None:
            console.print("The knobs were not applied. To apply them, PATCH /admin/config or restart with their flags.")
        return study


def _setup(run: TuningRun, connections: Connections, folder: Path, console: Console) -> Setup:
    slo = run.spec.slo or slo_of(connections.state.slo)
    return Setup(
        name=run.metadata.name or "tune",
        plan=study_plan(run.spec, slo, keep_load=False),
        space=Space.of(run.spec.knobs),
        sampler=run.spec.sampler,
        seed=run.spec.workload.seed,
        store=FolderStore(folder),
        engine=connections,
        meter=connections.meter(run.spec, slo),
        on_end=lambda record: console.print(trial_line(record), soft_wrap=True),
    )


async def _restore(runner: StudyRunner, connections: Connections, console: Console) -> None:
    baseline = runner.records.baseline
    if baseline is None:
        return
    known = baseline.knobs.values()
    knobs: Mapping[str, KnobValue] = {name: known.get(name) for name in runner.setup.space.names}
    try:
        await connections.target.apply(knobs, revision=connections.state.revision)
    except (TunerError, TrialVoid, KnobsRefused) as error:
        console.print(f"[yellow]the engine's knobs could not be put back: {error}[/]")


def read_run(path: Path) -> TuningRun:
    """The TuningRun in a YAML file. Raises `TunerError` naming file and field."""
    try:
        documents = [item for item in yaml.safe_load_all(path.read_text()) if item is not None]
    except OSError as error:
        raise TunerError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TunerError(f"{path}: is not YAML: {error}") from error
    runs: list[Any] = [item for item in documents if isinstance(item, dict) and item.get("kind") == TuningRun.KIND]
    if len(runs) != 1:
        raise TunerError(f"{path}: holds {len(runs)} TuningRuns; exactly one is needed")
    try:
        return TuningRun.parse(runs[0])
    except InvalidResource as error:
        raise TunerError(f"{path}: {error}") from error


def slo_of(engine: Mapping[str, float | None] | None) -> SloSpec:
    """The engine's SLO, used if the spec has none. Raises `TunerError` if the engine has none either."""
    values = engine or {}
    targets = {
        target: LatencyTarget(threshold=f"{round(seconds * 1000)}ms")
        for target in ("ttft", "itl", "tpot", "e2e")
        if (seconds := values.get(f"{target}_seconds")) is not None
    }
    if not targets:
        raise TunerError("there is no SLO: set spec.slo, and start the engine with the same one (slo in engine.json)")
    if "itl" in targets and values.get("itl_percentile") is not None:
        targets["itl"] = targets["itl"].model_copy(update={"percentile": values["itl_percentile"]})
    return SloSpec.model_validate(targets)


def next_port(url: str) -> str:
    """The admin port's address by convention: the serving port plus 1. Raises `TunerError`."""
    parts = urlsplit(url)
    if not parts.hostname or parts.scheme not in ("http", "https"):
        raise TunerError(f"{url!r} is not an address: write e.g. http://127.0.0.1:8000")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port + 1}"
