"""The picture."""

from itertools import pairwise

from modes_doubles import visits

from headrace_bench.modes.outcome import (
    group,
    make_cells,
)
from headrace_bench.modes.plot import draw


def test_the_picture_is_drawn_whatever_is_missing(tmp_path) -> None:
    for name, runs in (("whole", visits()), ("some", visits()[:2]), ("none", [])):
        path = tmp_path / f"{name}.part"
        draw(path, make_cells(runs, batch=4), group(runs), title=name)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_plotted_waits_end_where_the_data_ends() -> None:
    from headrace_bench.modes.plot import _survival

    drawn: dict = {}

    class Panel:
        def step(self, times, shares, **_: object) -> None:
            drawn.update(times=times, shares=shares)

    _survival(Panel(), [(1.0, False), (2.0, False), (3.0, True), (9.0, True)])
    assert drawn["shares"] == [1.0, 0.75, 0.5, 0.5]
    assert all(before <= after for before, after in pairwise(drawn["times"]))
