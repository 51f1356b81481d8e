"""The kubelet's configuration, and the mounts that keep it off the machine."""

import ipaddress
from pathlib import Path

from headrace_local.layout import Slot
from headrace_local.node import kubelet_arguments, kubelet_configuration, node_address
from headrace_local.nodespace import DEVICE_PLUGINS, LOG_LINKS, Bind, Folder, Overlay, Shadow, plan
from headrace_local.pki import pki_of

SLOT = Slot(4, Path("/state/slot-4"), Path("/cache"))


def test_the_kubelet_listens_on_loopback_only():
    content = kubelet_configuration(SLOT, pki_of(SLOT), resolv_conf="")
    assert (content["address"], content["healthzBindAddress"], content["readOnlyPort"]) == ("127.0.0.1", "127.0.0.1", 0)
    assert (content["port"], content["healthzPort"]) == (SLOT.kubelet_port, SLOT.kubelet_healthz_port)
    assert content["authentication"]["anonymous"] == {"enabled": False}


def test_every_file_of_the_kubelet_lies_in_the_slot():
    content = kubelet_configuration(SLOT, pki_of(SLOT), resolv_conf="")
    own = [content["podLogsDir"], content["volumePluginDir"], content["tlsCertFile"]]
    assert all(Path(path).is_relative_to(SLOT.state_dir) for path in own)
    arguments = kubelet_arguments(SLOT, pki_of(SLOT), Path("/state/slot-4/kubelet.yaml"), "192.0.2.7")
    assert "--root-dir=/state/slot-4/kubelet" in arguments
    assert "--node-ip=192.0.2.7" in arguments


def test_the_nodes_address_is_not_loopback():
    assert not ipaddress.ip_address(node_address()).is_loopback


def test_missing_fixed_paths_are_made_in_a_layer_over_the_machines_folder():
    there = {"/", "/var", "/var/lib", "/var/log"}
    assert plan(SLOT, there.__contains__) == [
        Overlay("/var/lib"),
        Folder(DEVICE_PLUGINS),
        Bind("/state/slot-4/kubelet/device-plugins", DEVICE_PLUGINS),
        Overlay("/var/log"),
        Folder(LOG_LINKS),
        Bind("/state/slot-4/run/log-links", LOG_LINKS),
    ]


def test_fixed_paths_that_exist_are_only_covered():
    steps = plan(SLOT, {DEVICE_PLUGINS, LOG_LINKS}.__contains__)
    assert [type(step) for step in steps] == [Bind, Bind]


def test_no_layer_hides_the_slots_own_files():
    slot = Slot(4, Path("/var/lib/miller/state/slot-4"), Path("/cache"))
    steps = plan(slot, {"/", "/var", "/var/lib", LOG_LINKS}.__contains__)
    assert Overlay("/var/lib") not in steps
    assert steps[0] == Folder(DEVICE_PLUGINS)


def test_kernel_parameters_read_as_the_kubelet_wants_them():
    steps = plan(SLOT, lambda path: True)
    assert Shadow("/proc/sys/kernel/panic_on_oops", "1") in steps
