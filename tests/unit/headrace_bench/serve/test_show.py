"""The result as a table, and the view of a load that runs."""

import io

from rich.console import Console

from headrace_bench.serve.options import ServeOptions
from headrace_bench.serve.run import LoadGoal, run_serve
from headrace_bench.serve.show import TerminalDisplay, result_table
from headrace_client.load.client import Endpoint, LoadClient, load_session


async def test_the_table_fits_80_columns(server) -> None:
    server.refuses, server.per_chunk = ("ignore_eos",), 2
    options = ServeOptions(rate=40, duration=0.5, output_tokens="4", slo_ttft=5.0, slo_itl=1.0, slo_tpot=1.0)
    ran = await run_serve(server.url, options, TerminalDisplay(Console(file=io.StringIO())))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(result_table(ran))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("goodput") for line in lines)


async def test_the_live_view_shows_rates_and_latencies(server) -> None:
    server.token_seconds = 0.02
    terminal = Console(width=80, force_terminal=True, file=io.StringIO())
    async with load_session() as session:
        client = LoadClient(endpoint=Endpoint(url=server.url, model="fake"), session=session, salt="s", exact=False)
        from headrace_core.workload.arrivals import Arrivals
        from headrace_core.workload.lengths import Length
        from headrace_core.workload.plans import RequestMix, plan_window

        shape = RequestMix(prompt=Length.parse("8"), output=Length.parse("10"))
        plan = plan_window(Arrivals(rate=20), shape, requests=20, duration=1.0, seed=1)
        goal = LoadGoal(title="load", seconds=1.0, warmup=0.0, requests=20, rate=20.0)
        with TerminalDisplay(terminal).showing(goal, client):
            await client.open_loop(plan, drain=5.0)
    screen = terminal.file.getvalue()
    for words in ("offered/s", "in flight", "ITL p50", "drain"):
        assert words in screen
