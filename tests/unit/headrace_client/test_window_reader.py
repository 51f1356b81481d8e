"""A window is the difference of two scrapes, or void."""

import math
from dataclasses import replace

import pytest

from headrace_client.prom import PromSample
from headrace_client.window_reader import Edge, between, selector
from headrace_core.evidence.windows import VoidKind, WindowVoidError

POD = {"namespace": "demo", "pod": "chat-1"}
KEY = tuple(sorted(POD.items()))


def sample(name: str, value: float, **labels: str) -> PromSample:
    return PromSample({"__name__": name, **POD, **labels}, 0.0, value)


def edge(at: float, *, total: float, good: float, started: float = 5.0, generation: str = "1") -> Edge:
    labels = {"config_generation": generation}
    samples = [
        sample("headrace:slo_requests_total", total, **labels),
        sample("headrace:slo_requests_good_total", good, **labels),
        sample("headrace:output_tokens_total", 10 * total, **labels),
        *(sample("headrace:ttft_seconds_bucket", total, le=le, **labels) for le in ("0.1", "+Inf")),
        *(sample("headrace:itl_seconds_bucket", 9 * total, le=le, **labels) for le in ("0.05", "+Inf")),
    ]
    return Edge(at, {KEY: started}, tuple(samples))


def test_a_window_counts_requests_between_its_edges() -> None:
    stats = between(edge(100.0, total=4, good=2), edge(110.0, total=24, good=18))
    assert (stats.counts.requests, stats.counts.good, stats.counts.output_tokens) == (20, 16, 200)
    assert stats.counts.attainment == 0.8
    assert stats.counts.goodput == pytest.approx(1.6)
    assert stats.ttft_p95 == pytest.approx(0.095)
    assert stats.itl_max == 0.05


def test_a_series_born_inside_the_window_starts_at_zero() -> None:
    before = Edge(100.0, {KEY: 5.0}, ())
    stats = between(before, edge(110.0, total=6, good=6, generation="2"))
    assert (stats.counts.requests, stats.counts.good) == (6, 6)


def test_a_silent_generation_of_another_slo_set_is_ignored() -> None:
    old = sample("headrace:ttft_seconds_bucket", 7, le="0.3", config_generation="0", slo="b")
    rest = sample("headrace:ttft_seconds_bucket", 7, le="+Inf", config_generation="0", slo="b")
    before, after = edge(100.0, total=4, good=2), edge(110.0, total=24, good=18)
    stats = between(replace(before, samples=(*before.samples, old, rest)),
                    replace(after, samples=(*after.samples, old, rest)))  # fmt: skip
    assert stats.ttft_p95 == pytest.approx(0.095)
    spoke = [replace(one, value=8.0) for one in (old, rest)]
    with pytest.raises(WindowVoidError, match="different bucket bounds"):
        between(replace(before, samples=(*before.samples, old, rest)), replace(after, samples=(*after.samples, *spoke)))


def test_an_slo_id_on_the_joint_counters_changes_nothing() -> None:
    def labelled(one: Edge) -> Edge:
        slo = {"slo": "df77ca58"}
        return replace(one, samples=tuple(
            replace(item, labels={**item.labels, **slo}) if "slo_requests" in item.labels["__name__"] else item
            for item in one.samples
        ))  # fmt: skip

    plain = between(edge(100.0, total=4, good=2), edge(110.0, total=24, good=18))
    assert between(labelled(edge(100.0, total=4, good=2)), labelled(edge(110.0, total=24, good=18))) == plain


def test_an_empty_window_has_no_attainment() -> None:
    assert math.isnan(between(edge(100.0, total=4, good=2), edge(110.0, total=4, good=2)).counts.attainment)


@pytest.mark.parametrize(
    ("before", "after", "kind", "why"),
    [
        (edge(100.0, total=4, good=2), edge(110.0, total=9, good=2, started=6.0), VoidKind.RESTARTED, "restarted"),
        (edge(100.0, total=4, good=2), Edge(110.0, {}, ()), VoidKind.RESTARTED, "went away"),
        (Edge(100.0, {}, ()), edge(110.0, total=4, good=2), VoidKind.DISTURBED, "appeared"),
        (edge(100.0, total=4, good=2), edge(110.0, total=3, good=2), VoidKind.RESTARTED, "fell"),
        (edge(100.0, total=4, good=2), Edge(110.0, {KEY: 5.0}, ()), VoidKind.RESTARTED, "vanished"),
    ],
)
def test_a_window_over_more_than_one_process_is_void(before: Edge, after: Edge, kind: VoidKind, why: str) -> None:
    with pytest.raises(WindowVoidError, match=why) as caught:
        between(before, after)
    assert caught.value.kind is kind


def test_selector_quotes_values() -> None:
    assert selector("m", {"a": 'x"y'}, {"b": "z"}) == 'm{a="x\\"y",b="z"}'
    assert selector("", {"a": "x"}, by_name="m|n") == '{__name__=~"m|n",a="x"}'
