"""What the operator needs from an engine, whatever its kind.

An `EngineDefinition` is pure: how a pod runs the engine, which knobs it has, how its config is written, why it
exited. An `EngineApi` calls running engines; reading and changing their config is optional (`LiveConfigApi`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headrace_api.engine_exit import EngineExit
from headrace_api.v1alpha1.inferenceservice import EngineKind
from headrace_core.knobs.resolve import EngineConfig, resolve
from headrace_core.knobs.table import KnobClass, KnobValue
from headrace_operator.cluster.observe import LastExit
from headrace_operator.settings import Images

SloThresholds = Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedConfig:
    """The config that a service's engines should have.

    `values` are the knobs that were set, by snake_case name; the engine computes the others for its device.
    `ceilings` are the boot values of knobs that are hot only up to them.
    """

    values: Mapping[str, KnobValue]
    ceilings: Mapping[str, int]
    slo: SloThresholds | None
    on_gpu: bool
    revision: str

    def config(self, device: str | None = None) -> EngineConfig:
        """Every knob's value on `device` (`cpu`, `cuda`); by default the one that the spec asks for.

        To an engine a pretend GPU is a CPU, so its defaults follow the device that it reports.
        Raises `ConfigError`.
        """
        return resolve(self.values, device=device or ("cuda" if self.on_gpu else "cpu"), ceilings=self.ceilings)

    def hot(self, device: str | None = None) -> dict[str, KnobValue]:
        """The hot knobs alone, as a running engine on `device` should have them."""
        return self.config(device).hot_values()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaunch:
    """What one engine container is to run. `config_map` and `admin_secret` are names of objects in its namespace."""

    model: str  # path or hub id
    model_revision: str | None
    served_name: str
    config_map: str
    admin_secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContainer:
    """The engine's part of a pod, as Kubernetes JSON. Users must not override `env`; `volumes` are the pod's."""

    command: list[str]
    env: list[dict[str, Any]]
    ports: list[dict[str, Any]]
    probes: Mapping[str, dict[str, Any]]  # startupProbe, readinessProbe, livenessProbe
    volumes: list[dict[str, Any]]
    mounts: list[dict[str, Any]]


class EngineDefinition(Protocol):
    """One kind of engine. Pure."""

    @property
    def kind(self) -> EngineKind:
        """Its name in `spec.engine.kind`."""

    @property
    def startup_seconds(self) -> int:
        """How long a process may take to load a model before it is replaced."""

    def image(self, images: Images) -> str:
        """The image to run if the spec names none."""

    def container(self, launch: EngineLaunch) -> EngineContainer:
        """The container that runs it."""

    def service_ports(self) -> list[dict[str, Any]]:
        """Ports of a Service in front of its pods."""

    def url(self, address: str) -> str:
        """Base URL of the OpenAI API at the IP address of a pod or Service."""

    def admin_url(self, address: str) -> str:
        """Base URL of the port at which its config is read and changed."""

    def knob_class(self, knob: str) -> KnobClass | None:
        """What changing a knob takes; None: this engine has no such knob."""

    def ceilings(self, pinned: Mapping[str, KnobValue], *, on_gpu: bool) -> dict[str, int]:
        """Values that some hot knobs cannot exceed while a process runs, given what the spec pins."""

    def boot_values(self, wanted: WantedConfig) -> dict[str, object]:
        """Values that a process reads only when it starts: changing one needs a new process."""

    def config_data(self, wanted: WantedConfig) -> dict[str, str]:
        """Data of the ConfigMap that a process reads when it starts."""

    def config_values(self, data: Mapping[str, str]) -> dict[str, KnobValue]:
        """The `values` from which `config_data` was made."""

    def exit(self, ended: LastExit) -> EngineExit:
        """Why its process ended, from the container state that the kubelet kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngine:
    """What one engine process reports; (`started_at`, `generation`) identifies the config in force.

    `config` is by snake_case name and includes computed values. `started_at` in Unix seconds.
    """

    generation: int
    revision: str
    config: Mapping[str, KnobValue]
    ceilings: Mapping[str, int]
    slo: SloThresholds | None
    device: str  # `cpu` or `cuda`
    pretend_gpu: bool  # the GPU is a stand-in
    started_at: float


@dataclass(frozen=True, slots=True)
class SloChange:
    """A new SLO set, or None to remove it."""

    slo: SloThresholds | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """Hot knobs to set and the revision they make; applied as a whole, if the generation is still `if_generation`."""

    knobs: Mapping[str, KnobValue]
    slo: SloChange | None  # None: leave it as it is
    revision: str
    if_generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProbe:
    """What the last call to one running engine showed."""

    state: RunningEngine | None = None
    in_force: bool = False  # the wanted config was seen in force
    refused: str = ""
    unreachable: str = ""


class LiveConfigApi(Protocol):
    """Engines whose config can be read and changed while they run. `address` is a pod's IP address."""

    async def read(self, address: str, *, token: str) -> RunningEngine:
        """Config in force. Raises `EngineCallError`."""

    async def change(self, address: str, change: ConfigChange, *, token: str) -> RunningEngine:
        """Change the config between two steps. Raises `EngineCallError` or a subclass of it."""


class EngineApi(Protocol):
    """Calls to running engines of one kind."""

    @property
    def live(self) -> LiveConfigApi | None:
        """None if a process keeps the config that it started with until it ends."""

    async def one_token(self, url: str, *, model: str) -> None:
        """Prove that the engine serves: generate one token through a base URL. Raises `EngineCallError`."""
