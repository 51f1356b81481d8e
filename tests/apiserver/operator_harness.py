"""The operator as a real process with exactly the rights of its rbac.yaml, and the parts of a cluster that tests play.

No controllers, kubelet or engines run beside the API server: a test plays Deployment controller and kubelet by writing
status and pods, and an engine by a small server with the real knob rules.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from ports import free_port

import headrace_operator
from headrace_client import resources as res
from headrace_client.kube import Kube
from headrace_core.knobs.resolve import ConfigError, reconfigure, resolve
from headrace_core.knobs.table import KNOBS

RULES = yaml.safe_load((Path(headrace_operator.__file__).parent / "rbac.yaml").read_text())["rules"]
ACCOUNT = "operator"
# The child processes run this tree's code also where another one is installed.
PACKAGES = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PATH": "/usr/bin:/bin"}


async def command_line(kubeconfig: Path, *arguments: str) -> str:
    """What `headrace ...` prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "headrace_cli",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**PACKAGES, "KUBECONFIG": str(kubeconfig), "COLUMNS": "220"},
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


def tuning_run(namespace: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": "TuningRun",
        "metadata": {"name": "tune", "namespace": namespace},
        "spec": {
            "serviceRef": {"name": "chat"},
            "knobs": [{"name": "prefillChunkSize", "min": 16.0, "max": 256.0, "step": 16.0}],
            "workload": {"rate": 4.0, "promptTokens": {"short": {"mean": 32}}, "outputTokens": {"mean": 16}},
            **spec,
        },
    }


async def grant(kube: Kube, namespace: str, *, cluster: bool = False) -> None:
    """ServiceAccount, Role and RoleBinding of the operator in its namespace; or their cluster-wide kin."""
    place = {} if cluster else {"namespace": namespace}
    metadata = {"name": f"{ACCOUNT}-{namespace}" if cluster else ACCOUNT, **place}
    kind = "ClusterRole" if cluster else "Role"
    group = "rbac.authorization.k8s.io"
    account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    for body in (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": namespace}},
        {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "rules": RULES},
        {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": kind, "name": metadata["name"]},
            "subjects": [account],
        },
    ):
        await kube.apply(body, field_manager="tests")


async def account_kubeconfig(kube: Kube, namespace: str, admin: Path, folder: Path) -> Path:
    """Kubeconfig with a token of the operator's ServiceAccount."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}/token"
    token = json.loads(await kube.raw("POST", path, body=request))["status"]["token"]
    config = yaml.safe_load(admin.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    target = folder / "operator.kubeconfig"
    target.write_text(yaml.safe_dump(config))
    return target


class Operator:
    """A running operator process."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, health: int, metrics: int) -> None:
        self.process = process
        self.log = log
        self.health = f"http://127.0.0.1:{health}/healthz"
        self.metrics = f"http://127.0.0.1:{metrics}/metrics"

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


@asynccontextmanager
async def operator(
    kubeconfig: Path, namespace: str | None, folder: Path, *, leaves_with: int = 0
) -> AsyncIterator[Operator]:
    """The operator, stopped by SIGTERM at the end if the test did not end it."""
    log = folder / "operator.log"
    health, metrics = free_port(), free_port()
    flags = {
        "--engine-image": "headrace/engine:test",
        "--tuner-image": "headrace/tuner:test",
        "--root-token": "x" * 32,
        **({"--namespace": namespace} if namespace else {}),
        "--health-address": f"127.0.0.1:{health}",
        "--metrics-address": f"127.0.0.1:{metrics}",
        "--prometheus-url": "http://127.0.0.1:1",
    }
    arguments = [part for pair in flags.items() for part in pair]
    with log.open("a") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headrace_operator",
            *arguments,
            stdout=output,
            stderr=output,
            env={**PACKAGES, "KUBECONFIG": str(kubeconfig), "HOME": str(folder)},
        )
    try:
        yield Operator(process, log, health, metrics)
    finally:
        if process.returncode is None:
            process.terminate()
        code = await asyncio.wait_for(process.wait(), 20)
    assert code == leaves_with, log.read_text()[-3000:]


class Engine:
    """The admin and serving ports of one engine, on both its address and the Service's."""

    def __init__(self) -> None:
        self.config: Any = None
        self.revision = ""
        self.slo: Any = None
        self.generation = 1
        self.patches: list[dict[str, Any]] = []
        self.tokens = 0

    def boot(self, engine_json: dict[str, Any]) -> None:
        self.config = resolve(engine_json["config"], ceilings=engine_json["ceilings"])
        self.revision, self.slo = engine_json["revision"], engine_json["slo"]

    async def read(self, _: web.Request) -> web.Response:
        rows = [{"name": knob.name, "ceiling": self.config.ceilings.get(knob.name)} for knob in KNOBS]
        return web.json_response({
            "generation": self.generation,
            "revision": self.revision,
            "config": self.config.values(),
            "knobs": rows,
            "device": "cpu",
            "dtype": "float32",
            "pretend_gpu": True,
            "started_at": 1767225600.0,
            "slo": self.slo,
        })  # fmt: skip

    async def change(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert request.headers["Authorization"].startswith("Bearer ")
        try:
            self.config = reconfigure(self.config, body["knobs"])
        except ConfigError as error:
            problems = [{"knob": item.knob, "message": item.message} for item in error.problems]
            return web.json_response({"error": {"message": str(error)}, "problems": problems}, status=422)
        self.patches.append(body["knobs"])
        self.slo = body.get("slo", self.slo)
        self.generation, self.revision = self.generation + 1, body["revision"]
        return await self.read(request)

    async def complete(self, _: web.Request) -> web.Response:
        self.tokens += 1
        return web.json_response({"choices": [{"text": "a"}]})

    @asynccontextmanager
    async def serve(self, pod_address: str, service_address: str) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/admin/config", self.read)
        app.router.add_patch("/admin/config", self.change)
        app.router.add_post("/v1/completions", self.complete)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, pod_address, 8001).start()
        await web.TCPSite(runner, service_address, 8000).start()
        try:
            yield
        finally:
            await runner.cleanup()


def service(namespace: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": namespace},
        "spec": {"model": {"uri": "file:///models/tiny"}, **spec},
    }


async def until(
    kube: Kube, resource: Any, namespace: str, *, name: str = "chat", holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """The object once it `holds`; fails with its last state."""
    last: dict[str, Any] = {}
    try:
        async with asyncio.timeout(30):
            async for event in kube.watch(resource, namespace, field_selector=f"metadata.name={name}"):
                if event.object.get("metadata", {}).get("name") != name:
                    continue
                last = event.object
                if event.type.value != "DELETED" and holds(last):
                    return last
    except TimeoutError:
        pytest.fail(f"not in 30 s; last seen: {json.dumps(last.get('status'), indent=1)}")
    raise AssertionError


def condition(body: dict[str, Any], type_: str) -> dict[str, Any]:
    found = (item for item in body.get("status", {}).get("conditions", []) if item["type"] == type_)
    return next(found, {"status": "", "reason": "", "message": "", "observedGeneration": 0})


def current(body: dict[str, Any], type_: str) -> dict[str, Any]:
    """The condition, if it is about the newest spec."""
    found = condition(body, type_)
    newest = found["observedGeneration"] == body["metadata"]["generation"]
    return found if newest else {"status": "", "reason": "", "message": ""}


async def play_controllers(kube: Kube, namespace: str, pod_address: str, *, name: str = "chat") -> None:
    """One ready pod of the Deployment's newest template, and a Deployment status that has seen it."""
    deployment = await kube.get(res.DEPLOYMENTS, name, namespace)
    assert deployment
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-a",
            "namespace": namespace,
            "labels": deployment["spec"]["template"]["metadata"]["labels"],
        },
        "spec": {**deployment["spec"]["template"]["spec"], "serviceAccountName": "default"},
    }
    created = await kube.create(pod)
    status = {
        "phase": "Running",
        "podIP": pod_address,
        "podIPs": [{"ip": pod_address}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {"name": "engine", "ready": True, "restartCount": 0, "image": "i", "imageID": "i", "state": {"running": {}}}
        ],
    }
    await kube.replace_status(res.PODS, {**created, "status": status})
    observed = {"observedGeneration": deployment["metadata"]["generation"], "replicas": 1, "updatedReplicas": 1}
    newest = await kube.get(res.DEPLOYMENTS, name, namespace)
    assert newest
    await kube.replace_status(res.DEPLOYMENTS, {**newest, "status": observed})
