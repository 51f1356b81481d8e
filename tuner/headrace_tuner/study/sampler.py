"""Optuna, ask-and-tell. The only file that imports it.

The study is rebuilt from the records before each question, and the sampler's seed comes from the spec's seed and the
trial's number. So a tuner that was killed asks the same question again and gets the same answer, and the same seed and
measurements give the same trials.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from headrace_api.v1alpha1.records import TrialRecord, TrialState
from headrace_api.v1alpha1.tuningrun import SamplerKind, SamplerSpec
from headrace_core.knobs.table import KnobKind, KnobValue
from headrace_core.workload.plans import derive_seed
from headrace_tuner.errors import TunerError
from headrace_tuner.study.space import Dimension, Space

POOR = 0.0  # score of a config that could not be measured: finite, and worse than any measured one
TOLD = (TrialState.COMPLETE, TrialState.INFEASIBLE, TrialState.FAILED)


def propose(
    space: Space, records: Sequence[TrialRecord], *, sampler: SamplerSpec, number: int, total: int | None
) -> dict[str, KnobValue]:
    """Knobs of trial `number`, given every trial before it. Raises `TunerError` if the sampler cannot run here."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=_sampler(sampler, number=number, total=total))
    distributions = {item.name: _distribution(item) for item in space.dimensions}
    for record in records:
        trial = _frozen(record, space, distributions)
        if trial is not None:
            study.add_trial(trial)
    return space.decode(study.ask(distributions).params)


def _frozen(
    record: TrialRecord, space: Space, distributions: dict[str, BaseDistribution]
) -> optuna.trial.FrozenTrial | None:
    """The record as an Optuna trial; None if it is void, or outside the space (a baseline may be)."""
    knobs = record.knobs.values()
    if record.state not in TOLD or not space.holds(knobs):
        return None
    return optuna.trial.create_trial(
        value=POOR if record.score is None else record.score,
        params={name: knobs[name] for name in space.names},
        distributions=distributions,
        constraints=dict(record.constraints),
        user_attrs={"reason": record.reason},
    )


def _sampler(spec: SamplerSpec, *, number: int, total: int | None) -> optuna.samplers.BaseSampler:
    seed = derive_seed(spec.seed, number)
    startup = min(10, max(4, (total or 30) // 3))  # a short study cannot spend ten trials on random points
    match spec.kind:
        case SamplerKind.RANDOM:
            return optuna.samplers.RandomSampler(seed=seed)
        case SamplerKind.TPE:
            return optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=startup, multivariate=True, constant_liar=False
            )
        case SamplerKind.GP:
            missing = [name for name in ("torch", "scipy") if importlib.util.find_spec(name) is None]
            if missing:
                raise TunerError(
                    f"spec.sampler.kind GP: Optuna's GP sampler needs {' and '.join(missing)}, not installed where the "
                    "tuner runs (its image leaves them out); use TPE or Random, or an image that has them"
                )
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup)


def _distribution(item: Dimension) -> BaseDistribution:
    if item.choices:
        return CategoricalDistribution(item.choices)
    if item.kind is KnobKind.INT:
        step = 1 if item.log else round(item.step or 1)
        return IntDistribution(round(item.low), round(item.high), log=item.log, step=step)
    return FloatDistribution(item.low, item.high, log=item.log, step=item.step)
