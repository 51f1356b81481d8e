"""The device plugin against a registration server of our own, on a real Unix socket."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import grpc
import pytest

from headrace_local.cri import deviceplugin_pb2 as pb
from headrace_local.device_plugin import KUBELET_SOCKET, PLUGIN_SOCKET, Registration, device_ids, environment
from headrace_local.runtime import rpc

SERVICES = pb.DESCRIPTOR.services_by_name


class FakeKubelet:
    """Takes registrations, as the kubelet's device manager does."""

    def __init__(self, folder: Path) -> None:
        self.registered: Queue[Any] = Queue()
        self._socket = folder / KUBELET_SOCKET
        self.start()

    def start(self) -> None:
        # A starting kubelet empties the folder first.
        for path in self._socket.parent.iterdir():
            path.unlink()
        self._server = grpc.server(ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((rpc.service(SERVICES["Registration"], self),))
        self._server.add_insecure_port(f"unix:{self._socket}")
        self._server.start()

    def register(self, request: Any) -> Any:
        self.registered.put(request)
        return pb.Empty()

    def stop(self) -> None:
        self._server.stop(grace=None).wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "device-plugins"
    made.mkdir()
    return made


@pytest.fixture
def kubelet(folder: Path) -> Iterator[FakeKubelet]:
    fake = FakeKubelet(folder)
    yield fake
    fake.stop()


@pytest.fixture
def plugin(folder: Path, kubelet: FakeKubelet) -> Iterator[Registration]:
    registration = Registration(folder, 2)
    thread = threading.Thread(target=registration.run, args=(folder.parent / "device_plugin.ready",))
    thread.start()
    yield registration
    registration.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert not (folder.parent / "device_plugin.ready").exists()


def test_it_registers_and_lists_its_devices(folder: Path, kubelet: FakeKubelet, plugin: Registration):
    request = kubelet.registered.get(timeout=20)
    assert (request.version, request.endpoint) == ("v1beta1", PLUGIN_SOCKET)
    assert request.resource_name == "nvidia.com/gpu"
    with grpc.insecure_channel(f"unix:{folder / PLUGIN_SOCKET}") as channel:
        stream = rpc.call(channel, SERVICES["DevicePlugin"], "ListAndWatch")(pb.Empty())
        devices = next(stream).devices
        assert [(device.ID, device.health) for device in devices] == [
            ("pretend-0", "Healthy"),
            ("pretend-1", "Healthy"),
        ]
        wanted = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["pretend-1"])])
        answer = rpc.call(channel, SERVICES["DevicePlugin"], "Allocate")(wanted, timeout=10)
        envs = dict(answer.container_responses[0].envs)
        assert envs == {"HEADRACE_PRETEND_GPU": "true", "NVIDIA_VISIBLE_DEVICES": "pretend-1"}


def test_it_registers_again_with_a_new_kubelet(kubelet: FakeKubelet, plugin: Registration):
    kubelet.registered.get(timeout=20)
    kubelet.stop()
    kubelet.start()
    assert kubelet.registered.get(timeout=20).resource_name == "nvidia.com/gpu"


def test_every_name_says_pretend():
    assert device_ids(3) == ["pretend-0", "pretend-1", "pretend-2"]
    assert environment(["pretend-1", "pretend-0"])["NVIDIA_VISIBLE_DEVICES"] == "pretend-0,pretend-1"
