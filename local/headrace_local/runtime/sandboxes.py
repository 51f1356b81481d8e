"""Sandboxes (pods): an address and a record each. They need no process, since pods share the machine's network."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

from headrace_local.layout import Slot
from headrace_local.process_id import boot_id
from headrace_local.runtime.addresses import next_address
from headrace_local.runtime.errors import CriRefusedError, NotFoundError
from headrace_local.runtime.records import ContainerRecords, SandboxRecord

log = logging.getLogger(__name__)

# runtime.v1.NamespaceMode
_POD, _NODE = 0, 2


class Sandboxes:
    """Makes, stops and removes sandboxes. `end_container` and `remove_container` take a container's id."""

    def __init__(
        self,
        slot: Slot,
        records: ContainerRecords,
        *,
        end_container: Callable[[str], None],
        remove_container: Callable[[str], None],
    ) -> None:
        self._slot = slot
        self._records = records
        self._end_container = end_container
        self._remove_container = remove_container

    def run(self, config: Any, runtime_handler: str) -> SandboxRecord:
        """Make a sandbox with an address that no other one uses. CriRefusedError for unsupported options."""
        options = config.linux.security_context.namespace_options
        _check(options, runtime_handler)
        with self._records.lock:
            address = "" if options.network == _NODE else self._take_address()
            record = SandboxRecord(
                id=secrets.token_hex(32),
                name=config.metadata.name,
                uid=config.metadata.uid,
                namespace=config.metadata.namespace,
                attempt=config.metadata.attempt,
                hostname=config.hostname,
                address=address,
                host_network=options.network == _NODE,
                log_directory=config.log_directory,
                created_at=time.time_ns(),
                boot=boot_id(),
                labels=dict(config.labels),
                annotations=dict(config.annotations),
                dns_servers=tuple(config.dns_config.servers),
                dns_searches=tuple(config.dns_config.searches),
                dns_options=tuple(config.dns_config.options),
            )
            self._records.put_sandbox(record)
        log.info("pod %s/%s has address %s", record.namespace, record.name, address or "of the host")
        return record

    def stop(self, sandbox_id: str) -> None:
        """End its containers and release its address. Does nothing if it is unknown or stopped."""
        record = self._records.sandbox(sandbox_id)
        if record is None:
            return
        for container in self._records.containers(sandbox_id):
            self._end_container(container.id)
        self._records.put_sandbox(dataclasses.replace(record, ready=False))

    def remove(self, sandbox_id: str) -> None:
        """Stop it, and delete its record and its containers."""
        self.stop(sandbox_id)
        for container in self._records.containers(sandbox_id):
            self._remove_container(container.id)
        self._records.drop_sandbox(sandbox_id)

    def get(self, sandbox_id: str) -> SandboxRecord:
        """The sandbox with this id; NotFoundError if there is none."""
        record = self._records.sandbox(sandbox_id)
        if record is None:
            raise NotFoundError(f"sandbox {sandbox_id} does not exist")
        return record

    def adopt(self) -> None:
        """Called when the runtime starts: mark sandboxes from an earlier boot of the machine as not ready."""
        boot = boot_id()
        for record in self._records.sandboxes():
            if record.ready and record.boot != boot:
                self._records.put_sandbox(dataclasses.replace(record, ready=False))

    def _take_address(self) -> str:
        taken = {record.address for record in self._records.sandboxes() if record.ready}
        address, self._records.cursor = next_address(self._slot, self._records.cursor, taken)
        return address


def _check(options: Any, runtime_handler: str) -> None:
    """Refuse options that would silently not take effect. CriRefusedError."""
    if runtime_handler:
        raise CriRefusedError(f'the embedded cluster has no runtime class handler "{runtime_handler}"')
    if options.HasField("userns_options") and options.userns_options.mode == _POD:
        raise CriRefusedError("the embedded cluster has no user namespaces for pods (hostUsers: false)")
    if options.pid in {_POD, _NODE} and options.ByteSize():
        log.warning("shared process namespaces are not supported: each container keeps its own")
