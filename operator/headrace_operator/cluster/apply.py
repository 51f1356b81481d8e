"""Carries out a plan: looks before the first write, applies in order, remembers what it may not read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_api.names import OPERATOR_MANAGER
from headrace_client.errors import Conflict, KubeError
from headrace_client.resources import resource_of
from headrace_operator.cluster.hashing import digest
from headrace_operator.cluster.plan import BLIND_KINDS, Ref, make_plan, ref_of, same_owner, stamped
from headrace_operator.protocols import Cache, KubeApi

LOG = logging.getLogger(__name__)
Body = Mapping[str, Any]
BLIND_SECONDS = 600.0  # after which an object that is never read is applied again, in case somebody removed it


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """How a plan went. `conflict` and `error` are sentences, empty when there was none."""

    wrote: int = 0
    conflict: str = ""
    error: str = ""


class Writer:
    """Applies desired objects. One per operator."""

    def __init__(self, kube: KubeApi, view: Cache, *, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._view = view
        self._clock = clock
        self._blind: dict[tuple[str, str, str], tuple[str, float]] = {}

    async def bring(self, desired: Sequence[Body], *, distrust: bool = False) -> Written:
        """Make the cluster have `desired`. `distrust`: apply also what is written blindly, since a pod misses it."""
        observed = {ref_of(body): there for body in desired if (there := self._observe(body, distrust)) is not None}
        plan = make_plan(desired, observed)
        if plan.conflicts:
            return Written(conflict=plan.conflicts[0])
        for wrote, (body, why) in enumerate(zip(plan.apply, plan.why, strict=True)):
            LOG.info("apply %s", why)
            try:
                problem = await self._apply(body, new=ref_of(body) not in observed)
            except KubeError as error:
                return Written(wrote=wrote, error=str(error))
            if problem:
                return Written(wrote=wrote, conflict=problem)
        return Written(wrote=len(plan.apply))

    def forget(self, namespace: str, objects: Iterable[Ref]) -> None:
        """Objects that are gone with their owner."""
        for kind, name in objects:
            self._blind.pop((namespace, kind, name), None)

    def _observe(self, body: Body, distrust: bool) -> Body | None:
        kind, name = ref_of(body)
        namespace = body["metadata"]["namespace"]
        if kind not in BLIND_KINDS:
            return self._view.child(kind, namespace, name)
        written = self._blind.get((namespace, kind, name))
        if written is None or distrust:
            return None
        known, at = written
        return stamped(body) if known == digest(body) and self._clock() - at < BLIND_SECONDS else None

    async def _apply(self, body: Body, *, new: bool) -> str:
        kind, name = ref_of(body)
        namespace = body["metadata"]["namespace"]
        if kind in BLIND_KINDS:
            return await self._apply_blind(body)
        if new:
            # The view holds only objects with our label: a stranger of the same name must not be taken over.
            there = await self._kube.get(resource_of(body), name, namespace)
            if there is not None and not same_owner(body, there):
                return f"{kind} {name} exists and is not this object's; delete it or choose another name"
        await self._kube.apply(body, field_manager=OPERATOR_MANAGER)
        return ""

    async def _apply_blind(self, body: Body) -> str:
        kind, name = ref_of(body)
        key = (body["metadata"]["namespace"], kind, name)
        try:
            # Without force: a value that somebody else set is a conflict, not ours to overwrite.
            await self._kube.apply(body, field_manager=OPERATOR_MANAGER, force=False)
        except Conflict as error:
            return f"{kind} {name} exists with other content: {error}; delete it or choose another name"
        source = {**body, "metadata": {**body["metadata"]}}
        annotations = dict(source["metadata"].pop("annotations"))
        del annotations["headrace.dev/applied"]
        if annotations:
            source["metadata"]["annotations"] = annotations
        self._blind[key] = (digest(source), self._clock())
        return ""
