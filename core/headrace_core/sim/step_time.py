"""How long a step takes, learned from the steps that ran. Pure; times in seconds.

    T = step + row * rows + decode_key * sum(contexts) + prefill_pair * sum(t*s + t*t/2) + sample * sampled

with `t` tokens of a prefill chunk that has `s` before it. The coefficients minimise the *relative* error of past
steps, older ones weighing ever less, and are never negative. Two things keep that safe where a plain recursive least
squares is not: the sums are kept (not their inverse), and a weak prior is added whenever they are solved, so what a
long stretch of equal steps says nothing about goes back to the prior instead of drifting.

A line cannot follow small batches on a CPU, where a second row may double the time of a matrix product; so where the
line is systematically off for a small number of rows, a table of mean ratios corrects it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul

from headrace_core.scheduler.events import ScheduledSeq

TERMS = ("step", "row", "decode_key", "prefill_pair", "sample")
_SIZE = len(TERMS)
# Units in which the features are of order 1. Only the prior's meaning depends on them.
_SCALES = (1.0, 64.0, 16_384.0, 65_536.0, 16.0)
_PRIOR = 1e-8  # weight of "costs nothing", in steps of one second
_SEED_FLOOR = 1e-3  # what a seed still weighs, in steps, when many were seen
_JITTER = 1e-9  # of a diagonal: keeps the sums solvable where features move together
_TRUSTED = 32  # observations after which the model is believed more than a single step
_OUTLIER = 3.0  # a step that took this many times longer than predicted was held up, unless there was none like it
_KNOWN = 0.1  # leverage below which there were steps like it
_TABLE_ROWS = 16  # rows up to which the table corrects
_TABLE_MEMORY = 32.0  # observations after which the table forgets
_TABLE_MIN = 8  # observations before the table says anything
_TABLE_TOLERANCE = 0.03  # what the line may be off by without a correction
_TABLE_BIAS = 0.2  # beyond this the line as a whole is off: no time to correct rows
_TINY = 1e-9  # seconds
_FOREVER = 2**62  # tokens
_GAIN_LIMIT = 1e9

_Sums = list[list[float]]  # symmetric; only [i][j] with j >= i is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What a step's duration depends on. `decode_keys` and `prefill_keys` count the keys that queries look at once."""

    rows: int  # tokens
    prefill_rows: int  # of these, prefill
    decode_keys: int  # sum of the contexts of the decode rows, each with its own token
    prefill_keys: int  # sum of s + t over the chunks
    prefill_pairs: int  # sum of t*s + t*(t+1)/2: query-key pairs of causal attention
    sampled: int  # sequences that get a token

    @classmethod
    def of(cls, seqs: Iterable[ScheduledSeq], *, window: int | None = None) -> StepShape:
        """The shape of a step. With `window`, that of layers that see so many tokens back at most."""
        prefill_rows = decodes = decode_keys = prefill_keys = pairs = sampled = 0
        reach = _FOREVER if window is None else window
        for seq in seqs:
            sampled += seq.samples
            rows, end = len(seq.token_ids), seq.start + len(seq.token_ids)
            if not seq.is_prefill:
                decodes += rows
                decode_keys += min(end, reach)
            elif rows:
                prefill_rows += rows
                prefill_keys += min(end, reach - 1 + rows)
                pairs += _windowed_pairs(seq.start, rows, reach)
        return cls(
            rows=decodes + prefill_rows, prefill_rows=prefill_rows, decode_keys=decode_keys, prefill_keys=prefill_keys,
            prefill_pairs=pairs, sampled=sampled,
        )  # fmt: skip


def _windowed_pairs(start: int, rows: int, window: int) -> int:
    """Sum of min(position + 1, window) over the positions `start .. start + rows - 1`."""
    full = max(0, min(rows, window - start))  # queries that see everything before them
    return full * start + full * (full + 1) // 2 + (rows - full) * window


@dataclass(slots=True)
class _RelativeError:
    """Running mean and variance of actual over predicted, with a bounded memory."""

    count: float = 0.0
    mean: float = 1.0
    variance: float = 0.0

    def add(self, value: float) -> None:
        self.count = min(self.count + 1.0, _TABLE_MEMORY)
        step = (value - self.mean) / self.count
        self.variance = (1 - 1 / self.count) * (self.variance + step * (value - self.mean))
        self.mean += step

    @property
    def correction(self) -> float:
        """The mean where it is surely not 1, else 1."""
        if self.count < _TABLE_MIN:
            return 1.0
        doubt = 3.0 * math.sqrt(self.variance / self.count)
        return self.mean if abs(self.mean - 1.0) > max(doubt, _TABLE_TOLERANCE) else 1.0


class StepTimeModel:
    """Predicts step times and learns from them. `seed` has measured steps, such as a calibration's; it is optional.

    `memory` is the number of steps after which an observation weighs 1/e.
    """

    def __init__(self, seed: Sequence[tuple[StepShape, float]] = (), *, memory: float = 500.0) -> None:
        if not memory >= 1:
            raise ValueError(f"memory must be at least 1 step, got {memory}")
        self._forget = math.exp(-1.0 / memory)
        self._gain = 1.0  # what a new observation weighs: growing it is cheaper than shrinking all sums
        self._sums, self._targets = _square(0.0), [0.0] * _SIZE
        self._seed, self._seed_targets = _square(0.0), [0.0] * _SIZE
        self._solved = _square(_PRIOR)
        self._coefficients = (0.0,) * _SIZE
        self._table: dict[int, _RelativeError] = {}
        self._bias = self._error = 0.0
        self._observed = 0
        self._seeded = bool(seed)
        for shape, seconds in seed:
            _accumulate(self._seed, self._seed_targets, _features(shape), seconds, seconds**-2)
        self._solve()
        for shape, seconds in seed:
            for _ in range(_TABLE_MIN):  # a calibrated time stands for several
                self._note_ratio(shape.rows, seconds, self._line(_features(shape)))

    @property
    def ready(self) -> bool:
        """Whether there is anything to predict from."""
        return self._seeded or self._observed > 0

    @property
    def coefficients(self) -> Mapping[str, float]:
        """Seconds for one of each of `TERMS`; never negative."""
        return {name: value / scale for name, value, scale in zip(TERMS, self._coefficients, _SCALES, strict=True)}

    @property
    def bias(self) -> float:
        """Recent mean of (actual - predicted) / actual."""
        return self._bias

    @property
    def error(self) -> float:
        """Recent mean of |actual - predicted| / actual."""
        return self._error

    @property
    def corrections(self) -> Mapping[int, float]:
        """By number of rows: the factor on the line's prediction, where there is one."""
        found = {rows: item.correction for rows, item in sorted(self._table.items())}
        return {rows: factor for rows, factor in found.items() if factor != 1.0}

    def predict(self, shape: StepShape) -> float:
        """Seconds that a step will take, 0 or more; 0 before anything is known."""
        return self._corrected(shape.rows, self._line(_features(shape)))

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn from a step that took `seconds`. Values that are not durations are ignored."""
        if not (math.isfinite(seconds) and seconds > _TINY):
            return
        features = _features(shape)
        line = self._line(features)
        if self.ready:
            self._note_residual(seconds, self._corrected(shape.rows, line))
        trusted = self._observed >= _TRUSTED and line > _TINY
        limit = seconds
        if trusted and seconds > _OUTLIER * line and self._leverage(features, line) < _KNOWN:
            limit = _OUTLIER * line
        # By the prediction: weights by what was measured would favour the steps that happened to be quick.
        weight = (line if trusted and limit <= _OUTLIER * line else limit) ** -2
        self._observed += 1
        self._gain /= self._forget
        _accumulate(self._sums, self._targets, features, limit, weight * self._gain)
        # Solving costs more than adding: now and then, and when the model is surprised.
        if not trusted or self._observed % 8 == 0 or not 0.5 < line / seconds < 2.0:
            self._solve()
        if self._observed == _TRUSTED:
            self._table.clear()  # the seed's ratios belong to the old line
        elif trusted and abs(self._bias) < _TABLE_BIAS:
            self._note_ratio(shape.rows, limit, line)

    def _leverage(self, features: tuple[float, ...], line: float) -> float:
        """How much one more step like this would add: 0 for nothing, above 1 if nearly all of it is new."""
        spread = _solve_symmetric(self._solved, features, range(_SIZE))
        return math.fsum(map(mul, features, spread)) / (line * line)

    def _line(self, features: tuple[float, ...]) -> float:
        return math.fsum(map(mul, self._coefficients, features))

    def _corrected(self, rows: int, line: float) -> float:
        ratio = self._table.get(rows)
        return line if ratio is None else line * ratio.correction

    def _note_residual(self, seconds: float, predicted: float) -> None:
        off = (seconds - predicted) / seconds
        weight = max(0.02, 1.0 / (self._observed + 1))
        self._bias += weight * (off - self._bias)
        self._error += weight * (abs(off) - self._error)

    def _note_ratio(self, rows: int, seconds: float, line: float) -> None:
        if 0 < rows <= _TABLE_ROWS and line > _TINY:
            self._table.setdefault(rows, _RelativeError()).add(seconds / line)

    def _solve(self) -> None:
        gain, share = self._gain, max(_SEED_FLOOR, 1.0 / (1.0 + self._observed / 8.0))
        sums = _square(_PRIOR)
        for i in range(_SIZE):
            for j in range(i, _SIZE):
                sums[i][j] += self._sums[i][j] / gain + self._seed[i][j] * share
        targets = [self._targets[i] / gain + self._seed_targets[i] * share for i in range(_SIZE)]
        self._solved, self._coefficients = sums, solve_non_negative(sums, targets)
        if gain > _GAIN_LIMIT:
            self._sums = [[value / gain for value in row] for row in self._sums]
            self._targets = [value / gain for value in self._targets]
            self._gain = 1.0


def solve_non_negative(sums: _Sums, targets: Sequence[float]) -> tuple[float, ...]:
    """x >= 0 that nearly minimises x'Ax/2 - b'x, for `sums` A positive definite (upper half) and `targets` b.

    Negative results are left out, the worst first, and the rest solved again: not always the very optimum,
    always non-negative and finite.
    """
    kept = list(range(len(targets)))
    while kept:
        found = _solve_symmetric(sums, targets, kept)
        worst = min(range(len(kept)), key=found.__getitem__)
        if found[worst] >= 0:
            by_index = dict(zip(kept, found, strict=True))
            return tuple(by_index.get(at, 0.0) for at in range(len(targets)))
        del kept[worst]
    return (0.0,) * len(targets)


def _solve_symmetric(sums: _Sums, targets: Sequence[float], kept: Sequence[int]) -> list[float]:
    """Solve for the indices `kept` by Cholesky, after scaling the diagonal to 1."""
    size = len(kept)
    scale = [1.0 / math.sqrt(sums[i][i]) for i in kept]
    lower: _Sums = []
    forward: list[float] = []
    for a in range(size):
        row: list[float] = []
        for b in range(a + 1):
            entry = sums[kept[b]][kept[a]] * scale[a] * scale[b]
            entry -= sum(map(mul, row, lower[b] if b < a else row))
            if b == a:
                row.append(math.sqrt(max(entry + _JITTER, _JITTER)))
            else:
                row.append(entry / lower[b][b])
        lower.append(row)
        forward.append((targets[kept[a]] * scale[a] - sum(map(mul, row, forward))) / row[a])
    for a in reversed(range(size)):
        forward[a] /= lower[a][a]
        for b in range(a):
            forward[b] -= lower[a][b] * forward[a]
    return [value * factor for value, factor in zip(forward, scale, strict=True)]


def _features(shape: StepShape) -> tuple[float, ...]:
    return (
        1.0,
        shape.rows / _SCALES[1],
        shape.decode_keys / _SCALES[2],
        max(0.0, shape.prefill_pairs - shape.prefill_rows / 2) / _SCALES[3],
        shape.sampled / _SCALES[4],
    )


def _square(diagonal: float) -> _Sums:
    return [[diagonal if i == j else 0.0 for j in range(_SIZE)] for i in range(_SIZE)]


def _accumulate(
    sums: _Sums, targets: list[float], features: tuple[float, ...], seconds: float, weight: float
) -> None:  # fmt: skip
    """Add one step to the normal equations."""
    for i, one in enumerate(features):
        if one:
            share, row = one * weight, sums[i]
            targets[i] += share * seconds
            for j in range(i, _SIZE):
                row[j] += share * features[j]
