"""Desired objects against what is there: what to apply, and why in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_operator.cluster.hashing import digest

HASH_ANNOTATION = "headrace.dev/applied"
ROOT = "(object)"
Ref = tuple[str, str]  # kind, name

# Written once and never read: the operator has no right to read Secrets, and asks for none that it can do without.
BLIND_KINDS = frozenset({"Secret", "ServiceAccount", "Role", "RoleBinding"})
# Its pod template cannot change, and it must not run twice.
CREATE_ONLY_KINDS = frozenset({"Job"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPlan:
    """`apply` in order, `why` one line each; `conflicts` are names that belong to somebody else."""

    apply: tuple[dict[str, Any], ...] = ()
    why: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.apply


def ref_of(body: Mapping[str, Any]) -> Ref:
    """Kind and name of an object."""
    return body["kind"], body["metadata"]["name"]


def stamped(body: Mapping[str, Any]) -> dict[str, Any]:
    """`body` with the digest of itself as an annotation: a key that was dropped from desired shows by it."""
    metadata = body["metadata"]
    annotations = {**metadata.get("annotations", {}), HASH_ANNOTATION: digest(body)}
    return {**body, "metadata": {**metadata, "annotations": annotations}}


def make_plan(desired: Iterable[Mapping[str, Any]], observed: Mapping[Ref, Mapping[str, Any]]) -> ApplyPlan:
    """What to apply so that `observed` becomes `desired`. Objects that nobody asked for are not touched."""
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


def same_owner(body: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Whether the object that is there is controlled by the owner that `body` names."""
    wanted = _controller(body)
    return wanted is None or wanted == _controller(there)


def _controller(body: Mapping[str, Any]) -> str | None:
    owners = body["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def _conflict(body: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    kind, name = ref_of(body)
    owners = there["metadata"].get("ownerReferences") or ()
    whose = ", ".join(f"{owner['kind']} {owner['name']}" for owner in owners) or "nobody"
    return f"{kind} {name} exists and belongs to {whose}, not to this object; delete it or choose another name"


def _reason(body: Mapping[str, Any], there: Mapping[str, Any] | None) -> str:
    if there is None:
        return "does not exist"
    if there["metadata"].get("deletionTimestamp") or body["kind"] in CREATE_ONLY_KINDS:
        return ""  # a name that is being deleted cannot be taken over; its DELETED event brings us back
    annotations = there["metadata"].get("annotations") or {}
    if annotations.get(HASH_ANNOTATION) != digest(body):
        return "is of another version"
    where = difference(body, there)
    return f"was changed by somebody else at {where}" if where else ""


def difference(wanted: Any, there: Any, path: str = "") -> str:
    """Where `there` lacks something of `wanted`, or an empty string. What only `there` has is not ours to judge."""
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
