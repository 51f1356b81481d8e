"""Every kind of engine, by `spec.engine.kind`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import aiohttp

from headrace_api.v1alpha1.inferenceservice import EngineKind
from headrace_operator.engines.base import EngineApi, EngineDefinition
from headrace_operator.engines.headrace import HeadraceEngine
from headrace_operator.engines.headrace_admin import HeadraceApi

DEFINITIONS: Mapping[EngineKind, EngineDefinition] = MappingProxyType({EngineKind.HEADRACE: HeadraceEngine()})


def engine_apis(session: aiohttp.ClientSession) -> dict[EngineKind, EngineApi]:
    """The client for running engines of each kind."""
    return {EngineKind.HEADRACE: HeadraceApi(session)}
