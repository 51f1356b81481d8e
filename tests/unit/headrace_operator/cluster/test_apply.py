"""What is applied: exactly the objects that are missing or different, and never another owner's."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_resources import IMAGES, service

from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_operator.cluster.apply import HASH_ANNOTATION, ApplyPlan, difference, make_plan, ref_of
from headrace_operator.service.effective_config import effective_config
from headrace_operator.service.objects import service_objects


def objects(**spec: Any) -> tuple[dict[str, Any], ...]:
    subject = InferenceService.parse(service(**spec))
    return service_objects(subject, effective_config(subject, None).wanted, images=IMAGES, token="t").objects


def after(plan: ApplyPlan, observed: dict[Any, Any]) -> dict[Any, Any]:
    """The cluster after the plan has been applied, with the defaults that the server adds."""
    applied = {ref_of(body): copy.deepcopy(body) for body in plan.apply}
    for body in applied.values():
        body["metadata"]["uid"] = "x"
        body["status"] = {"replicas": 1}
        for container in body.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
            container["terminationMessagePath"] = "/dev/termination-log"
    return {**observed, **applied}


SPECS = st.fixed_dictionaries(
    {"replicas": st.integers(0, 3)},
    optional={
        "resources": st.fixed_dictionaries({"gpu": st.fixed_dictionaries({"count": st.integers(0, 2)})}),
        "engine": st.fixed_dictionaries({
            "config": st.fixed_dictionaries({}, optional={"blockSize": st.integers(1, 64), "seed": st.integers(0, 9)})
        }),
    },
)  # fmt: skip


@given(SPECS, SPECS)
def test_after_a_plan_nothing_is_left_to_do(before: dict[str, Any], now: dict[str, Any]) -> None:
    observed = after(make_plan(objects(**before), {}), {})
    plan = make_plan(objects(**now), observed)
    assert not make_plan(objects(**now), after(plan, observed)).apply
    assert plan == make_plan(objects(**now), observed)
    if objects(**before) == objects(**now):
        assert not plan.apply


@given(SPECS)
def test_fields_that_are_not_desired_are_not_touched(spec: dict[str, Any]) -> None:
    observed = after(make_plan(objects(**spec), {}), {})
    stranger = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}
    assert not make_plan(objects(**spec), {**observed, ref_of(stranger): stranger}).apply


def test_a_dropped_field_is_noticed_by_the_digest() -> None:
    with_limit, without = objects(resources={"memory": "1Gi"}), objects()
    plan = make_plan(without, after(make_plan(with_limit, {}), {}))
    assert [ref_of(body)[0] for body in plan.apply] == ["Deployment"]
    assert plan.why == ("Deployment chat: is from another version",)


def test_a_changed_field_is_named() -> None:
    observed = after(make_plan(objects(), {}), {})
    observed["Deployment", "chat"]["spec"]["template"]["spec"]["containers"][0]["image"] = "evil"
    assert make_plan(objects(), observed).why == (
        "Deployment chat: was changed by someone else at spec.template.spec.containers[engine].image",
    )


def test_another_owners_object_is_a_conflict() -> None:
    observed = after(make_plan(objects(), {}), {})
    observed["Service", "chat"]["metadata"]["ownerReferences"] = [
        {"kind": "InferenceService", "name": "other", "uid": "other", "controller": True}
    ]
    plan = make_plan(objects(), observed)
    assert not plan.apply
    assert "belongs to InferenceService other" in plan.conflicts[0]


def test_an_object_that_is_being_deleted_is_left_until_it_is_gone() -> None:
    observed = after(make_plan(objects(), {}), {})
    observed["Service", "chat"]["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": {}}
    assert not make_plan(objects(), observed).apply


def test_every_applied_object_carries_its_digest() -> None:
    assert all(body["metadata"]["annotations"][HASH_ANNOTATION] for body in make_plan(objects(), {}).apply)


@pytest.mark.parametrize(
    ("wanted", "there", "where"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, ""),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b"),
        ({"a": {"b": 1}}, {"a": None}, "a"),
        ({"a": [], "b": {}}, {}, ""),
        ([1, 2], [1], "(object)"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "a[1]"),
        ({"a": [{"name": "x", "v": 1}]}, {"a": [{"name": "y"}, {"name": "x", "v": 1}]}, ""),
        ({"a": [{"name": "x", "v": 1}]}, {"a": [{"name": "y"}]}, "a[x]"),
        ({"a": [1]}, {"a": "text"}, "a"),
    ],
)
def test_differences(wanted: Any, there: Any, where: str) -> None:
    assert difference(wanted, there) == where
