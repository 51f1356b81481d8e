"""Everything that the reconcilers of services and of tuning runs depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from headrace_api.v1alpha1.inferenceservice import EngineKind
from headrace_operator.cluster.apply import Writer
from headrace_operator.cluster.events import EventPoster
from headrace_operator.engines.base import EngineApi
from headrace_operator.protocols import Cache, KubeApi
from headrace_operator.rollout.controller import RolloutController
from headrace_operator.settings import OperatorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """Made once, by `app`; tests pass doubles. `now` is wall time; `clock` is the event loop's time, in seconds."""

    kube: KubeApi
    cache: Cache
    engines: Mapping[EngineKind, EngineApi]
    rollout: RolloutController
    settings: OperatorSettings
    writer: Writer
    events: EventPoster
    now: Callable[[], datetime]
    clock: Callable[[], float]
