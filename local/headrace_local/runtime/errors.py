"""What a CRI call may fail with; `rpc` turns each into the gRPC status that the kubelet looks at."""

from __future__ import annotations


class CriError(Exception):
    """The call cannot be done; the message goes to the pod's events as it is."""


class NotFoundError(CriError):
    """There is no such sandbox, container or image."""


class CriRefusedError(CriError):
    """The request asks for something that this runtime does not do, or contradicts itself."""


class WrongStateError(CriError):
    """The sandbox or container is not in a state that allows the call."""


class TimedOutError(CriError):
    """A command did not end in its time."""
