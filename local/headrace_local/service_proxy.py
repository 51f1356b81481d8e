"""Makes ClusterIPs work without iptables: `python -m headrace_local.service_proxy --slot N`.

Services of the embedded cluster have loopback addresses. This process listens on them and passes connections on to
ready pods. It reads Services and pods itself, because EndpointSlices refuse the loopback addresses of our pods.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from headrace_client.kube import Kube
from headrace_client.resources import PODS, SERVICES, ApiResource
from headrace_client.watching import EventType
from headrace_local.forwarding import Forwarder
from headrace_local.layout import default_slot
from headrace_local.pki import pki_of
from headrace_local.service_routes import SocketEndpoint, routes
from headrace_local.serving import log_to_stderr, ready

log = logging.getLogger(__name__)


class Cluster:
    """Services and pods as seen by the watches: for each kind, objects by (namespace, name)."""

    def __init__(self) -> None:
        self.objects: dict[ApiResource, dict[tuple[str, str], dict[str, Any]]] = {SERVICES: {}, PODS: {}}
        self.synced: set[ApiResource] = set()
        self.changed = asyncio.Event()

    async def follow(self, kube: Kube, resource: ApiResource) -> None:
        """Keep the objects of this kind up to date; ends only when cancelled."""
        known = self.objects[resource]
        async for event in kube.watch(resource):
            if event.type is EventType.BOOKMARK:
                continue
            if event.type is EventType.SYNCED:
                self.synced.add(resource)
            else:
                metadata = event.object["metadata"]
                key = (metadata["namespace"], metadata["name"])
                if event.type is EventType.DELETED:
                    known.pop(key, None)
                else:
                    known[key] = event.object
            self.changed.set()

    @property
    def complete(self) -> bool:
        """Whether both kinds have been listed. Before that, a Service may seem to have no pods."""
        return self.synced == set(self.objects)


async def serve(kubeconfig: Path, apiserver: SocketEndpoint, ready_file: Path, stopped: asyncio.Event) -> None:
    """Forward until `stopped`; the ready file appears when the first routes are in force."""
    cluster, forwarder = Cluster(), Forwarder()
    async with Kube.auto(kubeconfig=kubeconfig) as kube, asyncio.TaskGroup() as tasks:
        work = [
            tasks.create_task(cluster.follow(kube, SERVICES)),
            tasks.create_task(cluster.follow(kube, PODS)),
            tasks.create_task(_apply(cluster, forwarder, apiserver, ready_file)),
        ]
        await stopped.wait()
        for task in work:
            task.cancel()
    await forwarder.close()


async def _apply(cluster: Cluster, forwarder: Forwarder, apiserver: SocketEndpoint, ready_file: Path) -> None:
    while not cluster.complete:
        await _change(cluster)
    await _route(cluster, forwarder, apiserver)
    with ready(ready_file):
        while True:
            await _change(cluster)
            await _route(cluster, forwarder, apiserver)


async def _route(cluster: Cluster, forwarder: Forwarder, apiserver: SocketEndpoint) -> None:
    services, pods = cluster.objects[SERVICES].values(), cluster.objects[PODS].values()
    await forwarder.update(routes(services, pods, apiserver=apiserver))


async def _change(cluster: Cluster) -> None:
    await cluster.changed.wait()
    cluster.changed.clear()


async def _main(slot_number: int) -> None:
    slot = default_slot(slot_number)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    apiserver = SocketEndpoint("127.0.0.1", slot.apiserver_port)
    await serve(pki_of(slot).service_proxy_kubeconfig, apiserver, slot.ready_file("service_proxy"), stopped)


def main() -> int:
    """Serve until SIGTERM; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m headrace_local.service_proxy", description=__doc__)
    parser.add_argument("--slot", type=int, default=0, help="number of the embedded cluster")
    options = parser.parse_args()
    log_to_stderr()
    asyncio.run(_main(options.slot))
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
