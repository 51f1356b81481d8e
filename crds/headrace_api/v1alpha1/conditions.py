"""Conditions of both resources: types and reasons as documented enums (docs/reasons.md is generated from them)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pydantic import Field

from headrace_api.base import DocEnum, Model, Timestamp


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(DocEnum):
    """What a condition is about. All are positive: True is the good state, except for Progressing, which is neutral."""

    # InferenceService
    SPEC_VALID = "SpecValid", "The spec passed every check, including those between fields."
    ENGINE_READY = "EngineReady", "As many engines as asked for are up, with the wanted config in force."
    READY = "Ready", "A token was generated through the Service, and the engines are ready."
    PROGRESSING = "Progressing", "The operator is making the cluster match the spec. False: nothing is in progress."
    # TuningRun
    TRIAL_READY = "TrialReady", "The trial pod is up and its admin port answers."
    COMPLETE = "Complete", "The study has ended with a verdict."
    APPLIED = "Applied", "The proposal is in force on the service."


class Reason(DocEnum):
    """Why a condition has its status. CamelCase, part of the API: people and alerts match on them."""

    # SpecValid
    VALID = "Valid", "Every check passed."
    INVALID_SPEC = "InvalidSpec", "The spec cannot be read; the message names the field. Correct it and apply again."
    INVALID_CONFIG = (
        "InvalidConfig",
        "spec.engine.config has values that contradict each other; the message names each. Correct it and apply again.",
    )
    UNSUPPORTED_MODEL = (
        "UnsupportedModel",
        "spec.model.uri names a source that this release cannot serve from; the message says which it can.",
    )
    PINNED_KNOB = (
        "PinnedKnob",
        "The run names a knob that the service's spec pins. Remove it from spec.engine.config, or set overridePinned.",
    )
    SERVICE_NOT_FOUND = "ServiceNotFound", "The InferenceService in spec.serviceRef does not exist in this namespace."
    NO_SLO = "NoSLO", "Neither the run nor its service has an SLO, and the objective needs one. Set spec.slo."

    # EngineReady, TrialReady
    ENGINES_READY = "EnginesReady", "All engines are ready with the wanted config."
    SCALED_TO_ZERO = "ScaledToZero", "spec.replicas is 0: nothing should run."
    PODS_PENDING = "PodsPending", "Pods were created and have not started yet."
    UNSCHEDULABLE = (
        "Unschedulable",
        "No node has room for a pod; the message is the scheduler's. Often no GPU is free.",
    )
    IMAGE_PULL_FAILED = "ImagePullFailed", "A node cannot pull the engine's image; check spec.engine.image."
    MODEL_NOT_FOUND = (
        "ModelNotFound",
        "The engine finds no model at spec.model.uri; the message carries the path. Correct it and apply again.",
    )
    OUT_OF_MEMORY = "OutOfMemory", "The kernel ended the engine at its memory limit. Raise spec.resources.memory."
    NAME_TAKEN = "NameTaken", "Another owner's object already has the name of a child; the message names it."
    ENGINE_STARTING = "EngineStarting", "The engine process runs and is loading the model."
    CRASH_LOOPING = "CrashLooping", "The engine keeps exiting; the message says why it exited. See the pod's log."
    ENGINE_UNREACHABLE = "EngineUnreachable", "A ready pod's admin port does not answer."
    CONFIG_PENDING = "ConfigPending", "Some engines do not have the wanted hot knobs in force yet."
    CONFIG_REFUSED = "ConfigRefused", "An engine refused the hot knobs; the message carries its reason."

    # Ready
    SERVING = "Serving", "The service answers."
    SPEC_NOT_VALID = "SpecNotValid", "See SpecValid. What was running before keeps running."
    ENGINE_NOT_READY = "EngineNotReady", "See EngineReady."
    NOT_ROUTABLE = "NotRoutable", "The engines are ready, but a request through the Service got no token."

    # Progressing
    UP_TO_DATE = "UpToDate", "The cluster matches the spec."
    ROLLING_OUT = "RollingOut", "Pods of a new revision are starting."
    APPLYING_CONFIG = "ApplyingConfig", "Hot knobs are being changed on running engines."
    DEADLINE_EXCEEDED = "DeadlineExceeded", "The rollout made no progress within its deadline. See EngineReady."
    WAITING_FOR_SPEC = "WaitingForSpec", "Nothing can be done until the spec is valid."
    API_ERROR = "APIError", "The API server refused or failed a write; the message is the server's. It is retried."

    # Complete
    PENDING = "Pending", "The run has not begun; the message says what it waits for."
    RUNNING = "Running", "The study is under way."
    FINISHED = "Finished", "The study ended; see status.verdict."
    JOB_FAILED = "JobFailed", "The tuning Job failed for good; the message says why. See the log of the Job's pod."

    # Applied
    NOT_DECIDED = "NotDecided", "The study has no proposal yet."
    NOTHING_TO_APPLY = "NothingToApply", "The verdict is not Improved: the service keeps its config."
    NOT_REQUESTED = "NotRequested", "spec.apply is Never."
    AWAITING_APPROVAL = "AwaitingApproval", "spec.apply is Propose: copy status.proposal, or set apply: Auto."
    APPLYING = "Applying", "The proposal is being applied and compared with before."
    KEPT = "Kept", "The proposal is in force: it proved better, beyond the interval."
    ROLLED_BACK = "RolledBack", "The proposal did not prove better beyond the interval; the old knobs are back."
    APPLY_FAILED = "ApplyFailed", "The proposal could not be applied; the message says why. The old knobs are in force."


_ENGINE_REASONS = (
    Reason.ENGINES_READY,
    Reason.SCALED_TO_ZERO,
    Reason.PODS_PENDING,
    Reason.UNSCHEDULABLE,
    Reason.IMAGE_PULL_FAILED,
    Reason.MODEL_NOT_FOUND,
    Reason.OUT_OF_MEMORY,
    Reason.NAME_TAKEN,
    Reason.ENGINE_STARTING,
    Reason.CRASH_LOOPING,
    Reason.ENGINE_UNREACHABLE,
    Reason.CONFIG_PENDING,
    Reason.CONFIG_REFUSED,
)

SERVICE_CONDITIONS: dict[ConditionType, tuple[Reason, ...]] = {
    ConditionType.SPEC_VALID: (Reason.VALID, Reason.INVALID_SPEC, Reason.INVALID_CONFIG, Reason.UNSUPPORTED_MODEL),
    ConditionType.ENGINE_READY: _ENGINE_REASONS,
    ConditionType.READY: (
        Reason.SERVING,
        Reason.SPEC_NOT_VALID,
        Reason.ENGINE_NOT_READY,
        Reason.NOT_ROUTABLE,
        *_ENGINE_REASONS[1:],  # where the engine's own reason says more than "not ready"
    ),
    ConditionType.PROGRESSING: (
        Reason.UP_TO_DATE,
        Reason.ROLLING_OUT,
        Reason.APPLYING_CONFIG,
        Reason.DEADLINE_EXCEEDED,
        Reason.WAITING_FOR_SPEC,
        Reason.API_ERROR,
    ),
}
RUN_CONDITIONS: dict[ConditionType, tuple[Reason, ...]] = {
    ConditionType.SPEC_VALID: (
        Reason.VALID,
        Reason.INVALID_SPEC,
        Reason.INVALID_CONFIG,
        Reason.SERVICE_NOT_FOUND,
        Reason.PINNED_KNOB,
        Reason.NO_SLO,
    ),
    ConditionType.TRIAL_READY: (
        *SERVICE_CONDITIONS[ConditionType.ENGINE_READY],
        Reason.PENDING,
        Reason.FINISHED,
    ),
    ConditionType.COMPLETE: (Reason.PENDING, Reason.RUNNING, Reason.FINISHED, Reason.JOB_FAILED, Reason.API_ERROR),
    ConditionType.APPLIED: (
        Reason.NOT_DECIDED,
        Reason.NOTHING_TO_APPLY,
        Reason.NOT_REQUESTED,
        Reason.AWAITING_APPROVAL,
        Reason.APPLYING,
        Reason.KEPT,
        Reason.ROLLED_BACK,
        Reason.APPLY_FAILED,
    ),
}


class Condition(Model):
    """metav1.Condition. `type` and `reason` are plain strings when read: a newer release may know more of them."""

    type: str = Field(min_length=1, max_length=316)
    """What the condition is about."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: str = Field(min_length=1, max_length=1024)
    """Why, as one CamelCase word; docs/reasons.md lists them."""
    message: str = Field(default="", max_length=32768)
    """Why, in a sentence."""
    observed_generation: int = Field(default=0, ge=0)
    """The metadata.generation that this condition was judged on."""
    last_transition_time: Timestamp
    """When `status` last changed."""


def merge_conditions(old: Iterable[Condition], new: Iterable[Condition]) -> list[Condition]:
    """`new` in its order, with the old transition time where the status is the same; then what only `old` has."""
    before = {item.type: item for item in old}
    merged = []
    for item in new:
        previous = before.pop(item.type, None)
        if previous is not None and previous.status is item.status:
            item = item.model_copy(update={"last_transition_time": previous.last_transition_time})  # noqa: PLW2901
        merged.append(item)
    return merged + list(before.values())


def find_condition(conditions: Iterable[Condition], type_: ConditionType) -> Condition | None:
    """The condition of one type, or None."""
    return next((item for item in conditions if item.type == type_.value), None)
