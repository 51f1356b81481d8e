"""Values of options."""


def test_seconds_take_units() -> None:
    from headrace_bench.command_options import seconds

    assert [seconds(text) for text in ("20", "0.5", "500ms", "1m30s", 3)] == [20.0, 0.5, 0.5, 90.0, 3.0]
