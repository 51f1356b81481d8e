"""Warnings about a busy machine or a load that is too light."""


def test_a_busy_machine_and_too_few_requests_are_told() -> None:
    from headrace_bench.modes.design import LoadRates, Windows
    from headrace_bench.modes.run import _say_if_busy, _say_if_few

    said: list[str] = []

    class Stage:
        say = staticmethod(said.append)

    _say_if_busy({"load_average": 0.4, "cores": 2}, Stage())
    _say_if_busy({"load_average": None, "cores": 2}, Stage())
    windows = Windows(low=1, high=30, warmup=1, drain=1, full=1, full_static=1)
    _say_if_few(LoadRates(low=0.5, high=2.0, capacity={}, separates=True), windows, 2, Stage())
    assert said == []
    _say_if_busy({"load_average": 8.0, "cores": 2}, Stage())
    _say_if_few(LoadRates(low=0.1, high=0.3, capacity={}, separates=True), windows, 2, Stage())
    assert "8.0 processes want its 2 cores" in said[0]
    assert "only about 18 requests" in said[1]
