"""What voids a trial, without a server: counts that disagree, a client at its limit, an engine that fell over."""

import pytest

from headrace_client.load.client import ErrorKind, RequestRecord
from headrace_core.workload.plans import RequestKind
from headrace_tuner.errors import TrialVoid
from headrace_tuner.measure.reading import ClientSide, check_client, check_counts


def record(error: str | None = None, *, lag: float = 0.0) -> RequestRecord:
    return RequestRecord(
        planned_at=1.0, sent_at=1.0 + lag, kind=RequestKind.SHORT, prompt_tokens=1, output_tokens=1, error=error
    )


OK, BUSY, LATE = record(), record("http_429"), record(ErrorKind.UNFINISHED)


@pytest.mark.parametrize(
    ("finished", "rejected", "early", "holds"),
    [
        (2, 1, 0, True),  # what never ended may or may not be counted
        (3, 1, 0, True),
        (4, 1, 0, False),  # somebody else sends requests
        (4, 1, 1, True),  # or a warm-up request came late
        (1, 1, 0, False),  # an answer that the engine did not count
        (0, 0, 0, False),
    ],
)
def test_counts_agree_but_for_what_nobody_can_place(finished, rejected, early, holds) -> None:
    client = ClientSide(records=[OK, OK, BUSY, LATE], early=early)
    if holds:
        check_counts(client, finished=finished, rejected=rejected)
    else:
        with pytest.raises(TrialVoid, match="the client 3 with an answer of 4 sent"):
            check_counts(client, finished=finished, rejected=rejected)


def test_refusals_server_errors_and_late_ones_are_data_not_void() -> None:
    check_client(ClientSide(records=[OK, BUSY, LATE, record("http_500"), record(ErrorKind.TIMEOUT)]))


@pytest.mark.parametrize("error", [ErrorKind.RESET, ErrorKind.CONNECT, ErrorKind.PROTOCOL, ErrorKind.WRONG_LENGTH])
def test_a_broken_stream_voids(error: str) -> None:
    with pytest.raises(TrialVoid, match="1 of 2 requests broke off") as caught:
        check_client(ClientSide(records=[OK, record(error)]))
    assert caught.value.restarted is (error in (ErrorKind.RESET, ErrorKind.CONNECT))


def test_a_client_at_its_limit_voids() -> None:
    with pytest.raises(TrialVoid, match="could not keep its schedule"):
        check_client(ClientSide(records=[OK] * 50 + [record(lag=0.3)], lag_limit=0.25))
    with pytest.raises(TrialVoid, match="could not be sent"):
        check_client(ClientSide(records=[OK, record(ErrorKind.CLIENT_FULL)]))
    check_client(ClientSide(records=[record(lag=0.2)], lag_limit=0.25))
