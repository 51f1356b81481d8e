"""Headrace's own engine as an `EngineDefinition`: it has every knob of the table. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace_api import names
from headrace_api.engine_exit import EngineExit, ExitKind, read_engine_exit
from headrace_api.v1alpha1.inferenceservice import EngineKind
from headrace_client.engine import admin_url
from headrace_core.knobs.table import CAPPED_KNOBS, HOT, KNOB_BY_NAME, KnobClass, KnobValue
from headrace_operator.cluster.observe import LastExit
from headrace_operator.engines.base import EngineContainer, EngineLaunch, WantedConfig
from headrace_operator.engines.headrace_pod import STARTUP_SECONDS, engine_container, service_ports
from headrace_operator.settings import Images

GPU_TOKEN_CEILING = 8192
CPU_TOKEN_CEILING = 2048  # above the CPU's default budget of 256, so that tuning has room without a restart


class HeadraceEngine:
    """See `EngineDefinition`."""

    kind = EngineKind.HEADRACE
    startup_seconds = STARTUP_SECONDS

    def image(self, images: Images) -> str:
        """The operator's setting."""
        return images.engine

    def container(self, launch: EngineLaunch) -> EngineContainer:
        """`headrace serve` with its config file."""
        return engine_container(launch)

    def service_ports(self) -> list[dict[str, Any]]:
        """The serving and the admin port."""
        return service_ports()

    def url(self, address: str) -> str:
        """By IP address: a cluster may have no DNS, and a pod's resolver may not know a new Service yet."""
        host = f"[{address}]" if ":" in address else address
        return f"http://{host}:{names.HTTP_PORT}"

    def admin_url(self, address: str) -> str:
        """The admin port."""
        return admin_url(address)

    def knob_class(self, knob: str) -> KnobClass | None:
        """As the table says."""
        row = KNOB_BY_NAME.get(knob)
        return None if row is None else row.klass

    def ceilings(self, pinned: Mapping[str, KnobValue], *, on_gpu: bool) -> dict[str, int]:
        """The table's default of each capped knob, or the pinned value where that is higher."""
        ceilings = {}
        for knob in CAPPED_KNOBS:
            base = (GPU_TOKEN_CEILING if on_gpu else CPU_TOKEN_CEILING) if knob.default is None else int(knob.default)
            value = pinned.get(knob.name)
            ceilings[knob.name] = base if value is None else max(base, int(value))
        return ceilings

    def boot_values(self, wanted: WantedConfig) -> dict[str, object]:
        """Every knob that is not hot, and the ceilings."""
        fixed = {name: value for name, value in wanted.values.items() if self.knob_class(name) is not HOT}
        return {"config": fixed, "ceilings": dict(wanted.ceilings)}

    def config_data(self, wanted: WantedConfig) -> dict[str, str]:
        """The engine's config file."""
        content = {
            "revision": wanted.revision,
            "config": dict(wanted.values),
            "ceilings": dict(wanted.ceilings),
            "slo": wanted.slo,
        }
        return {names.CONFIG_KEY: json.dumps(content, indent=1, sort_keys=True) + "\n"}

    def config_values(self, data: Mapping[str, str]) -> dict[str, KnobValue]:
        """The knobs of the config file."""
        return dict(json.loads(data[names.CONFIG_KEY])["config"])

    def exit(self, ended: LastExit) -> EngineExit:
        """What the engine wrote into its termination log; if it wrote nothing there, the last line of its log."""
        written = read_engine_exit(ended.message)
        if written is not None:
            return written
        return EngineExit(ExitKind.OTHER, ended.message.splitlines()[-1] if ended.message else "")
