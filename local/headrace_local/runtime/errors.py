"""Errors of CRI calls; `rpc` turns each into the gRPC status that the kubelet understands."""

from __future__ import annotations


class CriError(Exception):
    """The call failed; its message is shown unchanged in the pod's events."""


class NotFoundError(CriError):
    """There is no such sandbox, container or image."""


class CriRefusedError(CriError):
    """The request asks for something that this runtime does not support, or contradicts itself."""


class WrongStateError(CriError):
    """The sandbox or container is not in a state that allows the call."""


class TimedOutError(CriError):
    """A command did not end within its timeout."""
