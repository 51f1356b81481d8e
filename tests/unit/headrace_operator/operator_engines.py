"""Doubles of running engines, with the real knob rules, and of Prometheus' answers about them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from operator_resources import START

from headrace_client.errors import EngineRefused, EngineUnavailable, KnobProblem, StaleGeneration
from headrace_core.knobs.resolve import ConfigError, EngineConfig, reconfigure, resolve
from headrace_operator.engines.base import ConfigChange, RunningEngine
from headrace_operator.protocols import WindowQuery
from headrace_operator.rollout.analysis import WindowPending


@dataclass
class FakeEngine:
    """One running engine: the real knob rules, no model."""

    config: EngineConfig
    revision: str
    slo: Mapping[str, Any] | None = None
    generation: int = 1
    started_at: float = START.timestamp()
    device: str = "cpu"
    pretend_gpu: bool = False
    down: bool = False
    refuse: str = ""

    def state(self) -> RunningEngine:
        return RunningEngine(
            generation=self.generation,
            revision=self.revision,
            config=self.config.values(),
            ceilings=self.config.ceilings,
            device=self.device,
            pretend_gpu=self.pretend_gpu,
            started_at=self.started_at,
            slo=self.slo,
        )


@dataclass
class Engines:
    """Engines by address. `token_fault` is raised by the probe through the Service."""

    by_address: dict[str, FakeEngine] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)  # URLs that were asked for a token
    patches: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    reads: int = 0
    token_fault: Exception | None = None

    def boot(self, address: str, engine_json: Mapping[str, Any], **more: Any) -> FakeEngine:
        device = more.get("device", "cpu")
        config = resolve(engine_json["config"], device=device, ceilings=engine_json["ceilings"])
        engine = FakeEngine(config=config, revision=engine_json["revision"], slo=engine_json["slo"], **more)
        self.by_address[address] = engine
        return engine

    @property
    def live(self) -> "Engines":
        return self

    async def read(self, address: str, *, token: str) -> RunningEngine:
        self.reads += 1
        return self._up(address).state()

    async def change(self, address: str, change: ConfigChange, *, token: str) -> RunningEngine:
        engine = self._up(address)
        if engine.refuse:
            raise EngineRefused("HTTP 422", [KnobProblem(next(iter(change.knobs), "?"), engine.refuse)])
        if engine.generation != change.if_generation:
            raise StaleGeneration("HTTP 409")
        try:
            engine.config = reconfigure(engine.config, change.knobs)
        except ConfigError as error:
            raise EngineRefused(str(error), [KnobProblem(p.knob, p.message) for p in error.problems]) from None
        self.patches.append((address, dict(change.knobs)))
        if change.slo is not None:
            engine.slo = change.slo.slo
        engine.generation += 1
        engine.revision = change.revision
        return engine.state()

    async def one_token(self, url: str, *, model: str) -> None:
        if self.token_fault is not None:
            raise self.token_fault
        self.tokens.append(url)

    def _up(self, address: str) -> FakeEngine:
        engine = self.by_address.get(address)
        if engine is None or engine.down:
            raise EngineUnavailable(f"GET http://{address}:8001: no answer")
        return engine


class Metrics:
    """Prometheus: `answer` is a function of the query, or NotYet."""

    def __init__(self) -> None:
        self.answer: Any = lambda query: WindowPending("no scrape yet")
        self.queries: list[WindowQuery] = []
        self.queue: float | None = 0.0

    async def waiting(self, namespace: str, pods: Any) -> float | None:
        return self.queue

    async def read(self, query: WindowQuery, *, now: datetime) -> Any:
        self.queries.append(query)
        return self.answer(query)
