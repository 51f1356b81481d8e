"""Why an engine exited, as it writes it into its container's termination log for the operator to read. No I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

TERMINATION_LOG = "/dev/termination-log"  # Kubernetes' default; the kubelet mounts a file there
MAX_MESSAGE = 600  # characters, of at most 6 bytes; the kubelet keeps 4096 bytes


class ExitKind(StrEnum):
    """Where a person has to look for the cause."""

    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL = "Model"  # the model is there, but cannot be loaded or is not supported
    SETTINGS = "Settings"  # a flag, the config file or the environment
    OTHER = "Other"


@dataclass(frozen=True, slots=True)
class EngineExit:
    """The kind, and a sentence for a person."""

    kind: ExitKind
    message: str

    def to_text(self) -> str:
        """Content of the termination log."""
        content = {"kind": self.kind.value, "message": self.message[:MAX_MESSAGE]}
        return json.dumps(content, ensure_ascii=False)


def read_engine_exit(text: str) -> EngineExit | None:
    """Read what `to_text` made; None for other text, such as the tail of a log. An unknown kind becomes `OTHER`."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    if not isinstance(content, dict) or not isinstance(content.get("message"), str):
        return None
    kind = next((kind for kind in ExitKind if kind.value == content.get("kind")), ExitKind.OTHER)
    return EngineExit(kind, content["message"])
