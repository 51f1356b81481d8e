"""Prints a TuningRun's status as it changes: each phase, and each trial as it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace_local.demo.stages import DemoStage
from headrace_local.errors import LocalError

_DONE = ("Completed", "Failed")
_MARKS = {"Complete": "[green]•[/green]", "Infeasible": "[yellow]-[/yellow]"}


class Teller:
    """Remembers what it has printed, so that each event adds only what is new."""

    def __init__(self, stage: DemoStage) -> None:
        self._stage = stage
        self._phase = ""
        self._trials: set[int] = set()

    def tell(self, run: Mapping[str, Any]) -> dict[str, Any] | None:
        """Print what is new. Returns the run once it has ended, else None. Raises `LocalError` if it failed."""
        status = run.get("status", {})
        for trial in status.get("trialLog", []):
            if trial["number"] not in self._trials:
                self._trials.add(trial["number"])
                self._stage.say(trial_line(trial))
        phase = shown_phase(status)
        if phase != self._phase:
            self._phase = phase
            self._stage.say(f"[cyan]{phase}[/cyan] {status.get('message', '')}")
        if status.get("phase") == "Failed":
            raise LocalError("The TuningRun failed.", why=str(status.get("message", "")))
        return dict(run) if status.get("phase") in _DONE else None


def shown_phase(status: Mapping[str, Any]) -> str:
    """The phase, followed by the rollout's phase if there is a rollout."""
    rollout = (status.get("rollout") or {}).get("phase", "")
    phase = str(status.get("phase", "Pending"))
    return f"{phase}/{rollout}" if rollout else phase


def trial_line(trial: Mapping[str, Any]) -> str:
    """One ended trial: its knobs and its score, or why it has none."""
    knobs = ", ".join(f"{name}={value}" for name, value in trial["knobs"].items())
    mark = _MARKS.get(trial["state"], "[red]![/red]")
    score = "" if trial.get("score") is None else f"score {trial['score']:.3f} "
    kept = "" if trial.get("attainment") is None else f"SLO {trial['attainment']:.0%} "
    return f"{mark} trial {trial['number']}: {score}{kept}[dim]{knobs}[/dim] {trial.get('reason', '')}".rstrip()
