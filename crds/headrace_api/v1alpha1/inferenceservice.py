"""InferenceService: a model, the engine's knobs, and the SLO that it must meet."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, Strict

from headrace_api.base import (
    ATOMIC_LIST,
    NAME_RULES,
    CustomResource,
    Model,
    PreservedObject,
    Quantity,
    Timestamp,
    cel,
    list_map,
    rules,
)
from headrace_api.names import (
    API_VERSION,
    GPU_RESOURCE,
    INFERENCE_SERVICE_KIND,
    INFERENCE_SERVICE_PLURAL,
)
from headrace_api.v1alpha1.conditions import Condition
from headrace_api.v1alpha1.knobs import EngineKnobs
from headrace_api.v1alpha1.slo import SloSpec

Text = Annotated[str, Field(min_length=1, max_length=253)]


class EngineKind(StrEnum):
    """Engines that the operator can run."""

    HEADRACE = "Headrace"


_URI_PATTERN = "^(hf|pvc|s3|file)://.+"
_URI_RULE = "uri must start with hf://, pvc://, s3:// or file:// and name something after it"


def _model_uri(uri: str) -> str:
    if not re.fullmatch(_URI_PATTERN, uri):
        raise ValueError(f"{_URI_RULE}, got {uri!r}")
    return uri


class ModelSpec(Model):
    """Which model is served."""

    uri: Annotated[
        str,
        AfterValidator(_model_uri),
        Field(
            min_length=1,
            max_length=1024,
            json_schema_extra=rules(cel(f"self.matches('{_URI_PATTERN}')", _URI_RULE)),
        ),
    ]
    """Where the weights are: hf://OWNER/NAME, pvc://CLAIM/PATH, s3://BUCKET/PATH, file:///PATH in the pod."""
    name: Text | None = None
    """Name in the OpenAI API. Default: the name of the InferenceService."""
    revision: Text | None = None
    """Revision of an hf:// model: a branch, tag or commit. Default: the hub's default branch."""
    tokenizer: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Where the tokenizer is, if not beside the weights; same forms as uri."""


class EnvVar(Model):
    """One environment variable of the engine's container, as in a pod."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name."""
    value: Annotated[str, Field(max_length=32768)] | None = None
    """Value."""
    value_from: PreservedObject | None = None
    """Source of the value, as in a pod."""


# The same rules between knobs as in headrace_core.knobs.table; a contract test keeps the two in step.
_CONFIG_RULES = (
    cel(
        "!has(self.prefillChunkSize) || !has(self.maxNumBatchedTokens)"
        " || self.prefillChunkSize <= self.maxNumBatchedTokens"
        " || (has(self.enableChunkedPrefill) && !self.enableChunkedPrefill)",
        "prefillChunkSize must not exceed maxNumBatchedTokens: lower the chunk or raise the budget",
        path=".prefillChunkSize",
    ),
    cel(
        "!has(self.maxNumSeqs) || !has(self.maxNumBatchedTokens) || self.maxNumSeqs <= self.maxNumBatchedTokens",
        "maxNumBatchedTokens must be at least maxNumSeqs: every running sequence needs one token of the budget in each"
        " step; raise the budget or lower maxNumSeqs",
        path=".maxNumBatchedTokens",
    ),
)


class EngineSpec(Model):
    """The engine and its knobs."""

    kind: EngineKind = EngineKind.HEADRACE
    """Which engine. Default: Headrace."""
    image: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Image of the engine. Default: the operator's."""
    config: EngineKnobs = Field(default_factory=EngineKnobs, json_schema_extra=rules(*_CONFIG_RULES))
    """Pinned knobs. A knob that is not set here has its default, or the value that tuning found."""
    extra_args: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=64)] = Field(
        default_factory=list, json_schema_extra=ATOMIC_LIST
    )
    """Further arguments of the engine's command line."""
    env: Annotated[list[EnvVar], Field(max_length=128)] = Field(
        default_factory=list,
        json_schema_extra=list_map("name"),
    )
    """Further environment variables."""


class GpuSpec(Model):
    """GPUs of one replica."""

    count: Annotated[int, Strict(), Field(ge=0, le=64)] = 1
    """How many; 0 runs on the CPU. Default: 1."""
    type: Text = GPU_RESOURCE
    """Extended resource that the device plugin offers. Default: nvidia.com/gpu."""


class ResourcesSpec(Model):
    """Resources of one replica."""

    gpu: GpuSpec | None = None
    """GPUs. Default: none, the engine runs on the CPU."""
    cpu: Quantity | None = None
    """CPU request, such as 4 or 500m."""
    memory: Quantity | None = None
    """Memory request and limit, such as 16Gi."""


class TemplateSpec(Model):
    """Where pods may run."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: list[PreservedObject] = Field(default_factory=list, max_length=64, json_schema_extra=ATOMIC_LIST)
    """Tolerations, as in a pod."""
    affinity: PreservedObject | None = None
    """Affinity, as in a pod."""
    runtime_class_name: Text | None = None
    """Name of the RuntimeClass."""
    priority_class_name: Text | None = None
    """Name of the PriorityClass."""


class InferenceServiceSpec(Model):
    """The wanted state."""

    model: ModelSpec
    """Which model is served."""
    engine: EngineSpec = Field(default_factory=EngineSpec)
    """The engine and its knobs."""
    replicas: Annotated[int, Strict(), Field(ge=0, le=1000)] = Field(
        default=1, json_schema_extra={"x-headrace-frozen-default": True}
    )
    """How many pods. Default: 1."""
    resources: ResourcesSpec = Field(default_factory=ResourcesSpec)
    """Resources of one replica."""
    template: TemplateSpec = Field(default_factory=TemplateSpec)
    """Where pods may run."""
    slo: SloSpec | None = None
    """What the service promises; it drives tuning and verdicts. Default: none."""


class ServiceEndpoint(Model):
    """Where clients reach the service."""

    url: str
    """Base URL inside the cluster, without /v1."""


class TunedStatus(Model):
    """The proposal in force (a copy of ConfigMap NAME-tuned)."""

    tuning_run: str
    """TuningRun that found it."""
    knobs: EngineKnobs
    """Knobs that it sets."""
    override_pinned: bool = False
    """Whether it wins over what spec.engine.config pins."""
    applied_at: Timestamp | None = None
    """When it was applied."""
    previous: EngineKnobs | None = None
    """Values of the same knobs before."""


class InferenceServiceStatus(Model):
    """The observed state."""

    observed_generation: int | None = None
    """The metadata.generation that this status is about."""
    conditions: list[Condition] = Field(
        default_factory=list,
        json_schema_extra=list_map("type"),
    )
    """Conditions; docs/reasons.md explains their types and reasons."""
    replicas: int = 0
    """Pods of the stable track."""
    ready_replicas: int = 0
    """Pods of the stable track that are ready."""
    selector: str | None = None
    """Label selector of the pods, for /scale."""
    endpoint: ServiceEndpoint | None = None
    """Where clients reach the service."""
    template_revision: str | None = None
    """Revision of everything that needs a new pod when it changes."""
    config: EngineKnobs | None = None
    """Effective value of every knob."""
    revision: str | None = None
    """Revision of the effective config."""
    tuned: TunedStatus | None = None
    """The proposal in force, if any."""


class InferenceService(CustomResource):
    """A model served by engines that run continuous batching."""

    model_config = ConfigDict(title=INFERENCE_SERVICE_KIND, json_schema_extra=NAME_RULES)
    KIND: ClassVar[str] = INFERENCE_SERVICE_KIND
    PLURAL: ClassVar[str] = INFERENCE_SERVICE_PLURAL

    api_version: Literal["headrace.dev/v1alpha1"] = API_VERSION
    kind: Literal["InferenceService"] = INFERENCE_SERVICE_KIND
    spec: InferenceServiceSpec
    """The wanted state."""
    status: InferenceServiceStatus = Field(default_factory=InferenceServiceStatus)
    """The observed state."""

    @property
    def served_name(self) -> str:
        """Name of the model in the OpenAI API."""
        return self.spec.model.name or self.metadata.name

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is asked for."""
        gpu = self.spec.resources.gpu
        return gpu is not None and gpu.count > 0
