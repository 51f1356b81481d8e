"""Clients, target and meter for a study of a running engine, shared by the Job and `headrace tune`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from headrace_api.v1alpha1.slo import SloSpec
from headrace_api.v1alpha1.tuningrun import TuningRunSpec
from headrace_client.engine import EngineAdmin, EngineState
from headrace_client.errors import PrometheusError
from headrace_client.load.client import Endpoint, find_endpoint, load_session
from headrace_client.prom import Prometheus
from headrace_core.knobs.resolve import EngineConfig
from headrace_tuner.errors import TunerError
from headrace_tuner.ladder.rules import engine_config
from headrace_tuner.measure.window import LiveMeter
from headrace_tuner.settings import check_fits, check_slo, slo_set, workload_of
from headrace_tuner.targets.shadow import ShadowTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Addresses of the engine and Prometheus; `token`, of the admin port, may be empty."""

    trial_url: str
    admin_url: str
    prometheus_url: str
    token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Open connections to one engine and its Prometheus."""

    target: ShadowTarget
    prometheus: Prometheus
    session: aiohttp.ClientSession
    endpoint: Endpoint
    state: EngineState  # when the connections were opened

    async def config(self) -> EngineConfig:
        """The config in force, in the form that the rules take."""
        state = await self.target.state()
        ceilings = {str(row["name"]): ceiling for row in state.knobs if (ceiling := state.ceiling(str(row["name"])))}
        return engine_config(state.config, ceilings)

    def meter(self, spec: TuningRunSpec, slo: SloSpec) -> LiveMeter:
        """The meter of a spec. Raises `TunerError` if the engine's SLO or context length does not fit the spec."""
        workload = workload_of(spec.workload)
        check_slo(self.state, slo)
        check_fits(workload, self.endpoint)
        return LiveMeter(
            target=self.target,
            prometheus=self.prometheus,
            session=self.session,
            endpoint=self.endpoint,
            workload=workload,
            warmup=spec.workload.warmup_seconds,
            ttft=slo_set(slo).threshold("ttft"),
        )


@asynccontextmanager
async def connect(addresses: Addresses) -> AsyncIterator[Connections]:
    """Connect and check that engine and Prometheus answer. Raises `TunerError`."""
    async with (
        load_session() as session,
        EngineAdmin(addresses.admin_url, addresses.token) as admin,
        Prometheus(addresses.prometheus_url) as prometheus,
    ):
        target = ShadowTarget(addresses.trial_url, admin, session=session)
        state = await target.state()
        endpoint = await find_endpoint(session, addresses.trial_url)
        try:
            await prometheus.query("vector(1)")
        except PrometheusError as error:
            raise TunerError(f"{error}; the study needs a Prometheus, since its numbers come from there") from error
        yield Connections(target=target, prometheus=prometheus, session=session, endpoint=endpoint, state=state)
