"""`python -m headrace_engine serve MODEL …`: the container's entry."""

import typer

from headrace_engine.cli import bench_engine, model_app, serve
from headrace_engine.quality.command import observe

app = typer.Typer(no_args_is_help=True, add_completion=False)
app.command("serve")(serve)
app.command("bench")(bench_engine)
app.command("observe", hidden=True)(observe)
app.add_typer(model_app, name="model")

if __name__ == "__main__":
    app()
