"""The kubelet's configuration, for a node that is only a part of this machine.

The cluster starts runtime, kubelet and device plugin inside the mount namespace that `nodespace` makes, as root too:
there the kubelet finds its compiled-in paths and its kernel parameters as it wants them.
"""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import Any

import yaml

from headrace_local.errors import LocalError
from headrace_local.layout import Slot
from headrace_local.pki import Pki

#: An address from the documentation range: the route to it shows the machine's outgoing address. Nothing is sent.
_SOMEWHERE = ("203.0.113.1", 9)


def write_kubelet_files(slot: Slot, pki: Pki) -> list[str]:
    """Write the kubelet's configuration; return its arguments. LocalError if there is no usable address."""
    path = slot.state_dir / "kubelet.yaml"
    slot.kubelet_root.mkdir(parents=True, exist_ok=True)
    slot.pod_logs_dir.mkdir(parents=True, exist_ok=True)
    resolv_conf = Path("/etc/resolv.conf")
    content = kubelet_configuration(slot, pki, resolv_conf=str(resolv_conf) if resolv_conf.exists() else "")
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return kubelet_arguments(slot, pki, path, node_address())


def kubelet_arguments(slot: Slot, pki: Pki, configuration: Path, address: str) -> list[str]:
    """Command-line arguments for settings that the configuration file does not have (pure)."""
    return [
        f"--config={configuration}",
        f"--kubeconfig={pki.kubelet_kubeconfig}",
        f"--root-dir={slot.kubelet_root}",
        f"--cert-dir={slot.pki_dir / 'kubelet'}",
        f"--hostname-override={slot.node_name}",
        f"--node-ip={address}",
        "--v=1",
    ]


def kubelet_configuration(slot: Slot, pki: Pki, *, resolv_conf: str) -> dict[str, Any]:
    """KubeletConfiguration (pure)."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        # Everything listens on loopback, and asks for a certificate of the cluster's own authority.
        "address": "127.0.0.1",
        "port": slot.kubelet_port,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": slot.kubelet_healthz_port,
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki.ca.cert)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki.kubelet_server.cert),
        "tlsPrivateKeyFile": str(pki.kubelet_server.key),
        "containerRuntimeEndpoint": f"unix://{slot.runtime_socket}",
        "podLogsDir": str(slot.pod_logs_dir),
        "volumePluginDir": str(slot.kubelet_root / "volume-plugins"),
        "resolvConf": resolv_conf,
        "clusterDomain": "cluster.local",
        # Our runtime makes no cgroups, so there is nothing to enforce limits with.
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "featureGates": {"KubeletInUserNamespace": True},
        # Looking after the machine's disk and images is not the node's job.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": dict.fromkeys(("nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%"),
        # A changed config map or secret is in its volume at once, not after a minute.
        "configMapAndSecretChangeDetectionStrategy": "Watch",
        "serializeImagePulls": False,
        # Checked every second, so that newly registered devices count at once; written only after a change.
        "nodeStatusUpdateFrequency": "1s",
        "nodeStatusReportFrequency": "1m",
    }


def node_address() -> str:
    """An address of this machine outside 127.0.0.0/8, as the kubelet requires. It is only reported, never used.

    LocalError if the machine has none.
    """
    for address in (_address_on_the_way_out(), *_addresses_of_own_name()):
        if address and not ipaddress.ip_address(address).is_loopback:
            return address
    raise LocalError(
        "This machine has no address but loopback.",
        why="The kubelet refuses to report a loopback address for its node (nothing listens on this one).",
        todo="Bring up any network interface, for instance: ip link add dummy0 type dummy; "
        "ip addr add 192.0.2.1/32 dev dummy0; ip link set dummy0 up. Or use another cluster (--context).",
    )


def _address_on_the_way_out() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_SOMEWHERE)
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _addresses_of_own_name() -> list[str]:
    try:
        return socket.gethostbyname_ex(socket.gethostname())[2]
    except OSError:
        return []
