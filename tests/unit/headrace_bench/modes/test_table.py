"""Notes below the table."""

from modes_doubles import record, run

from headrace_bench.modes.design import Level, Mode
from headrace_bench.modes.outcome import (
    make_cells,
)
from headrace_bench.modes.table import cell_notes
from headrace_client.load.client import ErrorKind


def test_notes_name_overload_errors_and_a_limited_client() -> None:
    records = [record(n, 0.1, at=n / 5, sent_at=n / 5 + 1.0) for n in range(50)] + [record(99, None, error="http_500")]
    notes = cell_notes(make_cells([run(Mode.CHUNKED, Level.HIGH, records)], batch=4))
    assert any("errors {'http_500': 1}" in note for note in notes)
    assert any("the client was a limit" in note for note in notes)
    growing = [record(n, None, at=n / 5, error=ErrorKind.UNFINISHED) for n in range(50)]
    assert any(
        "overloaded" in note for note in cell_notes(make_cells([run(Mode.STATIC, Level.HIGH, growing)], batch=4))
    )
