"""TuningRun: one search of the hot knobs of one InferenceService under a stated load."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    JsonValue,
    Strict,
    model_validator,
)

from headrace_api.base import (
    ATOMIC_LIST,
    NAME_RULES,
    CustomResource,
    DocEnum,
    Duration,
    Model,
    Timestamp,
    cel,
    list_map,
    rules,
)
from headrace_api.names import API_VERSION, TUNING_RUN_KIND, TUNING_RUN_PLURAL
from headrace_api.quantity import parse_duration
from headrace_api.v1alpha1.conditions import Condition
from headrace_api.v1alpha1.records import (
    Candidate,
    Effect,
    Measures,
    Proposal,
    RunPhase,
    StudyVerdict,
    TrialSummary,
)
from headrace_api.v1alpha1.search import KnobRange
from headrace_api.v1alpha1.slo import SloSpec
from headrace_api.v1alpha1.workload import WorkloadSpec

MAX_TRIAL_LOG = 50


class Objective(StrEnum):
    """What the search maximises."""

    GOODPUT = "Goodput"
    THROUGHPUT = "Throughput"


class SamplerKind(StrEnum):
    """How the next config is chosen."""

    TPE = "TPE"
    RANDOM = "Random"
    GP = "GP"


class TargetKind(StrEnum):
    """Where configs are tried."""

    SHADOW = "Shadow"


class ApplyPolicy(StrEnum):
    """What happens to a proposal."""

    NEVER = "Never"
    PROPOSE = "Propose"
    AUTO = "Auto"


class RolloutPhase(DocEnum):
    """How far the rollout of a proposal has got."""

    MEASURING_BEFORE = "MeasuringBefore", "The service is measured under the old knobs."
    APPLYING = "Applying", "The engines are being changed."
    MEASURING_AFTER = "MeasuringAfter", "The service is measured under the new knobs."
    KEPT = "Kept", "The new knobs stay: they proved better, beyond the interval."
    ROLLED_BACK = "RolledBack", "The old knobs are back: the new ones did not prove better beyond the interval."
    FAILED = "Failed", "The rollout could not be finished; the message says why. The old knobs are in force."

    @property
    def terminal(self) -> bool:
        """Whether the rollout has ended."""
        return self in (RolloutPhase.KEPT, RolloutPhase.ROLLED_BACK, RolloutPhase.FAILED)


class ServiceRef(Model):
    """An InferenceService of the same namespace."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Its name."""


class SamplerSpec(Model):
    """How the next config is chosen."""

    kind: SamplerKind = SamplerKind.TPE
    """Sampler. Default: TPE."""
    seed: Annotated[int, Strict(), Field(ge=0, le=2**31 - 1)] = 0
    """Seed; the same seed and the same measures give the same trials. Default: 0."""


class BudgetSpec(Model):
    """When the search ends, whichever comes first."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel("has(self.trials) || has(self.duration)", "budget needs trials or duration, or both")
        )
    )

    trials: Annotated[int, Strict(), Field(ge=1, le=10_000)] | None = None
    """Number of trials."""
    duration: Duration | None = None
    """Time, such as 30m."""

    @property
    def seconds(self) -> float | None:
        """Duration in seconds, or None."""
        return None if self.duration is None else parse_duration(self.duration)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.trials is None and self.duration is None:
            raise ValueError("budget needs trials or duration, or both")
        return self


class VerificationSpec(Model):
    """How sure the study must be that the winner is better."""

    blocks: Annotated[int, Strict(), Field(ge=2, le=100)] = 4
    """Pairs of windows, baseline and winner, on fresh seeds. Default: 4."""
    min_effect: Annotated[float, Strict(), Field(ge=0, le=10)] = 0.05
    """Smallest gain that is worth a change: 0.05 is 5 %. Default: 0.05."""
    confidence: Annotated[float, Strict(), Field(gt=0.5, lt=1)] = 0.95
    """Confidence of the interval. Default: 0.95."""


_FIXED = ("serviceRef", "objective", "slo", "knobs", "sampler", "workload", "target", "verification")


def _fixed_rule(field: str) -> dict[str, JsonValue]:
    return cel(
        f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        f"{field} is immutable: trials under two specs cannot be compared; create a new TuningRun",
        path=f".{field}",
    )


class TuningRunSpec(Model):
    """What is searched. Only budget, apply and overridePinned may change later."""

    model_config = ConfigDict(json_schema_extra=rules(*(_fixed_rule(field) for field in _FIXED)))

    service_ref: ServiceRef
    """InferenceService that is tuned."""
    objective: Objective = Objective.GOODPUT
    """What is maximised: requests per second within the SLO, or output tokens per second subject to it.
    Default: Goodput."""
    slo: SloSpec | None = None
    """SLO of the search. Default: the service's."""
    knobs: list[KnobRange] = Field(
        min_length=1,
        max_length=16,
        json_schema_extra=list_map("name"),
    )
    """Knobs that are searched; each may appear once."""
    override_pinned: bool = False
    """Whether a proposal may override what the service's spec.engine.config pins. Default: false."""
    sampler: SamplerSpec = Field(default_factory=SamplerSpec)
    """How the next config is chosen."""
    budget: BudgetSpec = Field(default_factory=lambda: BudgetSpec(trials=20))
    """When the search ends. Default: after 20 trials."""
    workload: WorkloadSpec
    """The load under which configs are compared."""
    target: TargetKind = TargetKind.SHADOW
    """Where configs are tried: on a separate trial pod. Default: Shadow."""
    verification: VerificationSpec = Field(default_factory=VerificationSpec)
    """How sure the study must be that the winner is better."""
    apply: ApplyPolicy = ApplyPolicy.PROPOSE
    """What happens to a proposal. Default: Propose."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [item.name for item in self.knobs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"knobs names {', '.join(twice)} twice")
        return self


class TrialCounts(Model):
    """Counts of trials."""

    done: int = 0
    """Trials that have ended, in any state."""
    failed: int = 0
    """Of those, failed or void."""
    total: int | None = None
    """Planned."""
    progress: str = ""
    """For people: done/total."""

    @classmethod
    def of(cls, done: int, *, failed: int, total: int | None) -> Self:
        """Counts with `progress` filled in."""
        return cls(done=done, failed=failed, total=total, progress=f"{done}/{'?' if total is None else total}")


class RolloutPod(Model):
    """One pod whose engine was changed in place."""

    name: str
    """Pod."""
    uid: str
    """Its uid: a restarted pod keeps it, a new one does not."""
    started_at: Timestamp | None = None
    """When its engine started; unchanged by the rollout."""
    from_generation: int | None = None
    """Config generation before."""
    to_generation: int | None = None
    """Config generation after."""


class RolloutStatus(Model):
    """Rollout of the proposal to the service."""

    phase: RolloutPhase
    """Where it is."""
    started_at: Timestamp
    """When it began."""
    phase_started_at: Timestamp | None = None
    """When this phase began."""
    message: str = ""
    """Why, in a sentence."""
    before: Measures | None = None
    """The service under the old knobs."""
    after: Measures | None = None
    """The service under the new knobs."""
    pods: list[RolloutPod] = Field(default_factory=list, json_schema_extra=ATOMIC_LIST)
    """Pods that were changed."""


class TuningRunStatus(Model):
    """The observed state."""

    observed_generation: int | None = None
    """The metadata.generation that this status is about."""
    phase: RunPhase = RunPhase.PENDING
    """Where the run is."""
    message: str = ""
    """What it is doing, or why it ended as it did."""
    conditions: list[Condition] = Field(
        default_factory=list,
        json_schema_extra=list_map("type"),
    )
    """Conditions; docs/reasons.md explains their types and reasons."""
    trials: TrialCounts | None = None
    """Counts of trials."""
    baseline: Candidate | None = None
    """The config in force before."""
    best: Candidate | None = None
    """The best config so far."""
    effect: Effect | None = None
    """Winner relative to baseline."""
    verdict: StudyVerdict | None = None
    """What the study found."""
    proposal: Proposal | None = None
    """Knobs that it proposes."""
    trial_log: list[TrialSummary] = Field(default_factory=list, max_length=MAX_TRIAL_LOG, json_schema_extra=ATOMIC_LIST)
    """The last 50 trials."""
    rollout: RolloutStatus | None = None
    """Rollout of the proposal to the service."""


class TuningRun(CustomResource):
    """A search of the hot knobs of an InferenceService, under load, with a verdict."""

    model_config = ConfigDict(title=TUNING_RUN_KIND, json_schema_extra=NAME_RULES)
    KIND: ClassVar[str] = TUNING_RUN_KIND
    PLURAL: ClassVar[str] = TUNING_RUN_PLURAL

    api_version: Literal["headrace.dev/v1alpha1"] = API_VERSION
    kind: Literal["TuningRun"] = TUNING_RUN_KIND
    spec: TuningRunSpec
    """What is searched."""
    status: TuningRunStatus = Field(default_factory=TuningRunStatus)
    """The observed state."""
