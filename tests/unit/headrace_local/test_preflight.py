"""Checks before `up`: what is missing is named, with what to do."""

import os
import socket
from pathlib import Path

import pytest

from headrace_local import isolation, preflight
from headrace_local.control_plane import port_is_free
from headrace_local.errors import LocalError
from headrace_local.isolation import Isolation, Tried
from headrace_local.layout import MAX_SLOT, Slot


def slot(number: int = 0, folder: Path = Path("/state")) -> Slot:
    return Slot(number, folder / "local" / f"slot-{number}", folder / "cache")


def test_linux_is_fine_and_anything_else_is_pointed_at_another_cluster():
    assert preflight.check_platform("linux") is None
    problem = preflight.check_platform("darwin")
    assert problem is not None
    assert "darwin" in problem.what
    assert "--context" in problem.todo


def test_missing_commands_are_named():
    assert preflight.check_commands(["mount"], lambda name: f"/bin/{name}") is None
    problem = preflight.check_commands(["mount", "unshare"], lambda name: None if name == "unshare" else "/bin/mount")
    assert problem is not None
    assert problem.what == "Not on PATH: unshare."


def test_a_taken_port_is_named_with_its_purpose_and_another_slot():
    assert preflight.check_ports(slot(), lambda _port: True) is None
    problem = preflight.check_ports(slot(2), lambda port: port != 16447)
    assert problem is not None
    assert problem.what == "In use on 127.0.0.1: 16447 (Prometheus)."
    assert "--slot 3" in problem.todo
    assert "16447" in problem.todo


def test_the_last_slot_proposes_the_first():
    problem = preflight.check_ports(slot(MAX_SLOT), lambda _port: False)
    assert problem is not None
    assert "--slot 0" in problem.todo


def test_a_port_that_somebody_listens_on_is_not_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not port_is_free(port)
    assert port_is_free(port)


def test_loopback_addresses_of_the_pod_range():
    assert preflight.check_loopback(slot(), preflight.can_bind_anywhere) is None
    problem = preflight.check_loopback(slot(), lambda _address: False)
    assert problem is not None
    assert "127.97.0.2" in problem.what
    assert not preflight.can_bind_anywhere("192.0.2.77")


def test_a_state_folder_too_deep_for_sockets():
    assert preflight.check_socket_paths(slot()) is None
    problem = preflight.check_socket_paths(slot(folder=Path("/" + "x" * 90)))
    assert problem is not None
    assert "HEADRACE_STATE" in problem.todo


def test_a_folder_that_can_not_be_written(tmp_path: Path):
    assert preflight.check_writable([tmp_path / "new"]) is None
    (tmp_path / "file").touch()
    problem = preflight.check_writable([tmp_path / "file" / "below"])
    assert problem is not None
    assert str(tmp_path / "file" / "below") in problem.what


def test_another_users_cluster_is_refused(tmp_path: Path):
    preflight.check_owner(tmp_path, os.geteuid())
    preflight.check_owner(tmp_path, 0)
    with pytest.raises(LocalError, match="belongs to user"):
        preflight.check_owner(tmp_path, os.geteuid() + 1)


@pytest.mark.parametrize("failing", ["try_unshare", "try_overlay"])
def test_without_any_isolation_the_error_has_the_kernels_messages_and_names_other_clusters(
    monkeypatch: pytest.MonkeyPatch, failing: str
):
    for name in ("try_unshare", "try_overlay"):
        monkeypatch.setattr(isolation, name, lambda _isolation, ok=name != failing: Tried(ok=ok, said="not permitted"))
    with pytest.raises(LocalError) as caught:
        isolation.find_isolation()
    assert "as root of a user namespace: not permitted" in caught.value.detail
    assert "--context" in caught.value.todo


def test_root_without_the_right_to_mount_falls_back_to_a_user_namespace(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(isolation, "try_unshare", lambda way: Tried(ok=way is Isolation.USER_NAMESPACE, said=""))
    monkeypatch.setattr(isolation, "try_overlay", lambda _way: Tried(ok=True, said=""))
    assert isolation.find_isolation() is Isolation.USER_NAMESPACE


def test_the_real_trials_agree_with_each_other():
    """Where namespaces work, overlays do too, and nothing stays mounted after the trials."""
    try:
        found = isolation.find_isolation()
    except LocalError as error:
        pytest.skip(error.why)
    assert isolation.try_unshare(found).ok
    tried = isolation.try_overlay(found)
    assert tried.ok, tried.said
    assert "headrace-overlay" not in Path("/proc/self/mounts").read_text()


def test_a_command_that_is_missing_did_not_work():
    assert not isolation.try_command(["headrace-no-such-command"]).ok


def test_entering_namespaces():
    assert isolation.enter_argv(Isolation.ROOT, 42) == ["nsenter", "--target=42", "--mount", "--"]
    assert "--user" in isolation.enter_argv(Isolation.USER_NAMESPACE, 42)
    assert isolation.holder_argv(Isolation.ROOT, ["stay"]) == ["unshare", "--mount", "--", "stay"]
