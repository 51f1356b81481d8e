"""A double of the API server and its cache, with faults, and a clock that only tests move."""

import copy
import itertools
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from operator_resources import NS, START

from headrace_api import names
from headrace_client.errors import Conflict, Invalid, NotFound, Unavailable
from headrace_client.resources import resource_of
from headrace_operator.runtime.cache import run_service_key

FAULTS = (Unavailable("HTTP 503", status=503), Conflict("HTTP 409", status=409), Invalid("HTTP 422", status=422))


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
    """API server and cache in one. `faults` are raised by the next calls, in order; None lets one through."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.calls: list[tuple[str, str, str]] = []  # verb, kind, name
        self.faults: deque[Exception | None] = deque()
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)

    # -- KubeApi

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
            raise Conflict("field owned by someone else", status=409)
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

    # -- Cache

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
