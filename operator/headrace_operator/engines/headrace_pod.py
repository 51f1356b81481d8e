"""How a pod runs Headrace's engine: command line, ports, probes, environment, volumes. Pure."""

from __future__ import annotations

from typing import Any

from headrace_api import names
from headrace_operator.engines.base import EngineContainer, EngineLaunch

STARTUP_SECONDS = 1800  # a large model loads for many minutes; killing it would only restart the load
_PORTS = ((names.HTTP_PORT_NAME, names.HTTP_PORT), (names.ADMIN_PORT_NAME, names.ADMIN_PORT))


def engine_container(launch: EngineLaunch) -> EngineContainer:
    """The container's parts; the config file is mounted, the admin token comes from its Secret."""
    return EngineContainer(
        command=_command(launch),
        env=_env(launch.admin_secret),
        ports=[{"name": name, "containerPort": number, "protocol": "TCP"} for name, number in _PORTS],
        probes={
            "startupProbe": _probe("startup", period=2, failures=STARTUP_SECONDS // 2),
            "readinessProbe": _probe("ready", period=2, failures=3),
            "livenessProbe": _probe("live", period=10, failures=6),
        },
        volumes=[{"name": "config", "configMap": {"name": launch.config_map}}],
        mounts=[{"name": "config", "mountPath": names.CONFIG_DIR, "readOnly": True}],
    )


def service_ports() -> list[dict[str, Any]]:
    """Ports of a Service, each to the container's port of the same name."""
    return [{"name": name, "port": number, "targetPort": name, "protocol": "TCP"} for name, number in _PORTS]


def _command(launch: EngineLaunch) -> list[str]:
    revision = [] if launch.model_revision is None else ["--revision", launch.model_revision]
    return [
        *("python", "-m", "headrace_engine", "serve", launch.model, *revision),
        *("--host", f"$({names.POD_IP_ENV})"),
        *("--port", str(names.HTTP_PORT)),
        *("--admin-port", str(names.ADMIN_PORT)),
        *("--config", names.CONFIG_PATH),
        *("--served-model-name", launch.served_name),
    ]


def _env(admin_secret: str) -> list[dict[str, Any]]:
    return [
        {"name": names.POD_IP_ENV, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
        {
            "name": names.ADMIN_TOKEN_ENV,
            "valueFrom": {"secretKeyRef": {"name": admin_secret, "key": names.ADMIN_TOKEN_KEY}},
        },
    ]


def _probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    # On a CPU a step can keep the interpreter busy for seconds: slow is not dead.
    return {
        "httpGet": {"path": f"/health/{path}", "port": names.HTTP_PORT_NAME, "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
