"""From a CRI container configuration to our own values."""

import signal

import pytest

from headrace_local.cri import runtime_pb2 as pb
from headrace_local.runtime import spec
from headrace_local.runtime.errors import CriRefusedError, NotFoundError
from headrace_local.runtime.images import IMAGE_UID, Image, ImagePolicy

OURS = Image("headrace/engine:dev", IMAGE_UID)
OTHER = Image("local/host", None)
PASSWD = "root:x:0:0:root:/root:/bin/sh\nmiller:x:1001:1002::/home/miller:/bin/sh\n"


def security(**fields: object) -> pb.LinuxContainerSecurityContext:
    return pb.LinuxContainerSecurityContext(**fields)


def test_the_pods_variables_win_over_the_images():
    config = pb.ContainerConfig(envs=[pb.KeyValue(key="PATH", value=b"/mine"), pb.KeyValue(key="X", value=b"\xff")])
    env = spec.environment(config, {"PATH": "/image", "HOME": "/tmp"}, "mill-0")
    assert env == {"PATH": "/mine", "HOME": "/tmp", "HOSTNAME": "mill-0", "X": "\udcff"}


def test_the_images_python_is_first_on_the_path():
    assert spec.image_environment("/venv", "/cache")["PATH"].startswith("/venv/bin:")


@pytest.mark.parametrize(
    ("context", "image", "user"),
    [
        (security(), OURS, spec.User(IMAGE_UID, IMAGE_UID)),
        (security(), OTHER, spec.User(0, 0)),
        (security(run_as_user=pb.Int64Value(value=7)), OURS, spec.User(7, 0)),
        (security(run_as_user=pb.Int64Value(value=0)), OURS, spec.User(0, 0)),
        (
            security(run_as_user=pb.Int64Value(value=7), run_as_group=pb.Int64Value(value=8), supplemental_groups=[9]),
            OURS,
            spec.User(7, 8, (9,)),
        ),
        (security(run_as_username="miller"), OURS, spec.User(1001, 1002)),
    ],
)
def test_users(context: pb.LinuxContainerSecurityContext, image: Image, user: spec.User):
    assert spec.user_of(context, image, PASSWD) == user


def test_an_unknown_user_name_is_refused():
    with pytest.raises(CriRefusedError, match="runAsUser with a number"):
        spec.user_of(security(run_as_username="nobody-knows"), OURS, PASSWD)


def test_capabilities():
    def kept(**fields: object) -> list[int]:
        return spec.capabilities(security(**fields))

    default = kept()
    assert 21 not in default  # SYS_ADMIN
    assert kept(capabilities=pb.Capability(drop_capabilities=["ALL"])) == []
    only_bind = pb.Capability(drop_capabilities=["ALL"], add_capabilities=["CAP_NET_BIND_SERVICE"])
    assert kept(capabilities=only_bind) == [10]
    assert kept(capabilities=pb.Capability(drop_capabilities=["KILL"])) == [n for n in default if n != 5]
    assert len(kept(privileged=True)) == 41
    with pytest.raises(CriRefusedError, match="FLY"):
        kept(capabilities=pb.Capability(add_capabilities=["FLY"]))


def test_a_container_needs_a_command():
    config = pb.ContainerConfig(metadata=pb.ContainerMetadata(name="wheel"))
    with pytest.raises(CriRefusedError, match="set `command`"):
        spec.command_line(config)
    config.args.extend(["-c", "x"])
    assert spec.command_line(config) == ["-c", "x"]


def test_image_volumes_are_refused():
    config = pb.ContainerConfig(mounts=[pb.Mount(container_path="/m", image=pb.ImageSpec(image="x"))])
    with pytest.raises(CriRefusedError, match="/m"):
        spec.mount_records(config)


def test_stop_signals():
    assert spec.stop_signal("RUNTIME_DEFAULT") == signal.SIGTERM
    assert spec.stop_signal("SIGINT") == signal.SIGINT
    assert spec.stop_signal("SIGRTMINPLUS3") == signal.SIGRTMIN + 3


@pytest.mark.parametrize(
    "reference",
    [
        "headrace/engine",
        "headrace/engine:0.1.0",
        "docker.io/headrace/tuner:dev",
        "ghcr.io/somebody/headrace/operator:dev",
        "localhost:5000/headrace/engine@sha256:" + "0" * 64,
    ],
)
def test_our_images_are_this_machine(reference: str):
    image = ImagePolicy().find(reference)
    assert image.uid == IMAGE_UID
    assert image.id == ImagePolicy().find(reference).id


@pytest.mark.parametrize(
    "reference", ["busybox", "docker.io/library/busybox:latest", "evilheadrace/engine", "headrace"]
)
def test_other_images_are_refused_with_the_reason(reference: str):
    with pytest.raises(NotFoundError, match="only images that stand for this machine"):
        ImagePolicy().find(reference)


def test_more_names_can_be_allowed():
    policy = ImagePolicy(frozenset({"local/host"}))
    assert policy.find("local/host:latest").uid is None
    with pytest.raises(NotFoundError, match="local/host"):
        policy.find("busybox")
