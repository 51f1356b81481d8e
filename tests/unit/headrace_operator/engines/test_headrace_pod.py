"""Headrace's own command line, probes and ports, as they are."""

from dataclasses import replace

import pytest

from headrace_operator.engines.base import EngineLaunch
from headrace_operator.engines.headrace_pod import STARTUP_SECONDS, engine_container

LAUNCH = EngineLaunch(
    model="/models/tiny", model_revision=None, served_name="chat", config_map="chat-engine", admin_secret="chat-admin"
)


def test_the_command_line_is_the_documented_one() -> None:
    assert " ".join(engine_container(LAUNCH).command) == (
        "python -m headrace_engine serve /models/tiny --host $(POD_IP) --port 8000 --admin-port 8001 "
        "--config /etc/headrace/engine.json --served-model-name chat"
    )


def test_a_revision_follows_the_model() -> None:
    command = engine_container(replace(LAUNCH, model="org/model", model_revision="v2")).command
    assert command[4:7] == ["org/model", "--revision", "v2"]


@pytest.mark.parametrize(
    ("probe", "path"), [("startupProbe", "startup"), ("readinessProbe", "ready"), ("livenessProbe", "live")]
)
def test_each_probe_asks_its_own_path(probe: str, path: str) -> None:
    assert engine_container(LAUNCH).probes[probe]["httpGet"]["path"] == f"/health/{path}"


def test_a_slow_start_is_not_cut_off() -> None:
    startup = engine_container(LAUNCH).probes["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == STARTUP_SECONDS


def test_the_admin_token_comes_from_its_secret_and_is_on_no_command_line() -> None:
    made = engine_container(LAUNCH)
    (token,) = [variable for variable in made.env if variable["name"] == "HEADRACE_ADMIN_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"] == {"name": "chat-admin", "key": "token"}
    assert not any("token" in part for part in made.command)
