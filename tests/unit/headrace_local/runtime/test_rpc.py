"""Services by descriptor: names, errors as gRPC codes, what is not implemented."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace_local.cri import runtime_pb2 as pb
from headrace_local.runtime import rpc
from headrace_local.runtime.errors import CriError, CriRefusedError, NotFoundError

RUNTIME = pb.DESCRIPTOR.services_by_name["RuntimeService"]


class Handler:
    unimplemented = "not here"

    def version(self, request: Any) -> Any:
        return pb.VersionResponse(version=request.version)

    def container_status(self, request: Any) -> Any:
        raise NotFoundError("no such container")

    def create_container(self, request: Any) -> Any:
        raise CriRefusedError("no command")

    def start_container(self, request: Any) -> Any:
        raise CriError("exec failed")

    def stop_container(self, request: Any) -> Any:
        raise ZeroDivisionError


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[Any]:
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((rpc.service(RUNTIME, Handler()),))
    server.add_insecure_port(f"unix:{tmp_path}/s")
    server.start()
    with grpc.insecure_channel(f"unix:{tmp_path}/s") as made:
        yield made
    server.stop(grace=None).wait()


def test_a_call_is_answered(channel: Any):
    assert rpc.call(channel, RUNTIME, "Version")(pb.VersionRequest(version="v1"), timeout=10).version == "v1"


@pytest.mark.parametrize(
    ("name", "request_message", "code", "text"),
    [
        ("ContainerStatus", pb.ContainerStatusRequest(), grpc.StatusCode.NOT_FOUND, "no such container"),
        ("CreateContainer", pb.CreateContainerRequest(), grpc.StatusCode.INVALID_ARGUMENT, "no command"),
        ("StartContainer", pb.StartContainerRequest(), grpc.StatusCode.UNKNOWN, "exec failed"),
        ("StopContainer", pb.StopContainerRequest(), grpc.StatusCode.INTERNAL, "ZeroDivisionError"),
        ("Attach", pb.AttachRequest(), grpc.StatusCode.UNIMPLEMENTED, "Attach: not here"),
    ],
)
def test_errors_have_the_code_that_the_kubelet_looks_at(
    channel: Any, name: str, request_message: Any, code: grpc.StatusCode, text: str
):
    with pytest.raises(grpc.RpcError) as raised:
        rpc.call(channel, RUNTIME, name)(request_message, timeout=10)
    assert raised.value.code() is code
    assert text in raised.value.details()


def test_streams_that_are_not_implemented_say_so(channel: Any):
    with pytest.raises(grpc.RpcError) as raised:
        list(rpc.call(channel, RUNTIME, "GetContainerEvents")(pb.GetEventsRequest(), timeout=10))
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_names():
    assert rpc.snake("ImageFsInfo") == "image_fs_info"
    assert rpc.snake("ListPodSandbox") == "list_pod_sandbox"
