"""From Services and pods to addresses."""

from typing import Any

from headrace_local.service_routes import SocketEndpoint, routes

API = SocketEndpoint("127.0.0.1", 16400)


def service(name: str = "mill", **spec: Any) -> dict[str, Any]:
    base = {"clusterIP": "127.96.1.1", "selector": {"app": "mill"}, "ports": [{"port": 80, "targetPort": 8000}]}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {**base, **spec}}


def pod(name: str, ip: str, *, ready: bool = True, namespace: str = "default", **metadata: Any) -> dict[str, Any]:
    ports = [{"name": "http", "containerPort": 8001}]
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "mill", "x": "y"}, **metadata},
        "spec": {"containers": [{"name": "c", "ports": ports}]},
        "status": {
            "podIP": ip,
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def of(services: list[dict[str, Any]], pods: list[dict[str, Any]]) -> dict[SocketEndpoint, tuple[SocketEndpoint, ...]]:
    return routes(services, pods, apiserver=API)


def test_ready_pods_stand_behind_the_service_in_the_order_of_their_names():
    found = of([service()], [pod("b", "127.97.0.3"), pod("a", "127.97.0.2"), pod("c", "127.97.0.4", ready=False)])
    assert found == {
        SocketEndpoint("127.96.1.1", 80): (SocketEndpoint("127.97.0.2", 8000), SocketEndpoint("127.97.0.3", 8000))
    }


def test_without_a_ready_pod_the_service_is_known_but_empty():
    assert of([service()], []) == {SocketEndpoint("127.96.1.1", 80): ()}


def test_terminating_finished_and_foreign_pods_get_no_traffic():
    finished = pod("d", "127.97.0.5")
    finished["status"]["phase"] = "Succeeded"
    pods = [
        pod("a", "127.97.0.2", deletionTimestamp="2026-11-30T00:00:00Z"),
        pod("b", "127.97.0.3", namespace="other"),
        pod("c", "127.97.0.4", labels={"app": "other"}),
        finished,
        pod("e", ""),
    ]
    assert of([service()], pods) == {SocketEndpoint("127.96.1.1", 80): ()}


def test_pods_that_are_not_ready_count_where_the_service_says_so():
    found = of([service(publishNotReadyAddresses=True)], [pod("a", "127.97.0.2", ready=False)])
    assert found == {SocketEndpoint("127.96.1.1", 80): (SocketEndpoint("127.97.0.2", 8000),)}


def test_named_ports_are_looked_up_in_each_pod():
    unnamed = pod("b", "127.97.0.3")
    unnamed["spec"]["containers"][0]["ports"] = []
    ports = [{"port": 80, "targetPort": "http"}, {"port": 81}, {"port": 53, "protocol": "UDP"}]
    found = of([service(ports=ports)], [pod("a", "127.97.0.2"), unnamed])
    assert found == {
        SocketEndpoint("127.96.1.1", 80): (SocketEndpoint("127.97.0.2", 8001),),
        SocketEndpoint("127.96.1.1", 81): (SocketEndpoint("127.97.0.2", 81), SocketEndpoint("127.97.0.3", 81)),
    }


def test_services_without_an_address_or_a_selector_are_left_out():
    assert (
        of([service(clusterIP="None"), service(clusterIP=""), service(selector=None)], [pod("a", "127.97.0.2")]) == {}
    )


def test_kubernetes_leads_to_the_api_server():
    kubernetes = service("kubernetes", selector=None, ports=[{"name": "https", "port": 443, "targetPort": 6443}])
    assert of([kubernetes], []) == {SocketEndpoint("127.96.1.1", 443): (API,)}
