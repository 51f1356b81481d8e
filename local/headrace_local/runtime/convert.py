"""Records and states as CRI messages (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace_local.cri import runtime_pb2 as pb
from headrace_local.runtime.images import Image
from headrace_local.runtime.processes import ResourceUsage
from headrace_local.runtime.records import ContainerRecord, SandboxRecord
from headrace_local.runtime.states import ContainerPhase, ContainerState

_STATE = {
    ContainerPhase.CREATED: pb.CONTAINER_CREATED,
    ContainerPhase.RUNNING: pb.CONTAINER_RUNNING,
    ContainerPhase.EXITED: pb.CONTAINER_EXITED,
}


def sandbox_item(record: SandboxRecord) -> Any:
    """A sandbox for ListPodSandbox."""
    return pb.PodSandbox(
        id=record.id,
        metadata=_sandbox_metadata(record),
        state=_sandbox_state(record),
        created_at=record.created_at,
        labels=record.labels,
        annotations=record.annotations,
    )


def sandbox_status(record: SandboxRecord) -> Any:
    """A sandbox for PodSandboxStatus."""
    namespaces = pb.NamespaceOption(network=pb.NODE if record.host_network else pb.POD, pid=pb.CONTAINER, ipc=pb.NODE)
    return pb.PodSandboxStatus(
        id=record.id,
        metadata=_sandbox_metadata(record),
        state=_sandbox_state(record),
        created_at=record.created_at,
        network=pb.PodSandboxNetworkStatus(ip=record.address),
        linux=pb.LinuxPodSandboxStatus(namespaces=pb.Namespace(options=namespaces)),
        labels=record.labels,
        annotations=record.annotations,
    )


def container_item(record: ContainerRecord, state: ContainerState) -> Any:
    """A container for ListContainers."""
    return pb.Container(
        id=record.id,
        pod_sandbox_id=record.sandbox,
        metadata=pb.ContainerMetadata(name=record.name, attempt=record.attempt),
        image=pb.ImageSpec(image=record.image),
        image_ref=record.image_ref,
        image_id=record.image_ref,
        state=_STATE[state.phase],
        created_at=record.created_at,
        labels=record.labels,
        annotations=record.annotations,
    )


def container_status(record: ContainerRecord, state: ContainerState) -> Any:
    """A container for ContainerStatus."""
    status = pb.ContainerStatus(
        id=record.id,
        metadata=pb.ContainerMetadata(name=record.name, attempt=record.attempt),
        state=_STATE[state.phase],
        created_at=record.created_at,
        started_at=state.started_at,
        image=pb.ImageSpec(image=record.image),
        image_ref=record.image_ref,
        image_id=record.image_ref,
        labels=record.labels,
        annotations=record.annotations,
        log_path=record.log_path,
        user=pb.ContainerUser(
            linux=pb.LinuxContainerUser(uid=record.uid, gid=record.gid, supplemental_groups=record.groups)
        ),
        mounts=[
            pb.Mount(
                container_path=mount.container_path,
                host_path=mount.host_path,
                readonly=mount.readonly,
                recursive_read_only=mount.recursive_readonly,
            )
            for mount in record.mounts
        ],
    )
    if state.exit is not None:
        status.finished_at = state.exit.finished_at
        status.exit_code = state.exit.exit_code
        status.reason = state.exit.reason
        status.message = state.exit.message
    return status


def container_stats(record: ContainerRecord, usage: ResourceUsage, now: int) -> Any:
    """CPU and memory use of a container. Its writable layer is in memory and not counted."""
    return pb.ContainerStats(
        attributes=pb.ContainerAttributes(
            id=record.id,
            metadata=pb.ContainerMetadata(name=record.name, attempt=record.attempt),
            labels=record.labels,
            annotations=record.annotations,
        ),
        cpu=_cpu(usage, now),
        memory=_memory(usage, now),
    )


def sandbox_stats(record: SandboxRecord, containers: list[Any], usage: ResourceUsage, now: int) -> Any:
    """CPU and memory use of a pod: the sum over its containers."""
    return pb.PodSandboxStats(
        attributes=pb.PodSandboxAttributes(
            id=record.id,
            metadata=_sandbox_metadata(record),
            labels=record.labels,
            annotations=record.annotations,
        ),
        linux=pb.LinuxPodSandboxStats(
            cpu=_cpu(usage, now),
            memory=_memory(usage, now),
            process=pb.ProcessUsage(timestamp=now, process_count=pb.UInt64Value(value=usage.processes)),
            containers=containers,
        ),
    )


def image_message(image: Image) -> Any:
    """An image for the image service. It has no real size, since it is the machine itself."""
    return pb.Image(
        id=image.id,
        repo_tags=[image.name],
        repo_digests=[],
        size=1,  # the kubelet takes 0 for "unknown" and logs that
        uid=None if image.uid is None else pb.Int64Value(value=image.uid),
        spec=pb.ImageSpec(image=image.name),
        pinned=True,
    )


def labels_match(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether `labels` contains every label of the selector."""
    return all(labels.get(key) == value for key, value in selector.items())


def _sandbox_metadata(record: SandboxRecord) -> Any:
    return pb.PodSandboxMetadata(name=record.name, uid=record.uid, namespace=record.namespace, attempt=record.attempt)


def _sandbox_state(record: SandboxRecord) -> Any:
    return pb.SANDBOX_READY if record.ready else pb.SANDBOX_NOTREADY


def _cpu(usage: ResourceUsage, now: int) -> Any:
    return pb.CpuUsage(timestamp=now, usage_core_nano_seconds=pb.UInt64Value(value=usage.cpu_nanoseconds))


def _memory(usage: ResourceUsage, now: int) -> Any:
    rss = pb.UInt64Value(value=usage.rss_bytes)
    return pb.MemoryUsage(timestamp=now, working_set_bytes=rss, rss_bytes=rss, usage_bytes=rss)
