"""Brings desired objects into the cluster: a pure plan of what to apply, and the writer that carries it out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_api.names import OPERATOR_MANAGER
from headrace_client.errors import Conflict, KubeError
from headrace_client.resources import resource_of
from headrace_operator.cluster.hashing import digest
from headrace_operator.protocols import Cache, KubeApi

LOG = logging.getLogger(__name__)
HASH_ANNOTATION = "headrace.dev/applied"
ROOT = "(object)"
Ref = tuple[str, str]  # kind, name
Body = Mapping[str, Any]

# Written once and never read: the operator has no right to read Secrets, and asks for no right that it can do without.
BLIND_KINDS = frozenset({"Secret", "ServiceAccount", "Role", "RoleBinding"})
BLIND_SECONDS = 600.0  # after which such an object is applied again, in case someone removed it
# A Job's pod template cannot change, and a Job must not run twice.
CREATE_ONLY_KINDS = frozenset({"Job"})


# The plan. Pure.


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPlan:
    """Objects to apply in order, with one line each in `why`; `conflicts` are sentences about names already taken."""

    apply: tuple[dict[str, Any], ...] = ()
    why: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()


def ref_of(body: Body) -> Ref:
    """Kind and name of an object."""
    return body["kind"], body["metadata"]["name"]


def stamped(body: Body) -> dict[str, Any]:
    """`body` with its own digest as an annotation, which shows when a field was dropped from the desired object."""
    metadata = body["metadata"]
    annotations = {**metadata.get("annotations", {}), HASH_ANNOTATION: digest(body)}
    return {**body, "metadata": {**metadata, "annotations": annotations}}


def make_plan(desired: Iterable[Body], observed: Mapping[Ref, Body]) -> ApplyPlan:
    """What to apply so that `observed` becomes `desired`. Objects that are not desired are not touched."""
    apply, why, conflicts = [], [], []
    for body in desired:
        there = observed.get(ref_of(body))
        if there is not None and not same_owner(body, there):
            conflicts.append(_conflict(body, there))
            continue
        reason = _reason(body, there)
        if reason:
            apply.append(stamped(body))
            why.append("{} {}: {}".format(*ref_of(body), reason))
    return ApplyPlan(apply=tuple(apply), why=tuple(why), conflicts=tuple(conflicts))


def same_owner(body: Body, there: Body) -> bool:
    """Whether the existing object `there` has the controller that `body` names; true if `body` names none."""
    wanted = _controller(body)
    return wanted is None or wanted == _controller(there)


def _controller(body: Body) -> str | None:
    owners = body["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def _conflict(body: Body, there: Body) -> str:
    kind, name = ref_of(body)
    owners = there["metadata"].get("ownerReferences") or ()
    whose = ", ".join(f"{owner['kind']} {owner['name']}" for owner in owners) or "no owner"
    return f"{kind} {name} exists and belongs to {whose}, not to this object; delete it or choose another name"


def _reason(body: Body, there: Body | None) -> str:
    if there is None:
        return "does not exist"
    if there["metadata"].get("deletionTimestamp") or body["kind"] in CREATE_ONLY_KINDS:
        return ""  # an object being deleted cannot be replaced yet; its DELETED event starts another pass
    annotations = there["metadata"].get("annotations") or {}
    if annotations.get(HASH_ANNOTATION) != digest(body):
        return "is from another version"
    where = difference(body, there)
    return f"was changed by someone else at {where}" if where else ""


def difference(wanted: Any, there: Any, path: str = "") -> str:
    """Path where `there` differs from `wanted`, or an empty string. Fields that only `there` has are ignored."""
    if isinstance(wanted, Mapping):
        return _mapping_difference(wanted, there, path)
    if isinstance(wanted, list):
        return _list_difference(wanted, there, path)
    return "" if wanted == there else path or ROOT


def _mapping_difference(wanted: Mapping[str, Any], there: Any, path: str) -> str:
    if not isinstance(there, Mapping):
        return "" if not wanted and there is None else path or ROOT
    for key, value in wanted.items():
        found = difference(value, there.get(key), f"{path}.{key}".removeprefix("."))
        if found:
            return found
    return ""


def _list_difference(wanted: list[Any], there: Any, path: str) -> str:
    if not wanted and there is None:
        return ""
    if not isinstance(there, list):
        return path or ROOT
    if wanted and all(isinstance(item, Mapping) and "name" in item for item in wanted):
        # Containers, ports, variables, volumes: an admission plugin may add to them or sort them.
        by_name = {item.get("name"): item for item in there}
        found = (difference(item, by_name.get(item["name"]), f"{path}[{item['name']}]") for item in wanted)
        return next((where for where in found if where), "")
    if len(wanted) != len(there):
        return path or ROOT
    found = (difference(*pair, f"{path}[{index}]") for index, pair in enumerate(zip(wanted, there, strict=True)))
    return next((where for where in found if where), "")


# The writer.


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Result of a write: how many objects it wrote. `conflict` and `error` are sentences, empty if there was none."""

    wrote: int = 0
    conflict: str = ""
    error: str = ""


class Writer:
    """Applies desired objects: checks who owns a name before the first write, and remembers what it may not read."""

    def __init__(self, kube: KubeApi, cache: Cache, *, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._cache = cache
        self._clock = clock
        self._blind: dict[tuple[str, str, str], tuple[str, float]] = {}

    async def bring(self, desired: Sequence[Body], *, distrust: bool = False) -> Written:
        """Apply `desired` where the cluster differs. `distrust`: even objects it cannot read, since a pod lacks one."""
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
        """Forget objects that were deleted with their owner."""
        for kind, name in objects:
            self._blind.pop((namespace, kind, name), None)

    def _observe(self, body: Body, distrust: bool) -> Body | None:
        kind, name = ref_of(body)
        namespace = body["metadata"]["namespace"]
        if kind not in BLIND_KINDS:
            return self._cache.child(kind, namespace, name)
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
            # The cache holds only objects with our label: one of the same name may belong to someone else.
            there = await self._kube.get(resource_of(body), name, namespace)
            if there is not None and not same_owner(body, there):
                return f"{kind} {name} exists and is not this object's; delete it or choose another name"
        await self._kube.apply(body, field_manager=OPERATOR_MANAGER)
        return ""

    async def _apply_blind(self, body: Body) -> str:
        kind, name = ref_of(body)
        key = (body["metadata"]["namespace"], kind, name)
        try:
            # Without force: a value that someone else set is a conflict, not ours to overwrite.
            await self._kube.apply(body, field_manager=OPERATOR_MANAGER, force=False)
        except Conflict as error:
            return f"{kind} {name} exists with other content: {error}; delete it or choose another name"
        source = {**body, "metadata": {**body["metadata"]}}
        annotations = dict(source["metadata"].pop("annotations"))
        del annotations[HASH_ANNOTATION]
        if annotations:
            source["metadata"]["annotations"] = annotations
        self._blind[key] = (digest(source), self._clock())
        return ""
