"""The two CRI services: what each call does, in terms of sandboxes, containers and images."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from headrace_local.cri import runtime_pb2 as pb
from headrace_local.layout import Slot
from headrace_local.runtime import convert
from headrace_local.runtime.containers import Containers
from headrace_local.runtime.errors import NotFoundError
from headrace_local.runtime.images import Image, ImagePolicy
from headrace_local.runtime.processes import ResourceUsage, process_namespace, usage_by_namespace
from headrace_local.runtime.records import ContainerRecord, ContainerRecords
from headrace_local.runtime.sandboxes import Sandboxes
from headrace_local.runtime.states import ContainerPhase, ContainerState

log = logging.getLogger(__name__)

NAME = "headrace"
VERSION = "0.1.0"


class RuntimeHandler:
    """runtime.v1.RuntimeService."""

    unimplemented = (
        "the embedded cluster's runtime does not support this (no exec/attach/port-forward streams, no checkpoints): "
        "connect to pods by their address, which works from this machine, or use another cluster (--context)"
    )

    def __init__(self, records: ContainerRecords, sandboxes: Sandboxes, containers: Containers) -> None:
        self._records = records
        self._sandboxes = sandboxes
        self._containers = containers

    # -- the runtime itself ----------------------------------------------------------------------------------------

    def version(self, request: Any) -> Any:
        """Name and version of this runtime, and the CRI version."""
        return pb.VersionResponse(version="0.1.0", runtime_name=NAME, runtime_version=VERSION, runtime_api_version="v1")

    def status(self, request: Any) -> Any:
        """Always ready."""
        conditions = [pb.RuntimeCondition(type=kind, status=True) for kind in ("RuntimeReady", "NetworkReady")]
        return pb.StatusResponse(
            status=pb.RuntimeStatus(conditions=conditions), runtime_handlers=[pb.RuntimeHandler(name="")]
        )

    def runtime_config(self, request: Any) -> Any:
        """The cgroup driver that the kubelet should assume. No cgroups are made: limits are not enforced."""
        return pb.RuntimeConfigResponse(linux=pb.LinuxRuntimeConfiguration(cgroup_driver=pb.CGROUPFS))

    def update_runtime_config(self, request: Any) -> Any:
        """Does nothing: the pod range comes from the slot, not from the kubelet."""
        return pb.UpdateRuntimeConfigResponse()

    # -- sandboxes -------------------------------------------------------------------------------------------------

    def run_pod_sandbox(self, request: Any) -> Any:
        """Make a sandbox; returns its id."""
        return pb.RunPodSandboxResponse(pod_sandbox_id=self._sandboxes.run(request.config, request.runtime_handler).id)

    def stop_pod_sandbox(self, request: Any) -> Any:
        """End the containers of a sandbox."""
        self._sandboxes.stop(request.pod_sandbox_id)
        return pb.StopPodSandboxResponse()

    def remove_pod_sandbox(self, request: Any) -> Any:
        """Delete a sandbox and its containers."""
        self._sandboxes.remove(request.pod_sandbox_id)
        return pb.RemovePodSandboxResponse()

    def pod_sandbox_status(self, request: Any) -> Any:
        """Status of one sandbox."""
        return pb.PodSandboxStatusResponse(
            status=convert.sandbox_status(self._sandboxes.get(request.pod_sandbox_id)), timestamp=time.time_ns()
        )

    def list_pod_sandbox(self, request: Any) -> Any:
        """The sandboxes that match the filter."""
        items = (convert.sandbox_item(record) for record in self._records.sandboxes())
        return pb.ListPodSandboxResponse(items=[item for item in items if _sandbox_passes(request.filter, item)])

    def update_pod_sandbox_resources(self, request: Any) -> Any:
        """Does nothing, since limits are not enforced."""
        self._sandboxes.get(request.pod_sandbox_id)
        return pb.UpdatePodSandboxResourcesResponse()

    # -- containers ------------------------------------------------------------------------------------------------

    def create_container(self, request: Any) -> Any:
        """Create a container without starting it; returns its id."""
        sandbox = self._sandboxes.get(request.pod_sandbox_id)
        return pb.CreateContainerResponse(container_id=self._containers.create(sandbox, request.config).id)

    def start_container(self, request: Any) -> Any:
        """Start a created container."""
        self._containers.start(request.container_id)
        return pb.StartContainerResponse()

    def stop_container(self, request: Any) -> Any:
        """Send the stop signal, then SIGKILL after the timeout (seconds)."""
        self._containers.stop(request.container_id, request.timeout)
        return pb.StopContainerResponse()

    def remove_container(self, request: Any) -> Any:
        """Delete a container."""
        self._containers.remove(request.container_id)
        return pb.RemoveContainerResponse()

    def list_containers(self, request: Any) -> Any:
        """The containers that match the filter."""
        items = (convert.container_item(record, state) for record, state in self._containers.everything())
        return pb.ListContainersResponse(containers=[item for item in items if _container_passes(request.filter, item)])

    def container_status(self, request: Any) -> Any:
        """Status of one container; with `verbose`, also its pid."""
        record, state = self._containers.get(request.container_id), self._containers.state(request.container_id)
        info = {"pid": str(state.init.pid)} if request.verbose and state.init is not None else {}
        return pb.ContainerStatusResponse(status=convert.container_status(record, state), info=info)

    def update_container_resources(self, request: Any) -> Any:
        """Does nothing, since limits are not enforced."""
        self._containers.get(request.container_id)
        return pb.UpdateContainerResourcesResponse()

    def reopen_container_log(self, request: Any) -> Any:
        """Reopen the log file, after the kubelet has rotated it."""
        self._containers.reopen_log(request.container_id)
        return pb.ReopenContainerLogResponse()

    def exec_sync(self, request: Any) -> Any:
        """Run the command of a probe or hook."""
        code, out, err = self._containers.execute(request.container_id, list(request.cmd), request.timeout or None)
        return pb.ExecSyncResponse(exit_code=code, stdout=out, stderr=err)

    # -- statistics ------------------------------------------------------------------------------------------------

    def container_stats(self, request: Any) -> Any:
        """CPU and memory use of one container."""
        record, state = self._containers.get(request.container_id), self._containers.state(request.container_id)
        usage = _usage_of(state, usage_by_namespace())
        return pb.ContainerStatsResponse(stats=convert.container_stats(record, usage, time.time_ns()))

    def list_container_stats(self, request: Any) -> Any:
        """CPU and memory use of the running containers that match the filter."""
        wanted, now = request.filter, time.time_ns()
        stats = [
            convert.container_stats(record, usage, now)
            for record, usage in self._usages()
            if wanted.id in ("", record.id)
            and wanted.pod_sandbox_id in ("", record.sandbox)
            and convert.labels_match(wanted.label_selector, record.labels)
        ]
        return pb.ListContainerStatsResponse(stats=stats)

    def pod_sandbox_stats(self, request: Any) -> Any:
        """CPU and memory use of one sandbox."""
        self._sandboxes.get(request.pod_sandbox_id)
        chosen = pb.PodSandboxStatsFilter(id=request.pod_sandbox_id)
        return pb.PodSandboxStatsResponse(stats=self._sandbox_stats(chosen)[0])

    def list_pod_sandbox_stats(self, request: Any) -> Any:
        """CPU and memory use of the sandboxes that match the filter."""
        return pb.ListPodSandboxStatsResponse(stats=self._sandbox_stats(request.filter))

    def _usages(self) -> list[tuple[ContainerRecord, ResourceUsage]]:
        by_namespace = usage_by_namespace()
        running = [
            (record, state) for record, state in self._containers.everything() if state.phase is ContainerPhase.RUNNING
        ]
        return [(record, _usage_of(state, by_namespace)) for record, state in running]

    def _sandbox_stats(self, wanted: Any) -> list[Any]:
        usages, now, stats = self._usages(), time.time_ns(), []
        for sandbox in self._records.sandboxes():
            if wanted.id in ("", sandbox.id) and convert.labels_match(wanted.label_selector, sandbox.labels):
                own = [(record, usage) for record, usage in usages if record.sandbox == sandbox.id]
                containers = [convert.container_stats(record, usage, now) for record, usage in own]
                total = sum((usage for _, usage in own), ResourceUsage())
                stats.append(convert.sandbox_stats(sandbox, containers, total, now))
        return stats


class ImageHandler:
    """runtime.v1.ImageService."""

    unimplemented = "the embedded cluster has no image store"

    def __init__(self, slot: Slot, policy: ImagePolicy, records: ContainerRecords) -> None:
        self._folder = slot.runtime_dir
        self._policy = policy
        self._records = records
        self._pulled: dict[str, Image] = {}

    def list_images(self, request: Any) -> Any:
        """The images that were pulled or that containers use."""
        names = {record.image for record in self._records.containers()} | set(self._pulled)
        images = [self._policy.find(name) for name in sorted(names) if self._known(name)]
        wanted = request.filter.image.image
        return pb.ListImagesResponse(
            images=[convert.image_message(image) for image in images if wanted in ("", image.name, image.id)]
        )

    def image_status(self, request: Any) -> Any:
        """Allowed images always exist. For others the answer is empty, so the kubelet pulls and gets the error."""
        image = self._known(request.image.image)
        return pb.ImageStatusResponse(image=convert.image_message(image) if image else None)

    def pull_image(self, request: Any) -> Any:
        """Fetches nothing. NotFoundError lists the images that exist."""
        image = self._policy.find(request.image.image)
        self._pulled[image.name] = image
        return pb.PullImageResponse(image_ref=image.id)

    def remove_image(self, request: Any) -> Any:
        """Take the image off the list of pulled ones."""
        self._pulled.pop(request.image.image, None)
        return pb.RemoveImageResponse()

    def image_fs_info(self, request: Any) -> Any:
        """The disk that holds the node's state; the kubelet watches its free space."""
        usage = pb.FilesystemUsage(
            timestamp=time.time_ns(),
            fs_id=pb.FilesystemIdentifier(mountpoint=str(_mount_point(self._folder))),
            used_bytes=pb.UInt64Value(value=0),
            inodes_used=pb.UInt64Value(value=0),
        )
        return pb.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])

    def _known(self, reference: str) -> Image | None:
        by_id = {image.id: image for image in self._pulled.values()}
        if reference in by_id:
            return by_id[reference]
        try:
            return self._policy.find(reference)
        except NotFoundError:
            return None


def _sandbox_passes(wanted: Any, item: Any) -> bool:
    return (
        wanted.id in ("", item.id)
        and (not wanted.HasField("state") or wanted.state.state == item.state)
        and convert.labels_match(wanted.label_selector, item.labels)
    )


def _container_passes(wanted: Any, item: Any) -> bool:
    return (
        wanted.id in ("", item.id)
        and wanted.pod_sandbox_id in ("", item.pod_sandbox_id)
        and (not wanted.HasField("state") or wanted.state.state == item.state)
        and convert.labels_match(wanted.label_selector, item.labels)
    )


def _usage_of(state: ContainerState, by_namespace: dict[str, ResourceUsage]) -> ResourceUsage:
    if state.phase is not ContainerPhase.RUNNING or state.init is None or not state.init.alive():
        return ResourceUsage()
    try:
        return by_namespace.get(process_namespace(state.init.pid), ResourceUsage())
    except ProcessLookupError:
        return ResourceUsage()


def _mount_point(folder: Path) -> Path:
    """The mount point of the file system that holds a folder."""
    return next(path for path in (folder, *folder.parents) if os.path.ismount(path))
