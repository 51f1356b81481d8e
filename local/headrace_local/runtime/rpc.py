"""gRPC services and calls made from descriptors instead of generated service classes.

A handler object has one method per call, in snake_case (`ListContainers` -> `list_containers`), that takes the
request and returns the response (an iterator of responses for a streaming call). Calls without a method are
answered UNIMPLEMENTED with the handler's `unimplemented` text.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf import message_factory  # type: ignore[import-untyped]  # stubs are a package of their own

from headrace_local.runtime.errors import (
    CriError,
    CriRefusedError,
    NotFoundError,
    TimedOutError,
    WrongStateError,
)

log = logging.getLogger(__name__)

_CODES: dict[type[CriError], grpc.StatusCode] = {
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    CriRefusedError: grpc.StatusCode.INVALID_ARGUMENT,
    WrongStateError: grpc.StatusCode.FAILED_PRECONDITION,
    TimedOutError: grpc.StatusCode.DEADLINE_EXCEEDED,
}


def service(descriptor: Any, handler: object) -> Any:
    """A generic handler that serves every call of the service's descriptor with the handler's methods."""
    methods = {method.name: _method(method, handler) for method in descriptor.methods}
    return grpc.method_handlers_generic_handler(descriptor.full_name, methods)


def call(channel: Any, descriptor: Any, name: str) -> Any:
    """The client side of a call: `call(channel, service, "Version")(request, timeout=3)`."""
    method = descriptor.methods_by_name[name]
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    return make(
        f"/{descriptor.full_name}/{name}",
        request_serializer=message_factory.GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )


def snake(name: str) -> str:
    """`ImageFsInfo` -> `image_fs_info`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _method(method: Any, handler: object) -> Any:
    function = getattr(handler, snake(method.name), None)
    codec = {
        "request_deserializer": message_factory.GetMessageClass(method.input_type).FromString,
        "response_serializer": message_factory.GetMessageClass(method.output_type).SerializeToString,
    }
    if function is None:
        text = f"{method.name}: {getattr(handler, 'unimplemented', 'not implemented')}"
        return grpc.unary_unary_rpc_method_handler(_refusing(text), **codec)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(lambda request, context: function(request), **codec)
    return grpc.unary_unary_rpc_method_handler(_answering(method.name, function), **codec)


def _answering(name: str, function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def answer(request: Any, context: Any) -> Any:
        try:
            return function(request)
        except CriError as error:
            code, text = _CODES.get(type(error), grpc.StatusCode.UNKNOWN), str(error)
            log.log(logging.DEBUG if isinstance(error, NotFoundError) else logging.WARNING, "%s: %s", name, error)
        except Exception as error:
            log.exception("%s failed", name)
            code, text = grpc.StatusCode.INTERNAL, f"a bug in the runtime (see its log): {error!r}"
        return context.abort(code, text)

    return answer


def _refusing(text: str) -> Callable[[Any, Any], Any]:
    def refuse(request: Any, context: Any) -> Any:
        return context.abort(grpc.StatusCode.UNIMPLEMENTED, text)

    return refuse
