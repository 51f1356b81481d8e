"""The CRI runtime driven by a gRPC client, without a kubelet: what a container sees, how it ends, what is left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory

from headrace_local.cri import runtime_pb2 as pb
from headrace_local.layout import Slot, default_slot
from headrace_local.leftovers import find_leftovers
from headrace_local.processes import STATE_MARKER
from headrace_local.runtime import rpc
from headrace_local.runtime.inner.lives import life_of
from headrace_local.runtime.machine import needed_paths
from headrace_local.runtime.stop import stop_all

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root"),
]

SLOT_NUMBER = 39
SERVICES = pb.DESCRIPTOR.services_by_name

LOOK = """
import json, os, socket, sys
def refused(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.errno
import grpc, yaml  # from the virtual environment
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(), "pid": os.getpid(),
    "processes": [name for name in os.listdir("/proc") if name.isdigit()],
    "host": socket.gethostname(), "config": open("/var/run/config/greeting").read(),
    "read_only_root": refused("/etc/passwd"), "read_only_mount": refused("/var/run/config/greeting"),
    "tmp": os.listdir("/tmp"), "caps": [l.split()[1] for l in open("/proc/self/status") if l.startswith("CapBnd")],
    "privs": [l.split()[1] for l in open("/proc/self/status") if l.startswith("NoNewPrivs")],
    "resolv": open("/etc/resolv.conf").read(), "dev": sorted(os.listdir("/dev")), "env": os.environ["GREETING"],
    "state": os.path.exists(sys.argv[1]),
}), flush=True)
"""
#: Says when it is up, ends with 7 on SIGTERM.
POLITE = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('up', flush=True); "
    "time.sleep(600)"
)
#: Has a child and ignores SIGTERM.
STUBBORN = (
    "import signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "subprocess.Popen(['sleep', '600']); print('up', flush=True); time.sleep(600)"
)


class Runtime:
    """The runtime's process, and its client."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.start()

    def start(self) -> None:
        self.slot.ready_file("runtime").unlink(missing_ok=True)
        argv = [
            sys.executable,
            "-m",
            "headrace_local.runtime",
            "--slot",
            str(SLOT_NUMBER),
            "--extra-image",
            "local/host",
        ]
        self.process = subprocess.Popen(
            argv, env={**os.environ, **self.slot.environment, STATE_MARKER: str(self.slot.state_dir)}
        )
        until(self.slot.ready_file("runtime").exists)
        self.channel = grpc.insecure_channel(f"unix:{self.slot.runtime_socket}")

    def end(self, number: signal.Signals) -> None:
        self.channel.close()
        self.process.send_signal(number)
        self.process.wait(20)

    def call(self, name: str, **fields: Any) -> Any:
        service = SERVICES["RuntimeService" if name in SERVICES["RuntimeService"].methods_by_name else "ImageService"]
        request = message_factory.GetMessageClass(service.methods_by_name[name].input_type)(**fields)
        return rpc.call(self.channel, service, name)(request, timeout=60)

    def sandbox(self, name: str) -> tuple[str, pb.PodSandboxConfig]:
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, uid=name, namespace="default"),
            hostname=name[:63],  # as the kubelet cuts it
            log_directory=str(self.slot.pod_logs_dir / name),
            dns_config=pb.DNSConfig(servers=["127.0.0.53"], searches=["default.svc.cluster.local"]),
        )
        return self.call("RunPodSandbox", config=config).pod_sandbox_id, config

    def container(self, sandbox: tuple[str, pb.PodSandboxConfig], *command: str, **fields: Any) -> str:
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name="c"), image=pb.ImageSpec(image="headrace/engine:dev"), log_path="c/0.log"
        )
        config.command.extend(command)
        config.MergeFrom(pb.ContainerConfig(**fields))
        request = {"pod_sandbox_id": sandbox[0], "config": config, "sandbox_config": sandbox[1]}
        container = self.call("CreateContainer", **request).container_id
        self.call("StartContainer", container_id=container)
        return container

    def status(self, container: str) -> Any:
        return self.call("ContainerStatus", container_id=container).status

    def exit_of(self, container: str) -> Any:
        until(lambda: self.status(container).state == pb.CONTAINER_EXITED)
        return self.status(container)

    def log_lines(self, container: str) -> list[str]:
        return Path(self.status(container).log_path).read_text().splitlines()

    def until_up(self, container: str) -> None:
        until(lambda: any(line.endswith("up") for line in self.log_lines(container)))

    def processes(self, container: str) -> list[int]:
        """The pids, on this machine, of everything in the container's process namespace."""
        pid = int(self.call("ContainerStatus", container_id=container, verbose=True).info["pid"])
        own = Path(f"/proc/{pid}/ns/pid").readlink()
        return [found for found in all_pids() if namespace_of(found) == own and alive(found)]


def all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def namespace_of(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/ns/pid").readlink()
    except OSError:
        return None


def alive(pid: int) -> bool:
    ended, _ = life_of(pid) or (True, 0)
    return not ended


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    slot = default_slot(SLOT_NUMBER, {**os.environ, "HEADRACE_STATE": str(tmp_path_factory.mktemp("r"))})
    running = Runtime(slot)
    yield running
    running.end(signal.SIGTERM)
    assert not slot.ready_file("runtime").exists()
    stop_all(slot, grace=0)
    left = find_leftovers(slot)
    assert not left, left.lines()


@pytest.fixture
def sandbox(runtime: Runtime, request: pytest.FixtureRequest) -> Iterator[tuple[str, pb.PodSandboxConfig]]:
    made = runtime.sandbox(request.node.name.replace("_", "-"))
    yield made
    runtime.call("RemovePodSandbox", pod_sandbox_id=made[0])


def test_what_a_container_sees(runtime: Runtime, sandbox: Any, tmp_path: Path):
    (tmp_path / "greeting").write_text("hello")
    tmp_path.chmod(0o755)
    before = Path("/root").stat()
    container = runtime.container(
        sandbox,
        *("python", "-c", LOOK, str(runtime.slot.state_dir)),
        envs=[pb.KeyValue(key="GREETING", value=b"hi")],
        mounts=[pb.Mount(container_path="/var/run/config", host_path=str(tmp_path), readonly=True)],
        linux=pb.LinuxContainerConfig(
            security_context=pb.LinuxContainerSecurityContext(
                run_as_user=pb.Int64Value(value=65532),
                supplemental_groups=[2000],
                readonly_rootfs=True,
                no_new_privs=True,
                capabilities=pb.Capability(drop_capabilities=["ALL"]),
            )
        ),
    )
    status = runtime.exit_of(container)
    lines = runtime.log_lines(container)
    assert (status.exit_code, status.reason) == (0, "Completed"), lines
    stamp, stream, tag, text = lines[0].split(" ", 3)
    assert (stream, tag) == ("stdout", "F")
    assert stamp.endswith("Z")
    seen = json.loads(text)
    assert (seen["uid"], seen["gid"], seen["groups"]) == (65532, 0, [2000])
    assert (seen["pid"], seen["processes"]) == (1, ["1"])
    assert (seen["host"], seen["config"], seen["env"]) == ("test-what-a-container-sees", "hello", "hi")
    assert (seen["read_only_root"], seen["read_only_mount"]) == (30, 30)  # EROFS
    assert not seen["state"]
    ours = {Path(path).parts[2] for path in needed_paths(runtime.slot) if path.startswith("/tmp/")}
    assert seen["tmp"] == sorted(ours)  # of the machine's /tmp only what our Python needs of a checkout in it
    assert (seen["caps"], seen["privs"]) == (["0000000000000000"], ["1"])
    assert seen["resolv"] == "nameserver 127.0.0.53\nsearch default.svc.cluster.local\n"
    assert seen["dev"] == sorted(
        ["null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "pts", "ptmx", "shm"]
    )
    assert Path("/root").stat().st_mode == before.st_mode


def test_what_a_container_writes_stays_in_it(runtime: Runtime, sandbox: Any):
    mark = "/etc/headrace-was-here"
    write = f"open('{mark}', 'w').write('x'); import os; os.chmod('/etc/passwd', 0o600); os.mkdir('/tmp/headrace-mine')"
    container = runtime.container(sandbox, "python", "-c", write, image=pb.ImageSpec(image="local/host:latest"))
    assert runtime.exit_of(container).exit_code == 0, runtime.log_lines(container)
    assert not Path(mark).exists()
    assert not Path("/tmp/headrace-mine").exists()
    assert Path("/etc/passwd").stat().st_mode & 0o777 == 0o644


def test_exit_codes_and_reasons(runtime: Runtime, sandbox: Any):
    for script, code, reason in (("exit 3", 3, "Error"), ("kill -SEGV $$; sleep 9", 139, "Error")):
        # A first process ignores signals that it sends itself; its child does not.
        container = runtime.container(sandbox, "sh", "-c", f"sh -c '{script}'; exit $?")
        status = runtime.exit_of(container)
        assert (status.exit_code, status.reason) == (code, reason)


def test_a_command_that_is_not_there_is_named(runtime: Runtime, sandbox: Any):
    with pytest.raises(grpc.RpcError, match='exec "no-such-command": No such file'):
        runtime.container(sandbox, "no-such-command")
    (found,) = runtime.call("ListContainers", filter=pb.ContainerFilter(pod_sandbox_id=sandbox[0])).containers
    status = runtime.exit_of(found.id)
    assert (status.exit_code, status.reason) == (128, "StartError")


def test_a_volume_that_is_not_there_is_named(runtime: Runtime, sandbox: Any):
    with pytest.raises(grpc.RpcError, match="/no/such/volume"):
        runtime.container(sandbox, "true", mounts=[pb.Mount(container_path="/v", host_path="/no/such/volume")])


def test_sigterm_is_given_its_time(runtime: Runtime, sandbox: Any):
    container = runtime.container(sandbox, "python", "-c", POLITE)
    runtime.until_up(container)
    runtime.call("StopContainer", container_id=container, timeout=30)
    assert runtime.status(container).exit_code == 7


def test_a_container_that_ignores_sigterm_is_killed_with_all_its_children(runtime: Runtime, sandbox: Any):
    container = runtime.container(sandbox, "python", "-c", STUBBORN)
    runtime.until_up(container)
    until(lambda: len(runtime.processes(container)) == 2)
    pids = runtime.processes(container)
    runtime.call("StopContainer", container_id=container, timeout=1)
    assert runtime.status(container).exit_code == 137
    assert not any(alive(pid) for pid in pids)


def test_a_command_can_be_run_inside(runtime: Runtime, sandbox: Any):
    container = runtime.container(sandbox, "python", "-c", POLITE)
    runtime.until_up(container)
    code = "import os, sys; print(os.getuid(), 'SIGTERM' in open('/proc/1/cmdline').read()); sys.exit(4)"
    answer = runtime.call("ExecSync", container_id=container, cmd=["python", "-c", code], timeout=30)
    assert (answer.exit_code, answer.stdout) == (4, b"65532 True\n")
    answer = runtime.call("ExecSync", container_id=container, cmd=["no-such"], timeout=30)
    assert (answer.exit_code, b"No such file" in answer.stderr) == (127, True)
    with pytest.raises(grpc.RpcError) as raised:
        runtime.call("ExecSync", container_id=container, cmd=["sh", "-c", "sleep 60 & sleep 60"], timeout=1)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    until(lambda: len(runtime.processes(container)) == 1)


def test_logs_are_reopened(runtime: Runtime, sandbox: Any):
    talk = "import itertools, time\nfor n in itertools.count():\n    print('up', n, flush=True); time.sleep(0.02)"
    container = runtime.container(sandbox, "python", "-c", talk)
    path = Path(runtime.status(container).log_path)
    until(lambda: len(path.read_text().splitlines()) > 3)
    old = path.with_name("old.log")
    path.rename(old)
    runtime.call("ReopenContainerLog", container_id=container)
    until(lambda: len(path.read_text().splitlines()) > 3)
    runtime.call("StopContainer", container_id=container, timeout=0)
    numbers = [int(line.split()[-1]) for line in (old.read_text() + path.read_text()).splitlines()]
    assert numbers == list(range(len(numbers))), "no line is lost or doubled"


def test_use_of_cpu_and_memory(runtime: Runtime, sandbox: Any):
    work = "data = bytearray(64 << 20); print('up', flush=True)\nwhile True: pass"
    container = runtime.container(sandbox, "python", "-c", work)
    runtime.until_up(container)

    def stats() -> Any:
        (found,) = runtime.call("ListContainerStats", filter=pb.ContainerStatsFilter(id=container)).stats
        return found

    until(lambda: stats().cpu.usage_core_nano_seconds.value > 100_000_000)
    assert 64 << 20 < stats().memory.working_set_bytes.value < 256 << 20
    pod = runtime.call("PodSandboxStats", pod_sandbox_id=sandbox[0]).stats
    assert pod.linux.process.process_count.value == 1


def test_pods_get_different_addresses(runtime: Runtime):
    made = [runtime.sandbox(f"pod-{number}")[0] for number in range(3)]
    statuses = [runtime.call("PodSandboxStatus", pod_sandbox_id=sandbox).status for sandbox in made]
    addresses = [status.network.ip for status in statuses]
    assert len(set(addresses)) == 3
    assert all(address.startswith(runtime.slot.pod_cidr.removesuffix("0.0/16")) for address in addresses)
    for sandbox in made:
        runtime.call("StopPodSandbox", pod_sandbox_id=sandbox)
        runtime.call("RemovePodSandbox", pod_sandbox_id=sandbox)
        with pytest.raises(grpc.RpcError, match="does not exist"):
            runtime.call("PodSandboxStatus", pod_sandbox_id=sandbox)


def test_images(runtime: Runtime):
    assert runtime.call("PullImage", image=pb.ImageSpec(image="headrace/tuner:dev")).image_ref.startswith("sha256:")
    assert runtime.call("ImageStatus", image=pb.ImageSpec(image="headrace/tuner:dev")).image.uid.value == 65532
    assert not runtime.call("ImageStatus", image=pb.ImageSpec(image="busybox")).HasField("image")
    with pytest.raises(grpc.RpcError, match="runs only images that stand for this machine"):
        runtime.call("PullImage", image=pb.ImageSpec(image="busybox"))
    assert Path(runtime.call("ImageFsInfo").image_filesystems[0].fs_id.mountpoint).is_mount()


def test_a_new_runtime_finds_what_a_killed_one_left(runtime: Runtime, sandbox: Any):
    polite = runtime.container(sandbox, "python", "-c", POLITE)
    runtime.until_up(polite)
    short = runtime.container(sandbox, "sh", "-c", "echo up; sleep 1; exit 5", log_path="c/1.log")
    runtime.end(signal.SIGKILL)
    time.sleep(1.5)  # the second one ends while no runtime looks
    runtime.start()
    assert runtime.call("PodSandboxStatus", pod_sandbox_id=sandbox[0]).status.state == pb.SANDBOX_READY
    assert runtime.status(polite).state == pb.CONTAINER_RUNNING
    assert runtime.exit_of(short).exit_code == 5
    answer = runtime.call("ExecSync", container_id=polite, cmd=["echo", "still here"], timeout=30)
    assert answer.stdout == b"still here\n"
    runtime.call("StopContainer", container_id=polite, timeout=30)
    assert runtime.status(polite).exit_code == 7


def test_everything_can_be_ended_without_a_runtime(runtime: Runtime):
    sandbox = runtime.sandbox("left")
    polite = runtime.container(sandbox, "python", "-c", POLITE)
    stubborn = runtime.container(sandbox, "python", "-c", STUBBORN, log_path="c/1.log")
    for container in (polite, stubborn):
        runtime.until_up(container)
    pids = runtime.processes(polite) + runtime.processes(stubborn)
    runtime.end(signal.SIGKILL)
    assert stop_all(runtime.slot, grace=1) == 2
    assert not any(alive(pid) for pid in pids)
    runtime.start()
    assert not runtime.call("ListContainers").containers
    assert not runtime.call("ListPodSandbox").items


def test_removing_leaves_no_process_and_no_file(runtime: Runtime):
    sandbox = runtime.sandbox("gone")
    container = runtime.container(sandbox, "python", "-c", STUBBORN)
    runtime.until_up(container)
    pids = runtime.processes(container)
    runtime.call("RemovePodSandbox", pod_sandbox_id=sandbox[0])
    assert not any(alive(pid) for pid in pids)
    assert not list((runtime.slot.runtime_dir / "containers").iterdir())
    assert str(runtime.slot.state_dir) not in Path("/proc/self/mounts").read_text()
