"""What voids a trial, without a server: counts that disagree, a client at its limit, an engine that fell over."""

import pytest

from headrace_client.errors import PrometheusError
from headrace_client.load.client import ErrorKind, RequestRecord
from headrace_core.evidence.counts import Counts, sum_of
from headrace_core.evidence.windows import VoidKind, WindowVoidError
from headrace_core.workload.plans import RequestKind
from headrace_tuner.errors import TrialVoid
from headrace_tuner.measure.reading import ClientSide, WindowSpan, check_client, check_counts, halves, read_trial


def record(error: str | None = None, *, lag: float = 0.0) -> RequestRecord:
    return RequestRecord(
        planned_at=1.0, sent_at=1.0 + lag, kind=RequestKind.SHORT, prompt_tokens=1, output_tokens=1, error=error
    )


GONE = (ErrorKind.RESET, ErrorKind.CONNECT)
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
def test_counts_agree_except_for_requests_with_an_unknown_end(finished, rejected, early, holds) -> None:
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
    assert caught.value.kind is (VoidKind.RESTARTED if error in GONE else VoidKind.BROKEN_ANSWERS)


def test_a_client_at_its_limit_voids() -> None:
    with pytest.raises(TrialVoid, match="could not keep its schedule"):
        check_client(ClientSide(records=[OK] * 50 + [record(lag=0.3)], lag_limit=0.25))
    with pytest.raises(TrialVoid, match="could not be sent"):
        check_client(ClientSide(records=[OK, record(ErrorKind.CLIENT_FULL)]))
    check_client(ClientSide(records=[record(lag=0.2)], lag_limit=0.25))


class AwayPrometheus:
    """Fails each question, or says nothing of this engine."""

    def __init__(self, fault: Exception) -> None:
        self.fault = fault

    async def wait_for_scrape(self, *_: object) -> None:
        raise self.fault


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (PrometheusError("it restarted a minute ago"), VoidKind.UNSCRAPED),  # its words decide nothing
        (WindowVoidError(VoidKind.RESTARTED, "the counter fell"), VoidKind.RESTARTED),
        (WindowVoidError(VoidKind.MALFORMED, "not a count"), VoidKind.MALFORMED),
    ],
)
async def test_a_reading_is_void_for_the_reason_of_its_window(fault: Exception, kind: VoidKind) -> None:
    span = WindowSpan(revision="r", generation=2, start=0.0, end=20.0, drained=25.0)
    with pytest.raises(TrialVoid) as caught:
        await read_trial(AwayPrometheus(fault), span, ClientSide(records=[OK]))
    assert caught.value.kind is kind


def test_the_second_half_has_what_the_first_does_not() -> None:
    first = Counts(good=9, requests=12, seconds=10, output_tokens=300)
    whole = Counts(good=20, requests=24, seconds=20, output_tokens=700)
    assert halves(first, whole) == (first, Counts(good=11, requests=12, seconds=10, output_tokens=400))
    assert sum_of(halves(first, whole)) == whole
