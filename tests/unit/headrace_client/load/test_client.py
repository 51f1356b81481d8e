"""The load client against a server that breaks in every way. It asserts orders of magnitude, never speeds."""

import asyncio

import pytest
from aiohttp import web

from headrace_client.errors import EndpointError
from headrace_client.load.client import (
    Endpoint,
    ErrorKind,
    LoadClient,
    RequestRecord,
    find_endpoint,
    load_session,
)
from headrace_core.evidence.percentiles import distribution
from headrace_core.workload.plans import PlannedRequest, RequestKind


def planned(*times: float, tokens: int = 3) -> list[PlannedRequest]:
    return [PlannedRequest(at=at, prompt_tokens=5, output_tokens=tokens, kind=RequestKind.SHORT) for at in times]


async def drive(server, plan, *, drain: float = 5.0, **more: object) -> list[RequestRecord]:
    async with load_session() as session:
        endpoint = Endpoint(url=server.url, model="fake")
        return await LoadClient(endpoint=endpoint, session=session, salt="s", **more).open_loop(plan, drain=drain)


async def test_whole_answers_are_recorded_in_order_of_arrival(server) -> None:
    records = await drive(server, planned(0.0, 0.01, 0.02))
    assert [record.error for record in records] == [None] * 3
    assert [record.planned_at for record in records] == [0.0, 0.01, 0.02]
    assert all(record.output_tokens == 3 and len(record.gaps) == 2 for record in records)
    assert all(record.e2e == pytest.approx(record.ttft + sum(record.gaps)) for record in records)


async def test_prompt_and_output_lengths_are_asked_for_exactly(server) -> None:
    await drive(server, planned(0.0, 0.0, tokens=7))
    first, second = server.bodies
    assert len(first["prompt"]) == 5
    assert first["prompt"] != second["prompt"], "a warm prefix cache would flatter the second"
    assert first["max_tokens"] == 7
    assert first["ignore_eos"] is True
    assert first["temperature"] == 0
    assert first["stream_options"] == {"include_usage": True}


async def test_latency_counts_from_the_planned_arrival_not_from_the_sending(server) -> None:
    # The whole plan is overdue from the start, so its requests are sent at once, each as late as its plan says.
    records = await drive(server, planned(-5.0, -1.0))
    assert [round(record.lag) for record in records] == [5, 1]
    assert all(record.ttft >= record.lag for record in records)
    assert distribution(record.lag for record in records).max == pytest.approx(records[0].lag)


async def test_a_slow_server_does_not_slow_the_arrivals(server) -> None:
    entered, all_in = [], asyncio.Event()

    async def handler(request, body, number):
        entered.append(number)
        if len(entered) == 20:
            all_in.set()
        await all_in.wait()  # no request is answered before all have arrived: a closed loop would hang here
        return await server.well(request, body, number)

    server.handler = handler
    records = await drive(server, planned(*(0.001 * index for index in range(20))))
    assert [record.error for record in records] == [None] * 20


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_refusal_is_its_own_kind(server, status: int) -> None:
    async def handler(_request, _body, _number):
        return web.json_response({"error": {"message": "too many"}}, status=status)

    server.handler = handler
    (record,) = await drive(server, planned(0.0))
    assert record.error == f"http_{status}"
    assert "too many" in record.detail
    assert record.ttft is None
    assert record.e2e is None


async def test_a_reset_mid_stream_keeps_what_came_before(server) -> None:
    async def handler(request, _body, _number):
        response = await server.start(request)
        await server.token(response)
        await server.token(response)
        request.transport.abort()
        return response

    server.handler = handler
    (record,) = await drive(server, planned(0.0))
    assert record.error in (ErrorKind.RESET, ErrorKind.PROTOCOL)
    assert record.output_tokens == 2
    assert record.ttft is not None
    assert record.e2e is None


async def test_a_stream_that_just_ends_is_an_error(server) -> None:
    async def handler(request, _body, _number):
        response = await server.start(request)
        await server.token(response)
        return response

    server.handler = handler
    (record,) = await drive(server, planned(0.0))
    assert record.error == ErrorKind.PROTOCOL
    assert "without a finish reason" in record.detail


async def test_an_answer_of_another_length_is_an_error(server) -> None:
    async def handler(request, body, _number):
        return await server.well(request, body | {"max_tokens": 2}, 0)

    server.handler = handler
    (record,) = await drive(server, planned(0.0))
    assert record.error == ErrorKind.WRONG_LENGTH
    assert record.detail == "2 tokens of 3"


async def test_a_missing_server_is_a_connection_error(server) -> None:
    server.url = "http://127.0.0.1:1"
    (record,) = await drive(server, planned(0.0))
    assert record.error == ErrorKind.CONNECT


async def hang(server, request):
    response = await server.start(request)
    await server.token(response)
    await asyncio.Event().wait()
    return response


async def test_requests_in_flight_after_the_drain_are_unfinished(server) -> None:
    async def handler(request, body, number):
        return await (hang(server, request) if number == 0 else server.well(request, body, number))

    server.handler = handler
    records = await drive(server, planned(0.0, 0.05), drain=2.0)
    assert [record.error for record in records] == [ErrorKind.UNFINISHED, None]


async def test_a_request_has_a_time_limit_of_its_own(server) -> None:
    server.handler = lambda request, _body, _number: hang(server, request)
    (record,) = await drive(server, planned(0.0), timeout=0.2)
    assert record.error == ErrorKind.TIMEOUT


async def test_a_client_that_is_full_says_so_instead_of_waiting(server) -> None:
    server.handler = lambda request, _body, _number: hang(server, request)
    records = await drive(server, planned(0.0, 0.0, 0.0), drain=0.2, max_in_flight=1)
    assert [record.error for record in records].count(ErrorKind.CLIENT_FULL) == 2


async def test_cancelling_closes_every_stream(server) -> None:
    server.handler = lambda request, _body, _number: hang(server, request)
    load = asyncio.create_task(drive(server, planned(0.0, 60.0)))
    while not server.bodies:
        await asyncio.sleep(0.01)
    load.cancel()
    with pytest.raises(asyncio.CancelledError):
        await load
    assert not [task for task in asyncio.all_tasks() if "LoadClient" in repr(task.get_coro())]


async def test_a_closed_loop_never_has_more_in_flight_than_asked_for(server) -> None:
    under_way, most = 0, 0

    async def handler(request, body, number):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        response = await server.well(request, body, number)
        under_way -= 1
        return response

    server.handler = handler
    async with load_session() as session:
        client = LoadClient(endpoint=Endpoint(url=server.url, model="fake"), session=session, salt="s")
        records = await client.closed_loop(planned(*range(12)), concurrency=3, duration=30.0)
    assert len(records) == 12
    assert most <= 3
    assert all(record.lag < 1 for record in records), "the plan's times mean nothing in a closed loop"


async def test_a_closed_loop_that_must_not_wait_gives_up_the_requests_in_flight(server) -> None:
    server.handler = lambda request, _body, _number: hang(server, request)
    async with load_session() as session:
        client = LoadClient(endpoint=Endpoint(url=server.url, model="fake"), session=session, salt="s")
        async with asyncio.timeout(10):
            records = await client.closed_loop(planned(*range(12)), concurrency=3, duration=0.2, drain=0.0)
    assert [record.error for record in records] == [ErrorKind.UNFINISHED] * 3
    assert all(record.output_tokens == 1 for record in records), "tokens that came before count"


async def test_text_is_kept_on_request_only(server) -> None:
    assert [record.text for record in await drive(server, planned(0.0))] == [""]
    assert [record.text for record in await drive(server, planned(0.0), keep_text=True)] == ["xxx"]


async def test_find_endpoint_reads_the_model(server) -> None:
    async with load_session() as session:
        assert await find_endpoint(session, server.url + "/v1/") == Endpoint(
            url=server.url, model="fake", max_model_len=512
        )


@pytest.mark.parametrize(
    ("models", "status", "words"),
    [
        ({"data": []}, 200, "it lists none"),
        ({"oops": 1}, 200, "no OpenAI server answers there"),
        ({"error": "denied"}, 401, "HTTP 401"),
    ],
)
async def test_find_endpoint_says_what_is_wrong(server, models: object, status: int, words: str) -> None:
    server.models, server.models_status = models, status
    async with load_session() as session:
        with pytest.raises(EndpointError, match=words):
            await find_endpoint(session, server.url)
        with pytest.raises(EndpointError, match="no OpenAI server answers there"):
            await find_endpoint(session, "http://127.0.0.1:1")
