"""Records of requests for tests."""

from headrace_client.load.client import RequestRecord
from headrace_core.workload.plans import RequestKind


def record(at: float = 3.0, **more: object) -> RequestRecord:
    base = {
        "planned_at": at, "sent_at": at, "kind": RequestKind.SHORT, "prompt_tokens": 10, "output_tokens": 3,
        "ttft": 0.2, "gaps": (0.1, 0.1), "e2e": 0.4, "wanted_tokens": 3, "counted": True,
    }  # fmt: skip
    return RequestRecord(**base | more)


def failed(at: float = 3.0, error: str = "http_503", **more: object) -> RequestRecord:
    return record(at, **{"error": error, "ttft": None, "gaps": (), "e2e": None, "output_tokens": 0} | more)
