"""Assembles the runtime's gRPC server on the slot's socket."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from headrace_local.cri import runtime_pb2 as pb
from headrace_local.layout import Slot
from headrace_local.runtime import machine, rpc, spec
from headrace_local.runtime.containers import Containers, NodeSetting
from headrace_local.runtime.images import ImagePolicy
from headrace_local.runtime.records import ContainerRecords
from headrace_local.runtime.sandboxes import Sandboxes
from headrace_local.runtime.service import ImageHandler, RuntimeHandler

log = logging.getLogger(__name__)

#: Many, since stopping a container takes a worker for the whole grace period. They are started as needed.
_WORKERS = 64


def make_server(slot: Slot, extra_images: Collection[str] = ()) -> Any:
    """A server on the slot's socket, not started yet, with the pods of an earlier runtime. PermissionError."""
    slot.run_dir.mkdir(parents=True, exist_ok=True)
    slot.runtime_dir.mkdir(parents=True, exist_ok=True)
    slot.runtime_dir.chmod(0o711)
    facts = machine.look(slot)
    if os.geteuid() != 0:
        raise PermissionError(
            "the runtime makes mounts, so it needs root or a user namespace "
            "(unshare --user --map-root-user --mount); or use another cluster (--context)"
        )
    if facts.mapped_root:
        log.warning("running in a user namespace, which has no other users: runAsUser is ignored")
    records = ContainerRecords(slot.runtime_dir)
    images = ImagePolicy(frozenset(extra_images))
    image_env = spec.image_environment(sys.prefix, str(slot.cache_dir))
    containers = Containers(records, NodeSetting(facts, images, image_env))
    sandboxes = Sandboxes(
        slot,
        records,
        end_container=lambda container: containers.stop(container, 0),
        remove_container=containers.remove,
    )
    sandboxes.adopt()
    found = len(records.containers())
    log.info("found %d pods and %d containers of an earlier runtime", len(records.sandboxes()), found)
    server = grpc.server(ThreadPoolExecutor(_WORKERS, "cri"), options=[("grpc.so_reuseport", 0)])
    services = pb.DESCRIPTOR.services_by_name
    server.add_generic_rpc_handlers(
        (
            rpc.service(services["RuntimeService"], RuntimeHandler(records, sandboxes, containers)),
            rpc.service(services["ImageService"], ImageHandler(slot, images, records)),
        )
    )
    slot.runtime_socket.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{slot.runtime_socket}")
    return server
