"""Ends every container of a slot, from the records on disk; needs no running runtime."""

from __future__ import annotations

import logging
import time

from headrace_local.layout import Slot
from headrace_local.runtime.containers import kill
from headrace_local.runtime.records import ContainerRecords
from headrace_local.runtime.states import ContainerPhase, read_state

log = logging.getLogger(__name__)


def stop_all(slot: Slot, grace: float = 5.0) -> int:
    """Send stop signals, kill what is left after `grace` seconds, delete all records; returns how many ran.

    Call it after the kubelet and the runtime have ended, or the kubelet would start the containers again.
    """
    if not slot.runtime_dir.exists():
        return 0
    records = ContainerRecords(slot.runtime_dir)
    states = [(record, read_state(records.folder(record.id))) for record in records.containers()]
    running = [(record, state) for record, state in states if state.phase is ContainerPhase.RUNNING]
    for record, state in running:
        if state.init is not None:
            state.init.send(record.stop_signal)
    deadline = time.monotonic() + grace
    for record, state in running:
        if state.supervisor is not None and not state.supervisor.wait(deadline - time.monotonic()):
            log.info("container %s did not end within %g s: killing it", record.name, grace)
        kill(records.folder(record.id))
    for record in records.containers():
        records.drop_container(record.id)
    for sandbox in records.sandboxes():
        records.drop_sandbox(sandbox.id)
    return len(running)
