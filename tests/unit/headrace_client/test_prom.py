"""The Prometheus client."""

import math
from typing import Any

import pytest

from headrace_client import prom
from headrace_client.errors import PrometheusError
from headrace_client.prom import Prometheus, PromSample


def ok(kind: str, result: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": result}}


def stamps(*times: float) -> dict[str, Any]:
    return ok("vector", [{"metric": {"pod": str(index)}, "value": [0, str(at)]} for index, at in enumerate(times)])


async def test_vector_at_a_time(double: Any) -> None:
    double.then(double.json(ok("vector", [{"metric": {"pod": "a"}, "value": [12.5, "3"]}])))
    async with Prometheus(double.url) as client:
        assert await client.query("up", at=12.5) == [PromSample({"pod": "a"}, 12.5, 3.0)]
    assert double.seen[0].query == {"query": "up", "time": "12.500"}


async def test_scalar_and_values_that_are_not_numbers(double: Any) -> None:
    pairs = [{"metric": {}, "value": [1, text]} for text in ("NaN", "+Inf", "-Inf")]
    double.then(double.json(ok("scalar", [1, "2"])), double.json(ok("vector", pairs)))
    async with Prometheus(double.url) as client:
        assert (await client.query("2"))[0].value == 2
        values = [sample.value for sample in await client.query("x")]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]


async def test_raw_samples_carry_the_time_of_their_scrape(double: Any) -> None:
    double.then(double.json(ok("matrix", [{"metric": {"pod": "a"}, "values": [[10.1, "1"], [11.1, "2"]]}])))
    async with Prometheus(double.url) as client:
        found = await client.raw("x", 10.1, 11.1)
    assert [(sample.timestamp, sample.value) for sample in found] == [(10.1, 1.0), (11.1, 2.0)]
    assert double.seen[0].query == {"query": "x[1001ms]", "time": "11.100"}


async def test_waits_until_the_last_pod_was_scraped(double: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prom, "POLL_SECONDS", 0)
    double.then(double.json(stamps()), double.json(stamps(101, 99)), double.json(stamps(101, 100.5)))
    async with Prometheus(double.url) as client:
        assert await client.wait_for_scrape('up{a="b"}', 100, timeout=60) == 100.5
    assert double.seen[0].query == {"query": 'timestamp(up{a="b"})'}


@pytest.mark.parametrize(
    ("answer", "why"), [(stamps(), "no series matches"), (stamps(97.5), "the oldest is 2.5 s before that")]
)
async def test_a_scrape_that_does_not_come_is_an_error(double: Any, answer: Any, why: str) -> None:
    double.then(double.json(answer))
    async with Prometheus(double.url) as client:
        with pytest.raises(PrometheusError, match=f"no scrape of up at or after 100.000 within 0 s: {why}"):
            await client.wait_for_scrape("up", 100, timeout=0)


async def test_a_refused_query_names_address_query_and_reason(double: Any) -> None:
    double.then(double.json({"status": "error", "error": "parse error"}, 400))
    async with Prometheus(double.url) as client:
        with pytest.raises(PrometheusError, match=rf"{double.url}: query up\(: HTTP 400: parse error"):
            await client.query("up(")


async def test_no_answer_names_address_and_query() -> None:
    async with Prometheus("http://127.0.0.1:1/") as client:
        with pytest.raises(PrometheusError, match=r"http://127.0.0.1:1: query up: no answer"):
            await client.query("up")


async def test_a_string_is_not_a_number(double: Any) -> None:
    double.then(double.json(ok("string", [1, "a"])))
    async with Prometheus(double.url) as client:
        with pytest.raises(PrometheusError, match="string"):
            await client.query('"a"')
