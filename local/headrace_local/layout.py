"""Where one embedded cluster (a slot) keeps its files, which ports it uses and which addresses it gives out.

Pure: nothing here touches the disk or reads the environment, except `default_slot`, which reads the two variables
that move the folders. Everything binds loopback, on addresses and ports of the slot alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BASE_PORT = 16400
PORTS_PER_SLOT = 20
#: The Service and pod ranges of slot N are 127.(96+2N).0.0/16 and 127.(97+2N).0.0/16, so 79 slots fit below 127.255.
MAX_SLOT = 78
PODS_PER_SLOT = 253 * 253
NODE_NAME = "localhost"
CLUSTER_NAME = "headrace-local"


@dataclass(frozen=True, slots=True)
class Slot:
    """One embedded cluster: its number, its state folder, and the cache that all slots share.

    `state_dir` belongs to this slot alone and is `<state root>/local/slot-N`, as `default_slot` makes it; `down`
    removes everything in it but `logs`.
    """

    number: int
    state_dir: Path
    cache_dir: Path

    def __post_init__(self) -> None:
        if not 0 <= self.number <= MAX_SLOT:
            raise ValueError(f"slot {self.number} does not exist: --slot takes 0 to {MAX_SLOT}")

    # -- names -------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the slot in messages and in the kubeconfig's context."""
        return CLUSTER_NAME if self.number == 0 else f"{CLUSTER_NAME}-{self.number}"

    @property
    def node_name(self) -> str:
        """The node's name; the API server dials it for `kubectl logs`, so it has to resolve to loopback."""
        return NODE_NAME

    # -- files -------------------------------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, the one that a person exports."""
        return self.state_dir / "kubeconfig"

    @property
    def pki_dir(self) -> Path:
        """Keys, certificates and the components' kubeconfigs (mode 0700)."""
        return self.state_dir / "pki"

    @property
    def logs_dir(self) -> Path:
        """One log file per process; kept by `down`, to look into failures afterwards."""
        return self.state_dir / "logs"

    @property
    def pod_logs_dir(self) -> Path:
        """Container logs in the CRI format (the kubelet's `podLogsDir`)."""
        return self.logs_dir / "pods"

    @property
    def run_dir(self) -> Path:
        """Sockets and `<process>.ready` files."""
        return self.state_dir / "run"

    @property
    def pids_dir(self) -> Path:
        """One `<process>.json` per started process, with its start time."""
        return self.state_dir / "pids"

    @property
    def etcd_dir(self) -> Path:
        """The data folder of etcd."""
        return self.state_dir / "etcd"

    @property
    def kubelet_root(self) -> Path:
        """The kubelet's `--root-dir`: volumes, device plugin sockets, pod folders."""
        return self.state_dir / "kubelet"

    @property
    def device_plugins_dir(self) -> Path:
        """Where the kubelet listens for device plugins, and where plugins put their sockets."""
        return self.kubelet_root / "device-plugins"

    @property
    def runtime_dir(self) -> Path:
        """Records of sandboxes and containers, and the containers' file views."""
        return self.state_dir / "runtime"

    @property
    def runtime_socket(self) -> Path:
        """The CRI runtime's socket."""
        return self.run_dir / "runtime.sock"

    @property
    def prometheus_dir(self) -> Path:
        """Prometheus' configuration and its data."""
        return self.state_dir / "prometheus"

    @property
    def summary_file(self) -> Path:
        """Written at the end of `up`: the number of GPUs and the processes started."""
        return self.state_dir / "cluster.json"

    @property
    def lock_file(self) -> Path:
        """Held by `up` and `down`, so that two of them never work on one slot. It is beside the slot's folder."""
        return self.state_dir.parent / f"{self.state_dir.name}.lock"

    def ready_file(self, process: str) -> Path:
        """The file that one of our own processes creates once it serves and removes when it exits."""
        return self.run_dir / f"{process}.ready"

    def log_file(self, process: str) -> Path:
        """Where the process's stdout and stderr go."""
        return self.logs_dir / f"{process}.log"

    def pid_file(self, process: str) -> Path:
        """The record of the running process."""
        return self.pids_dir / f"{process}.json"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which `default_slot` gives the same folders in another process."""
        return {"HEADRACE_STATE": str(self.state_dir.parent.parent), "HEADRACE_CACHE": str(self.cache_dir)}

    # -- ports -------------------------------------------------------------------------------------------------

    @property
    def base_port(self) -> int:
        """The first of the twenty ports of this slot."""
        return BASE_PORT + PORTS_PER_SLOT * self.number

    @property
    def apiserver_port(self) -> int:
        """HTTPS port of the API server."""
        return self.base_port

    @property
    def etcd_client_port(self) -> int:
        """Client port of etcd."""
        return self.base_port + 1

    @property
    def etcd_peer_port(self) -> int:
        """Peer port of etcd (bound, never dialled)."""
        return self.base_port + 2

    @property
    def controller_manager_port(self) -> int:
        """HTTPS port of the controller manager's health and metrics."""
        return self.base_port + 3

    @property
    def scheduler_port(self) -> int:
        """HTTPS port of the scheduler's health and metrics."""
        return self.base_port + 4

    @property
    def kubelet_port(self) -> int:
        """The kubelet's HTTPS API."""
        return self.base_port + 5

    @property
    def kubelet_healthz_port(self) -> int:
        """The kubelet's plain health port."""
        return self.base_port + 6

    @property
    def prometheus_port(self) -> int:
        """HTTP port of Prometheus."""
        return self.base_port + 7

    @property
    def ports(self) -> Mapping[str, int]:
        """Every port that must be free before `up`, by purpose."""
        return {
            "API server": self.apiserver_port,
            "etcd clients": self.etcd_client_port,
            "etcd peers": self.etcd_peer_port,
            "controller manager": self.controller_manager_port,
            "scheduler": self.scheduler_port,
            "kubelet": self.kubelet_port,
            "kubelet health": self.kubelet_healthz_port,
            "Prometheus": self.prometheus_port,
        }

    # -- addresses ---------------------------------------------------------------------------------------------

    @property
    def apiserver_url(self) -> str:
        """Where the API server answers."""
        return f"https://127.0.0.1:{self.apiserver_port}"

    @property
    def etcd_url(self) -> str:
        """Where etcd answers."""
        return f"https://127.0.0.1:{self.etcd_client_port}"

    @property
    def prometheus_url(self) -> str:
        """Where Prometheus answers."""
        return f"http://127.0.0.1:{self.prometheus_port}"

    @property
    def service_cidr(self) -> str:
        """The range of ClusterIPs, all loopback: any process of this machine can reach a Service."""
        return f"127.{96 + 2 * self.number}.0.0/16"

    @property
    def pod_cidr(self) -> str:
        """The range of pod addresses."""
        return f"127.{97 + 2 * self.number}.0.0/16"

    @property
    def kubernetes_service_ip(self) -> str:
        """The ClusterIP of the Service `kubernetes.default`: the range's first address."""
        return f"127.{96 + 2 * self.number}.0.1"

    def pod_address(self, index: int) -> str:
        """The address of the pod with this index (0 to PODS_PER_SLOT - 1); the last byte is never 0 or 255."""
        if not 0 <= index < PODS_PER_SLOT:
            raise ValueError(f"pod index {index} is outside 0 to {PODS_PER_SLOT - 1}")
        high, low = divmod(index, 253)
        return f"127.{97 + 2 * self.number}.{high}.{low + 2}"


def state_root(environment: Mapping[str, str]) -> Path:
    """`$HEADRACE_STATE` or `~/.local/state/headrace`."""
    return _folder(environment, "HEADRACE_STATE", ".local/state/headrace")


def cache_root(environment: Mapping[str, str]) -> Path:
    """`$HEADRACE_CACHE` or `~/.cache/headrace`."""
    return _folder(environment, "HEADRACE_CACHE", ".cache/headrace")


def default_slot(number: int = 0, environment: Mapping[str, str] | None = None) -> Slot:
    """The slot `number` in the folders that the environment names; ValueError if there is no such slot."""
    env = os.environ if environment is None else environment
    return Slot(number, state_root(env) / "local" / f"slot-{number}", cache_root(env))


def _folder(environment: Mapping[str, str], variable: str, below_home: str) -> Path:
    value = environment.get(variable, "")
    if value:
        return Path(value).expanduser().absolute()
    home = environment.get("HOME", "")
    return (Path(home) if home else Path.home()) / below_home
