import pytest

from headrace_api.v1alpha1.search import KnobRange
from headrace_api.v1alpha1.tuningrun import SamplerKind, SamplerSpec
from headrace_tuner.errors import TunerError
from headrace_tuner.study.sampler import propose
from headrace_tuner.study.space import Space

SPACE = Space.of([KnobRange(name="prefillChunkSize", min=32.0, max=256.0, log=True)])


@pytest.mark.parametrize("kind", [SamplerKind.TPE, SamplerKind.RANDOM])
def test_the_same_records_give_the_same_question(make, kind) -> None:
    sampler = SamplerSpec(kind=kind, seed=7)
    trials = [
        make.trial(0, 10, prefill_chunk_size=1024)
    ]  # a baseline outside the space teaches nothing, and is no error
    asked = []
    for number in range(1, 14):
        knobs = propose(SPACE, trials, sampler=sampler, number=number, total=12)
        assert knobs == propose(SPACE, list(trials), sampler=sampler, number=number, total=12)
        assert SPACE.holds(knobs)
        asked.append(knobs["prefill_chunk_size"])
        trials.append(make.trial(number, 40 - knobs["prefill_chunk_size"] / 10, **knobs))
    assert len(set(asked)) > 4, "a sampler that restarts must not repeat itself"


def test_tpe_learns_where_it_is_good(make) -> None:
    trials = [
        make.trial(n, max(0.0, 40 - chunk / 7), prefill_chunk_size=chunk) for n, chunk in enumerate(range(40, 250, 15))
    ]
    asked = [
        propose(SPACE, trials, sampler=SamplerSpec(seed=seed), number=20, total=30)["prefill_chunk_size"]
        for seed in range(20)
    ]
    assert sorted(asked)[len(asked) // 2] < 110


def test_refused_and_crashed_configs_are_told_and_void_ones_are_not(make) -> None:
    from headrace_api.v1alpha1.records import TrialState

    refused = make.void(0, prefill_chunk_size=200).model_copy(
        update={"state": TrialState.INFEASIBLE, "constraints": make.goal().broken}
    )
    propose(SPACE, [refused, make.void(1, prefill_chunk_size=100)], sampler=SamplerSpec(), number=2, total=9)


def test_gp_without_torch_says_what_to_do(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(TunerError, match="use TPE or Random"):
        propose(SPACE, [], sampler=SamplerSpec(kind=SamplerKind.GP), number=0, total=9)
