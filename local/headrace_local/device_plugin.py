"""Offers pretend GPUs to the kubelet: `python -m headrace_local.device_plugin --slot N --gpus 2`.

It works like any device plugin (registration, ListAndWatch, Allocate), so the real device manager and the real
scheduler count the devices. There is no device behind them, and everything that reports them says "pretend".
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from headrace_local.cri import deviceplugin_pb2 as pb
from headrace_local.layout import default_slot
from headrace_local.runtime import rpc
from headrace_local.serving import log_to_stderr, ready

log = logging.getLogger(__name__)

RESOURCE = "nvidia.com/gpu"
KUBELET_SOCKET = "kubelet.sock"
PLUGIN_SOCKET = "headrace-gpu.sock"
_REGISTER_SECONDS = 5.0
_LOOK_SECONDS = 0.5


def device_ids(count: int) -> list[str]:
    """`pretend-0`, `pretend-1`, ..."""
    return [f"pretend-{number}" for number in range(count)]


class DevicePlugin:
    """v1beta1.DevicePlugin: the devices are always healthy, and a container gets two environment variables."""

    def __init__(self, count: int, stopped: threading.Event) -> None:
        self._devices = [pb.Device(ID=name, health="Healthy") for name in device_ids(count)]
        self._stopped = stopped

    def get_device_plugin_options(self, request: Any) -> Any:
        """No options: no preferred allocation, no call before a container starts."""
        return pb.DevicePluginOptions()

    def list_and_watch(self, request: Any) -> Iterator[Any]:
        """The devices, once; the stream stays open, since its end would mean that they are gone."""
        yield pb.ListAndWatchResponse(devices=self._devices)
        self._stopped.wait()

    def allocate(self, request: Any) -> Any:
        """The environment variables of containers that were given devices."""
        return pb.AllocateResponse(
            container_responses=[
                pb.ContainerAllocateResponse(envs=environment(list(container.devices_ids)))
                for container in request.container_requests
            ]
        )

    def get_preferred_allocation(self, request: Any) -> Any:
        """No preference."""
        return pb.PreferredAllocationResponse()

    def pre_start_container(self, request: Any) -> Any:
        """Does nothing."""
        return pb.PreStartContainerResponse()


def environment(ids: list[str]) -> dict[str, str]:
    """The variables of a container that was given these devices."""
    return {"HEADRACE_PRETEND_GPU": "true", "NVIDIA_VISIBLE_DEVICES": ",".join(sorted(ids))}


class Registration:
    """Serves the plugin in the kubelet's folder and registers it, and again whenever the kubelet restarts."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End `run`."""
        self._stopped.set()

    def run(self, ready_file: Path) -> None:
        """Register and stay registered until `stop`. The ready file exists once the kubelet accepts the devices."""
        while not self._stopped.is_set():
            kubelet = _identity(self._folder / KUBELET_SOCKET)
            if kubelet is None:
                self._stopped.wait(_LOOK_SECONDS)
                continue
            server, ended = self._serve()
            try:
                if self._register():
                    with ready(ready_file):
                        self._stay(kubelet)
                else:
                    self._stopped.wait(_LOOK_SECONDS)
            finally:
                ended.set()
                server.stop(grace=1).wait()

    def _serve(self) -> tuple[Any, threading.Event]:
        ended = threading.Event()
        server = grpc.server(ThreadPoolExecutor(8, "device-plugin"))
        descriptor = pb.DESCRIPTOR.services_by_name["DevicePlugin"]
        server.add_generic_rpc_handlers((rpc.service(descriptor, DevicePlugin(self._count, ended)),))
        socket = self._folder / PLUGIN_SOCKET
        socket.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        return server, ended

    def _register(self) -> bool:
        request = pb.RegisterRequest(version="v1beta1", endpoint=PLUGIN_SOCKET, resource_name=RESOURCE)
        register = pb.DESCRIPTOR.services_by_name["Registration"]
        try:
            with grpc.insecure_channel(f"unix:{self._folder / KUBELET_SOCKET}") as channel:
                rpc.call(channel, register, "Register")(request, timeout=_REGISTER_SECONDS)
        except grpc.RpcError as error:
            log.warning("the kubelet does not accept the registration yet: %s", error.details())
            return False
        log.info("registered %d pretend devices as %s: %s", self._count, RESOURCE, ", ".join(device_ids(self._count)))
        return True

    def _stay(self, kubelet: tuple[int, int]) -> None:
        """Wait for `stop`, or for a new kubelet, which empties the folder and makes a new socket."""
        while not self._stopped.wait(_LOOK_SECONDS):
            ours = (self._folder / PLUGIN_SOCKET).exists()
            if not ours or _identity(self._folder / KUBELET_SOCKET) != kubelet:
                log.info("the kubelet was restarted: registering again")
                return


def _identity(path: Path) -> tuple[int, int] | None:
    """(inode, change time), which tells a file from a later one at the same path; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def main() -> int:
    """Serve until SIGTERM; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m headrace_local.device_plugin", description=__doc__)
    parser.add_argument("--slot", type=int, default=0, help="number of the embedded cluster")
    parser.add_argument("--gpus", type=int, default=2, help="number of pretend GPUs that the node offers")
    options = parser.parse_args()
    log_to_stderr()
    slot = default_slot(options.slot)
    registration = Registration(slot.device_plugins_dir, options.gpus)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: registration.stop())
    registration.run(slot.ready_file("device_plugin"))
    (slot.device_plugins_dir / PLUGIN_SOCKET).unlink(missing_ok=True)
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
