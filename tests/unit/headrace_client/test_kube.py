"""Calls of the Kubernetes client against a server that fails on purpose."""

from pathlib import Path
from typing import Any

import pytest

from headrace_client import resources as res
from headrace_client.errors import Conflict, Forbidden, Invalid, KubeError, NotFound, Unavailable
from headrace_client.resources import ApiResource, resource_of
from headrace_client.transport import Retry

MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}}


async def test_apply_sends_the_object_as_an_apply_patch(double: Any) -> None:
    double.then(double.json(MAP))
    async with double.kube() as kube:
        assert await kube.apply(MAP, field_manager="headrace-operator") == MAP
    request = double.seen[0]
    assert (request.method, request.path) == ("PATCH", "/api/v1/namespaces/n/configmaps/a")
    assert request.query == {"fieldManager": "headrace-operator", "force": "true"}
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert request.body == MAP


async def test_status_goes_to_its_subresource(double: Any) -> None:
    body = {"apiVersion": "headrace.dev/v1alpha1", "kind": "TuningRun", "metadata": {"name": "r", "namespace": "n"}}
    double.then(double.json(body))
    async with double.kube() as kube:
        await kube.replace_status(res.TUNING_RUNS, body)
    path = "/apis/headrace.dev/v1alpha1/namespaces/n/tuningruns/r/status"
    assert [(item.method, item.path) for item in double.seen] == [("PUT", path)]


@pytest.mark.parametrize(
    ("code", "kind"),
    [(400, Invalid), (401, Forbidden), (403, Forbidden), (404, NotFound), (409, Conflict), (422, Invalid)],
)
async def test_refusal_carries_verb_object_and_the_servers_message(
    double: Any, code: int, kind: type[KubeError]
) -> None:
    double.then(double.failure(code, 'configmaps "a" says no', "Because", [{"field": "data.x", "message": "bad"}]))
    async with double.kube() as kube:
        with pytest.raises(kind) as failed:
            await kube.apply(MAP, field_manager="m")
    assert str(failed.value) == 'apply ConfigMap n/a: configmaps "a" says no'
    assert (failed.value.status, failed.value.reason) == (code, "Because")
    assert [str(cause) for cause in failed.value.causes] == ["data.x: bad"]
    assert double.delays == []


async def test_get_of_a_missing_object_is_none(double: Any) -> None:
    double.then(double.failure(404, "not found"))
    async with double.kube() as kube:
        assert await kube.get(res.CONFIG_MAPS, "a", "n") is None


async def test_delete_of_a_missing_object_is_fine_unless_told_otherwise(double: Any) -> None:
    double.then(double.failure(404, "not found"), double.failure(404, "not found"))
    async with double.kube() as kube:
        await kube.delete(res.CONFIG_MAPS, "a", "n")
        with pytest.raises(NotFound):
            await kube.delete(res.CONFIG_MAPS, "a", "n", missing_ok=False)
    assert double.seen[0].body == {"propagationPolicy": "Background"}


async def test_after_429_it_waits_as_long_as_the_server_asks(double: Any) -> None:
    double.then(double.failure(429, "slow down", **{"Retry-After": "7"}), double.json(MAP))
    async with double.kube() as kube:
        await kube.apply(MAP, field_manager="m")
    assert double.delays == [7.0]


async def test_5xx_backs_off_and_gives_up_with_the_last_error(double: Any) -> None:
    double.then(*[double.failure(500, f"broken {number}") for number in range(4)])
    async with double.kube(attempts=4) as kube:
        with pytest.raises(Unavailable, match="apply ConfigMap n/a: broken 3"):
            await kube.apply(MAP, field_manager="m")
    assert double.delays == [0.2, 0.4, 0.8]


async def test_a_broken_connection_is_tried_again(double: Any) -> None:
    double.then(double.reset(), double.json(MAP))
    async with double.kube() as kube:
        await kube.apply(MAP, field_manager="m")
    assert len(double.seen) == 2


async def test_a_create_whose_answer_got_lost_is_not_repeated(double: Any) -> None:
    double.then(double.reset())
    async with double.kube() as kube:
        with pytest.raises(Unavailable, match="create ConfigMap n/a: no answer"):
            await kube.create(MAP)
    assert len(double.seen) == 1


async def test_a_create_that_certainly_did_not_happen_is_repeated(double: Any) -> None:
    double.then(double.failure(503, "not now"), double.json(MAP, 201))
    async with double.kube() as kube:
        await kube.create(MAP)
    assert len(double.seen) == 2


async def test_a_wrong_type_in_apply_is_not_tried_again_although_it_is_a_500(double: Any) -> None:
    double.then(double.failure(500, "failed to create typed patch object (n/a): .spec.x: expected numeric"))
    async with double.kube() as kube:
        with pytest.raises(Invalid, match="expected numeric"):
            await kube.apply(MAP, field_manager="m")
    assert double.delays == []


async def test_no_server_at_all_names_the_address(double: Any) -> None:
    async with double.kube(url="http://127.0.0.1:1", attempts=2) as kube:
        with pytest.raises(Unavailable, match=r"get ConfigMap n/a: no answer from the API server http://127.0.0.1:1"):
            await kube.get(res.CONFIG_MAPS, "a", "n")
    assert len(double.delays) == 1


async def test_a_proxys_page_is_quoted(double: Any) -> None:
    async def page(_: Any) -> Any:
        from aiohttp import web

        return web.Response(status=403, text="<h1>blocked</h1>")

    double.then(page)
    async with double.kube() as kube:
        with pytest.raises(Forbidden, match="<h1>blocked</h1>"):
            await kube.apply(MAP, field_manager="m")


async def test_a_rotated_token_is_read_again_after_401(double: Any, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old\n")

    async def refuse(request: Any) -> Any:
        path.write_text("new\n")
        return await double.failure(401, "Unauthorized")(request)

    double.then(refuse, double.json(MAP))
    async with double.kube(user={"tokenFile": "token"}) as kube:
        await kube.get(res.CONFIG_MAPS, "a", "n")
    assert [item.headers["Authorization"] for item in double.seen] == ["Bearer old", "Bearer new"]


async def test_a_token_that_stays_refused_ends_in_forbidden(double: Any, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    double.then(double.failure(401, "Unauthorized"))
    async with double.kube(user={"tokenFile": "token"}) as kube:
        with pytest.raises(Forbidden, match="get ConfigMap n/a: Unauthorized"):
            await kube.get(res.CONFIG_MAPS, "a", "n")
    assert len(double.seen) == 1


async def test_list_follows_pages_and_types_its_items(double: Any) -> None:
    double.then(
        double.json({"metadata": {"continue": "next"}, "items": [{"metadata": {"name": "a"}}]}),
        double.json({"metadata": {"resourceVersion": "5"}, "items": [{"metadata": {"name": "b"}}]}),
    )
    async with double.kube() as kube:
        found = await kube.list(res.CONFIG_MAPS, "n", "app=x")
    assert [(item["kind"], item["metadata"]["name"]) for item in found] == [("ConfigMap", "a"), ("ConfigMap", "b")]
    assert double.seen[1].query == {"labelSelector": "app=x", "limit": "500", "continue": "next"}


async def test_list_starts_over_when_its_pages_expire(double: Any) -> None:
    double.then(
        double.json({"metadata": {"continue": "next"}, "items": [{"metadata": {"name": "a"}}]}),
        double.failure(410, "expired"),
        double.json({"metadata": {}, "items": [{"metadata": {"name": "b"}}]}),
    )
    async with double.kube() as kube:
        found = await kube.list(res.CONFIG_MAPS, "n")
    assert [item["metadata"]["name"] for item in found] == ["b"]


async def test_logs_name_container_and_tail(double: Any) -> None:
    double.then(double.json("text"))
    async with double.kube() as kube:
        await kube.logs("p", "n", "engine", tail_lines=5)
    assert double.seen[0].path == "/api/v1/namespaces/n/pods/p/log"
    assert double.seen[0].query == {"container": "engine", "tailLines": "5"}


async def test_a_closed_client_says_how_to_open_it(double: Any) -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await double.kube().get(res.CONFIG_MAPS, "a", "n")


def test_delay_doubles_up_to_its_cap_and_retry_after_has_a_cap_too() -> None:
    retry = Retry(base=1, cap=5, retry_after_cap=30)
    assert [retry.delay(number) for number in range(4)] == [1, 2, 4, 5]
    assert retry.delay(10**9) == 5
    assert retry.delay(0, 3600) == 30


def test_resource_of_knows_kinds_by_group() -> None:
    assert resource_of({"apiVersion": "apps/v1", "kind": "Deployment"}) is res.DEPLOYMENTS
    with pytest.raises(Invalid, match="apiVersion 'apps/v2', kind 'Deployment'"):
        resource_of({"apiVersion": "apps/v2", "kind": "Deployment"})


def test_paths() -> None:
    assert res.NODES.path("ignored", "a") == "/api/v1/nodes/a"
    assert res.PODS.path() == "/api/v1/pods"
    assert res.TUNING_RUNS.path("n", "r", subresource="status").endswith("/namespaces/n/tuningruns/r/status")
    with pytest.raises(ValueError, match="Pod a: a namespace is needed"):
        res.PODS.path(None, "a")
    assert ApiResource("g", "v1", "xs", "X").api_version == "g/v1"
