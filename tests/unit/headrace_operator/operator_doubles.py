"""Doubles with faults: an API server, its cache, engines, Prometheus, a clock. And small makers of objects."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace_api import names
from headrace_api.v1alpha1.inferenceservice import EngineKind
from headrace_client.errors import (
    Conflict,
    EngineRefused,
    EngineUnavailable,
    Invalid,
    KnobProblem,
    NotFound,
    StaleGeneration,
    Unavailable,
)
from headrace_client.resources import resource_of
from headrace_core.knobs.resolve import ConfigError, EngineConfig, reconfigure, resolve
from headrace_operator.cluster.apply import Writer
from headrace_operator.cluster.events import EventPoster
from headrace_operator.dependencies import Dependencies
from headrace_operator.engines.base import ConfigChange, RunningEngine
from headrace_operator.protocols import WindowQuery
from headrace_operator.rollout.analysis import WindowPending
from headrace_operator.rollout.controller import RolloutController
from headrace_operator.runtime.cache import run_service_key
from headrace_operator.runtime.requeue import Requeue
from headrace_operator.service.controller import ServiceController
from headrace_operator.settings import Images, OperatorSettings
from headrace_operator.tuning.controller import RunController

NS = "default"
START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT_TOKEN = "0123456789abcdef0123456789abcdef"
IMAGES = Images(engine="headrace/engine:test", tuner="headrace/tuner:test")


class Clock:
    """Wall time and loop time that only tests move."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


class Cluster:
    """API server and view in one. `faults` are raised by the next calls, in order; None lets one through."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.calls: list[tuple[str, str, str]] = []  # verb, kind, name
        self.faults: deque[Exception | None] = deque()
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)

    # -- KubePort

    async def get(self, res: Any, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        self._call("get", res.kind, name)
        found = self.objects.get((res.kind, namespace or "", name))
        return copy.deepcopy(found)

    async def apply(self, body: Mapping[str, Any], *, field_manager: str, force: bool = True) -> dict[str, Any]:
        self._call("apply", body["kind"], body["metadata"]["name"])
        resource_of(body)
        key = _key(body)
        there = self.objects.get(key)
        if there is None:
            return copy.deepcopy(self.put(body))
        if not force and _differs(body, there):
            raise Conflict("field owned by somebody else", status=409)
        merged = copy.deepcopy(dict(body))
        merged["metadata"] = {**there["metadata"], **merged["metadata"]}
        for section in ("status", "spec"):
            if section in there:
                merged[section] = {**there[section], **merged.get(section, {})}
        return copy.deepcopy(self._store(key, merged, there))

    async def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._call("create", body["kind"], body["metadata"]["name"])
        if _key(body) in self.objects:
            raise Conflict("exists", status=409, reason="AlreadyExists")
        return copy.deepcopy(self.put(body))

    async def replace_status(self, res: Any, body: Mapping[str, Any]) -> dict[str, Any]:
        self._call("status", res.kind, body["metadata"]["name"])
        there = self.objects.get(_key(body))
        if there is None:
            raise NotFound("gone", status=404)
        if there["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Conflict("changed meanwhile", status=409)
        new = {**there, "status": copy.deepcopy(body["status"])}
        return copy.deepcopy(self._store(_key(body), new, there))

    async def delete(self, res: Any, name: str, namespace: str | None = None) -> None:
        self._call("delete", res.kind, name)
        self.remove(res.kind, name, namespace or "")

    # -- View

    def service(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return self.child(names.INFERENCE_SERVICE_KIND, namespace, name)

    def run(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return self.child(names.TUNING_RUN_KIND, namespace, name)

    def runs_of(self, namespace: str, service: str) -> list[Mapping[str, Any]]:
        return [body for body in self._of(names.TUNING_RUN_KIND) if run_service_key(body) == (namespace, service)]

    def child(self, kind: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    def engine_pods(self, namespace: str, service: str) -> list[Mapping[str, Any]]:
        return self._labelled("Pod", names.SERVICE_LABEL, service)

    def run_pods(self, namespace: str, run: str) -> list[Mapping[str, Any]]:
        return self._labelled("Pod", names.TUNING_RUN_LABEL, run)

    # -- for tests

    def put(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create or overwrite, as a person or another controller."""
        return self._store(_key(body), copy.deepcopy(dict(body)), self.objects.get(_key(body)))

    def remove(self, kind: str, name: str, namespace: str = NS) -> None:
        """Delete and collect what it owned."""
        gone = self.objects.pop((kind, namespace, name), None)
        if gone is None:
            return
        uid = gone["metadata"]["uid"]
        for body in list(self.objects.values()):
            if any(owner["uid"] == uid for owner in body["metadata"].get("ownerReferences", ())):
                self.remove(body["kind"], body["metadata"]["name"], body["metadata"]["namespace"])

    def edit(self, kind: str, name: str, change: Any, namespace: str = NS) -> None:
        """Change an object in place by a function."""
        body = copy.deepcopy(self.objects[kind, namespace, name])
        change(body)
        self.put(body)

    def writes(self) -> list[tuple[str, str, str]]:
        return [call for call in self.calls if call[0] != "get" and call[1] != "Event"]

    def take_writes(self) -> list[tuple[str, str, str]]:
        found = self.writes()
        self.calls.clear()
        return found

    def _call(self, verb: str, kind: str, name: str) -> None:
        if verb != "create":
            fault = self.faults.popleft() if self.faults else None
            if fault is not None:
                raise fault
        self.calls.append((verb, kind, name))

    def _store(self, key: Any, body: dict[str, Any], there: Mapping[str, Any] | None) -> dict[str, Any]:
        metadata = body["metadata"]
        metadata["uid"] = there["metadata"]["uid"] if there else metadata.get("uid") or f"uid-{next(self._uids)}"
        metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        spec_changed = there is None or there.get("spec") != body.get("spec")
        old = there["metadata"].get("generation", 0) if there else 0
        metadata["generation"] = old + 1 if spec_changed else old
        if there and _without_version(there) == _without_version(body):
            metadata["resourceVersion"] = there["metadata"]["resourceVersion"]
        else:
            metadata["resourceVersion"] = str(next(self._versions))
        if body["kind"] == "Service":
            body["spec"].setdefault("clusterIP", "127.96.0.10")
        self.objects[key] = body
        return body

    def _of(self, kind: str) -> list[dict[str, Any]]:
        return [copy.deepcopy(body) for key, body in self.objects.items() if key[0] == kind]

    def _labelled(self, kind: str, label: str, value: str) -> list[Mapping[str, Any]]:
        return [body for body in self._of(kind) if body["metadata"].get("labels", {}).get(label) == value]


def _key(body: Mapping[str, Any]) -> tuple[str, str, str]:
    return body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]


def _without_version(body: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in body["metadata"].items() if key not in ("resourceVersion", "generation")}
    return {**body, "metadata": metadata}


def _differs(body: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    return any(
        there.get(part, {}).get(key) not in (None, value)
        for part in ("data",)
        for key, value in body.get(part, {}).items()
    )


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
    def live(self) -> Engines:
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


class World:
    """Everything around the reconcilers."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.cluster = Cluster()
        self.engines = Engines()
        self.metrics = Metrics()
        self.settings = OperatorSettings(images=IMAGES, root_token=ROOT_TOKEN, prometheus_url="http://127.0.0.1:1")
        self.restart_operator()

    def restart_operator(self) -> None:
        """A new operator process: all memory is gone."""
        cluster, clock = self.cluster, self.clock
        writer = Writer(cluster, cluster, clock=clock.monotonic)
        engines = {EngineKind.HEADRACE: self.engines}
        self.dependencies = Dependencies(
            kube=cluster,
            cache=cluster,
            engines=engines,
            rollout=RolloutController(
                cache=cluster, writer=writer, engines=engines, metrics=self.metrics, now=clock.now
            ),
            settings=self.settings,
            writer=writer,
            events=EventPoster(cluster, clock.now),
            now=clock.now,
            clock=clock.monotonic,
        )
        self.services = ServiceController(self.dependencies)
        self.runs = RunController(self.dependencies)

    async def reconcile(self, name: str = "chat") -> Requeue:
        from headrace_operator.protocols import Key

        return await self.services.reconcile(Key(names.INFERENCE_SERVICE_KIND, NS, name))

    async def reconcile_run(self, name: str = "tune") -> Requeue:
        from headrace_operator.protocols import Key

        return await self.runs.reconcile(Key(names.TUNING_RUN_KIND, NS, name))

    def run(self, name: str = "tune") -> dict[str, Any]:
        return self.cluster.objects[names.TUNING_RUN_KIND, NS, name].get("status", {})

    def record(self, study: dict[str, Any] | None = None, *trials: dict[str, Any], run: str = "tune") -> None:
        """Play the Job: write records."""
        import json

        data = {f"trial-{trial['number']:04d}.json": json.dumps(trial) for trial in trials}
        if study is not None:
            data["study.json"] = json.dumps(study)
        self.cluster.edit(
            "ConfigMap", f"{run}-records", lambda body: body.update(data={**body.get("data", {}), **data})
        )

    def status(self, name: str = "chat") -> dict[str, Any]:
        return self.cluster.objects[names.INFERENCE_SERVICE_KIND, NS, name].get("status", {})

    def condition(self, type_: str, name: str = "chat") -> dict[str, Any]:
        return next(item for item in self.status(name)["conditions"] if item["type"] == type_)

    def engine_json(self, config_map: str = "chat-engine") -> dict[str, Any]:
        import json

        return json.loads(self.cluster.objects["ConfigMap", NS, config_map]["data"]["engine.json"])

    def revision(self, deployment: str = "chat") -> str:
        template = self.cluster.objects["Deployment", NS, deployment]["spec"]["template"]
        return template["metadata"]["labels"][names.REVISION_LABEL]

    def run_pod(self, name: str = "chat-a", *, deployment: str = "chat", ready: bool = True, **engine: Any) -> str:
        """Play kubelet and Deployment controller: one pod of the newest template, its engine booted. Its address."""
        template = self.cluster.objects["Deployment", NS, deployment]["spec"]["template"]
        address = f"127.97.0.{sum(1 for key in self.cluster.objects if key[0] == 'Pod') + 10}"
        self.cluster.put(pod(name, template["metadata"]["labels"], ip=address, ready=ready))
        config_map = template["spec"]["volumes"][0]["configMap"]["name"]
        self.engines.boot(address, self.engine_json(config_map), **engine)
        self.settle(deployment)
        return address

    def settle(self, deployment: str = "chat") -> None:
        """Play Deployment controller: it has seen the newest spec."""

        def seen(body: dict[str, Any]) -> None:
            body["status"] = {"observedGeneration": body["metadata"]["generation"]}

        self.cluster.edit("Deployment", deployment, seen)


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    """InferenceService as YAML would have it; `spec` overrides top-level fields."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.INFERENCE_SERVICE_KIND,
        "metadata": {"name": name, "namespace": NS, "uid": f"uid-of-{name}"},
        "spec": {"model": {"uri": "file:///models/tiny"}, "replicas": 1, **spec},
    }


def tuning_run(name: str = "tune", **spec: Any) -> dict[str, Any]:
    """TuningRun as YAML would have it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.TUNING_RUN_KIND,
        "metadata": {"name": name, "namespace": NS, "uid": f"uid-of-{name}"},
        "spec": {
            "serviceRef": {"name": "chat"},
            "knobs": [{"name": "prefillChunkSize", "min": 16.0, "max": 256.0, "step": 16.0}],
            "workload": {
                "rate": 4.0,
                "duration": "20s",
                "warmup": "3s",
                "promptTokens": {"short": {"mean": 32}},
                "outputTokens": {"mean": 16},
            },
            "budget": {"trials": 12},
            **spec,
        },
    }


def pod(name: str, labels: Mapping[str, str], *, ip: str = "", ready: bool = False, **status: Any) -> dict[str, Any]:
    """Pod as the kubelet reports it."""
    container = {"name": "engine", "restartCount": 0, "state": {"running": {}}, **status.pop("container", {})}
    conditions = [{"type": "Ready", "status": str(ready)}, *status.pop("conditions", [])]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NS, "uid": f"uid-of-{name}", "labels": dict(labels)},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": conditions,
            "containerStatuses": [container],
            **status,
        },
    }


FAULTS = (Unavailable("HTTP 503", status=503), Conflict("HTTP 409", status=409), Invalid("HTTP 422", status=422))
