"""A finding becomes a condition."""

from datetime import UTC, datetime

import pytest

from headrace_api.v1alpha1.conditions import ConditionType, Reason
from headrace_operator.cluster.findings import Finding, no, yes

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("finding", "status"),
    [
        (yes(Reason.SERVING, "m"), "True"),
        (no(Reason.SERVING, "m"), "False"),
        (Finding(None, Reason.SERVING, "m"), "Unknown"),
    ],
)
def test_whether_it_holds_is_the_status(finding: Finding, status: str) -> None:
    made = finding.condition(ConditionType.READY, generation=3, now=NOW)
    assert (made.type, made.status.value, made.reason, made.message) == ("Ready", status, "Serving", "m")
    assert (made.observed_generation, made.last_transition_time) == (3, NOW)
