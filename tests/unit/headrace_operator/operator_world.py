"""Doubles of everything around the reconcilers."""

import json
from typing import Any

from operator_cluster import Clock, Cluster
from operator_engines import Engines, Metrics
from operator_resources import IMAGES, NS, ROOT_TOKEN, pod

from headrace_api import names
from headrace_api.v1alpha1.inferenceservice import EngineKind
from headrace_operator.cluster.apply import Writer
from headrace_operator.cluster.events import EventPoster
from headrace_operator.dependencies import Dependencies
from headrace_operator.protocols import Key
from headrace_operator.rollout.controller import RolloutController
from headrace_operator.runtime.requeue import Requeue
from headrace_operator.service.controller import ServiceController
from headrace_operator.settings import OperatorSettings
from headrace_operator.tuning.controller import RunController


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
        return await self.services.reconcile(Key(names.INFERENCE_SERVICE_KIND, NS, name))

    async def reconcile_run(self, name: str = "tune") -> Requeue:
        return await self.runs.reconcile(Key(names.TUNING_RUN_KIND, NS, name))

    def run(self, name: str = "tune") -> dict[str, Any]:
        return self.cluster.objects[names.TUNING_RUN_KIND, NS, name].get("status", {})

    def record(self, study: dict[str, Any] | None = None, *trials: dict[str, Any], run: str = "tune") -> None:
        """Play the Job: write records."""
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
        return json.loads(self.cluster.objects["ConfigMap", NS, config_map]["data"]["engine.json"])

    def revision(self, deployment: str = "chat") -> str:
        template = self.cluster.objects["Deployment", NS, deployment]["spec"]["template"]
        return template["metadata"]["labels"][names.REVISION_LABEL]

    def run_pod(self, name: str = "chat-a", *, deployment: str = "chat", ready: bool = True, **engine: Any) -> str:
        """Play kubelet and Deployment controller: make a booted pod of the newest template. Returns its address."""
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
