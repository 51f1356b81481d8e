"""`python -m headrace_operator`: run the operator."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace_client.errors import KubeError
from headrace_client.kube import Kube
from headrace_operator.app import App, configure_logs
from headrace_operator.settings import (
    Images,
    LogFormat,
    OperatorSettings,
    OperatorSettingsError,
    read_token,
)

cli = typer.Typer(add_completion=False)


def _env(name: str) -> str:
    return f"HEADRACE_{name}"


@cli.command()
def run(  # noqa: PLR0917  (one parameter per flag)
    engine_image: Annotated[str, typer.Option(envvar=_env("ENGINE_IMAGE"), help="Image of the engine, with a tag.")],
    tuner_image: Annotated[str, typer.Option(envvar=_env("TUNER_IMAGE"), help="Image of the tuner, with a tag.")],
    pull_policy: Annotated[str, typer.Option(envvar=_env("IMAGE_PULL_POLICY"))] = "IfNotPresent",
    root_token_file: Annotated[Path | None, typer.Option(envvar=_env("ROOT_TOKEN_FILE"))] = None,
    root_token: Annotated[
        str, typer.Option(envvar=_env("ROOT_TOKEN"), help="The token itself, instead of a file.", show_default=False)
    ] = "",
    prometheus_url: Annotated[str, typer.Option(envvar=_env("PROMETHEUS_URL"))] = "",
    namespace: Annotated[
        list[str] | None, typer.Option(envvar=_env("NAMESPACES"), help="Watch only this namespace; repeatable.")
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(envvar=_env("LOG_FORMAT"))] = LogFormat.JSON,
    log_level: Annotated[str, typer.Option(envvar=_env("LOG_LEVEL"))] = "INFO",
    health_address: Annotated[str, typer.Option(envvar=_env("HEALTH_ADDRESS"))] = "0.0.0.0:8080",
    metrics_address: Annotated[str, typer.Option(envvar=_env("METRICS_ADDRESS"))] = "0.0.0.0:8081",
    context: Annotated[str | None, typer.Option(help="Kubeconfig context to use outside a cluster.")] = None,
) -> None:
    """Watch InferenceServices and TuningRuns, and make the cluster match them."""
    try:
        settings = OperatorSettings(
            images=Images(engine=engine_image, tuner=tuner_image, pull_policy=pull_policy),
            root_token=read_token(root_token_file, root_token),
            prometheus_url=prometheus_url,
            namespaces=tuple(namespace or ()),
            log_format=log_format,
            log_level=log_level.upper(),
            health_address=health_address,
            metrics_address=metrics_address,
        )
        configure_logs(settings)
        asyncio.run(_serve(settings, context))
    except (OperatorSettingsError, KubeError) as error:
        print(f"headrace_operator: {error}", file=sys.stderr)  # noqa: T201  (for people, even if logs are JSON)
        raise SystemExit(2) from None


async def _serve(settings: OperatorSettings, context: str | None) -> None:
    async with Kube.auto(context) as kube:
        await App(settings, kube).run()


if __name__ == "__main__":
    cli()
