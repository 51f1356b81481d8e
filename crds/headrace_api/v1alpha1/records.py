"""What a tuning Job writes down (ConfigMap RUN-records) and what the operator copies into the TuningRun's status.

The records are the truth: the Optuna study is rebuilt from them after a restart.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field

from headrace_api.base import DocEnum, Model, Timestamp
from headrace_api.v1alpha1.knobs import HotKnobs
from headrace_core.evidence.counts import Counts


class RunPhase(DocEnum):
    """Where a tuning run is."""

    PENDING = "Pending", "The run waits; the message says for what."
    PREPARING = "Preparing", "The trial pod and the tuning Job are starting."
    BASELINE = "Baseline", "The config in force is measured."
    SEARCHING = "Searching", "Trials are under way."
    VERIFYING = "Verifying", "Baseline and winner are compared in pairs of windows on fresh seeds."
    PROPOSED = "Proposed", "There is a proposal that is not applied (yet)."
    APPLYING = "Applying", "The proposal is being applied to the service."
    CHECKING = "Checking", "The service is measured under the proposal."
    COMPLETED = "Completed", "The run has ended; see the verdict and the condition Applied."
    FAILED = "Failed", "The run cannot continue; the message says why."

    @property
    def terminal(self) -> bool:
        """Whether the run has ended."""
        return self in (RunPhase.COMPLETED, RunPhase.FAILED)


class StudyVerdict(DocEnum):
    """What a study found."""

    IMPROVED = "Improved", "The winner is better than the baseline by more than minEffect, beyond its interval."
    KEEP_BASELINE = "KeepBaseline", "Nothing is better than the config in force."
    NO_FEASIBLE_CONFIG = "NoFeasibleConfig", "No config met the constraints, the baseline included."
    INCONCLUSIVE = "Inconclusive", "The interval includes a gain and no gain; more blocks or more load may settle it."
    ABSTAINED = "Abstained", "No valid measurement was possible; the message says why."


class TrialState(DocEnum):
    """How a trial ended. Infeasible and failed ones are data for the sampler, void ones are not."""

    COMPLETE = "Complete", "Measured, within the constraints."
    INFEASIBLE = "Infeasible", "Measured outside the constraints, or refused by the engine."
    FAILED = "Failed", "The engine crashed or stopped answering under this config."
    VOID = "Void", "The measurement is not valid: a restart, a missing series, or a load generator at its own limit."


class TimeWindow(Model):
    """A span of time that was measured."""

    start: Timestamp
    """Start."""
    end: Timestamp
    """End."""


class Measures(Model):
    """What one window showed. Latencies in seconds, rates per second; the rates may be rounded, the counts are not."""

    goodput: float | None = None
    """Requests per second that met the SLO."""
    throughput: float | None = None
    """Output tokens per second."""
    attainment: float | None = None
    """Share of requests that met the SLO, 0 to 1."""
    ttft_p95: float | None = None
    """95th percentile of time to first token, seconds."""
    itl_p95: float | None = None
    """95th percentile of inter-token latency, seconds."""
    itl_p99: float | None = None
    """99th percentile of inter-token latency, seconds, which shows stalls caused by long prompts."""
    e2e_p95: float | None = None
    """95th percentile of arrival to last token, seconds."""
    requests: float | None = None
    """Requests that finished in the window; in a trial, those that were planned."""
    good: float | None = None
    """Of those, requests that met the SLO."""
    seconds: float | None = None
    """Length of the window."""
    output_tokens: float | None = None
    """Output tokens of these requests; in a trial, including tokens after the last arrival."""

    def counts(self) -> Counts | None:
        """The window's counts; None if it was recorded without them."""
        if self.good is None or self.requests is None or self.seconds is None:
            return None
        tokens = self.output_tokens or 0.0
        return Counts(good=self.good, requests=self.requests, seconds=self.seconds, output_tokens=tokens)


class Candidate(Model):
    """A config and how it performed."""

    knobs: HotKnobs
    """Its hot knobs."""
    score: float | None = None
    """Value of the objective; larger is better."""
    attainment: float | None = None
    """Share of requests that met the SLO, 0 to 1."""


class Effect(Model):
    """Winner relative to baseline, as a ratio of scores with its confidence interval; 1 means no difference."""

    ratio: float
    """Estimate."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""


class Proposal(Model):
    """Knobs that the study proposes."""

    knobs: HotKnobs
    """Hot knobs to set."""


class TrialSummary(Model):
    """One ended trial, as the status shows it."""

    number: int = Field(ge=0)
    """Counts from 0."""
    state: TrialState
    """How it ended."""
    knobs: HotKnobs
    """What was tried."""
    score: float | None = None
    """Value of the objective."""
    attainment: float | None = None
    """Share of requests that met the SLO, 0 to 1."""
    reason: str = ""
    """Why it is infeasible, failed or void."""


class TrialRecord(TrialSummary):
    """One ended trial, with all that rebuilding the study needs. Key `trial-0007.json`."""

    seed: int = 0
    """Seed of its load."""
    window: TimeWindow | None = None
    """When it was measured."""
    measures: Measures | None = None
    """What the window showed."""
    baseline: Measures | None = None
    """What the interleaved baseline showed, if it was measured beside this trial."""
    constraints: dict[str, float] = Field(default_factory=dict)
    """Signed slack by constraint: above 0 is violated, as in Optuna."""

    def summary(self) -> TrialSummary:
        """The part that the status shows."""
        return TrialSummary.model_validate({name: getattr(self, name) for name in TrialSummary.model_fields})


class StudyRecord(Model):
    """The study as a whole. Key `study.json`."""

    phase: RunPhase
    """Phase that the Job is in."""
    message: str = ""
    """What it is doing, or why it ended as it did, in a sentence."""
    total: int | None = None
    """Trials planned."""
    baseline: Candidate | None = None
    """The config in force before."""
    best: Candidate | None = None
    """The best config so far."""
    effect: Effect | None = None
    """Effect that the verification measured."""
    verdict: StudyVerdict | None = None
    """Set when the study ends."""
    proposal: Proposal | None = None
    """Set when the verdict is Improved."""
    window: TimeWindow | None = None
    """Window measured last."""


class Half(Model):
    """One half of a verification window; halves show how noisy a window is in itself."""

    good: float
    """Requests that met the SLO."""
    requests: float
    """Requests."""
    tokens: float = 0.0
    """Output tokens."""
    seconds: float | None = None
    """Length; absent in older records."""

    @classmethod
    def of(cls, counts: Counts) -> Self:
        """One half from its counts."""
        return cls(
            good=counts.good, requests=counts.requests, tokens=counts.output_tokens, seconds=counts.seconds
        )  # fmt: skip


class VerificationRecord(Model):
    """One ended window of the verification. Key `verify-0003.json`; windows count from 0, two a block."""

    number: int = Field(ge=0)
    """Counts from 0."""
    winner: bool
    """True if the winner was measured, false if the baseline was."""
    knobs: HotKnobs
    """What was measured."""
    seed: int
    """Seed of its load; the two windows of a block share one."""
    state: TrialState
    """Complete, or why it does not count."""
    reason: str = ""
    """Why it does not count."""
    window: TimeWindow | None = None
    """When it was measured."""
    measures: Measures | None = None
    """What it showed."""
    halves: list[Half] = Field(default_factory=list)
    """The counts that the comparison uses."""
