"""The plan of a container's file view."""

from headrace_local.runtime.fileview import (
    HiddenFolder,
    Machine,
    MountPoint,
    Step,
    ViewRequest,
    below,
    parents,
    parse_mounts,
    plan_view,
)
from headrace_local.runtime.records import MountRecord

TMP = HiddenFolder("/tmp", 0o1777)
MACHINE = Machine(
    mounts=(
        MountPoint("/", "ext4", is_folder=True),
        MountPoint("/proc", "proc", is_folder=True),
        MountPoint("/dev/shm", "tmpfs", is_folder=True),
    ),
    needed=("/root/.pyenv/versions/3.11", "/work/main"),
    hidden=(TMP, HiddenFolder("/run", 0o755)),
)


def of(steps: list[Step], kind: str) -> list[Step]:
    return [step for step in steps if step["do"] == kind]


def test_the_image_is_the_machine_with_its_temporary_folders_hidden():
    steps = plan_view(MACHINE, ViewRequest(as_root=True, readonly_root=False))
    assert steps[0] == {"do": "overlay", "lower": "/", "userxattr": False}
    assert [step["path"] for step in of(steps, "hide")] == ["/tmp", "/run"]
    assert [step["do"] for step in steps[-3:]] == ["dev", "proc", "sys"]
    assert not of(steps, "open")


def test_a_user_who_is_not_root_is_let_through_to_our_python():
    steps = plan_view(MACHINE, ViewRequest(as_root=False, readonly_root=False))
    opened = {step["path"]: step["leaf"] for step in of(steps, "open")}
    assert opened == {
        "/root": False,
        "/root/.pyenv": False,
        "/root/.pyenv/versions": False,
        "/root/.pyenv/versions/3.11": True,
        "/work": False,
        "/work/main": True,
    }


def test_other_real_file_systems_get_a_layer_of_their_own_outermost_first():
    mounts = (
        MountPoint("/home/data", "xfs", is_folder=True),
        MountPoint("/home", "ext4", is_folder=True),
        MountPoint("/", "ext4", is_folder=True),
        MountPoint("/sys/fs/cgroup", "cgroup2", is_folder=True),
        MountPoint("/run/user", "ext4", is_folder=True),
    )
    machine = Machine(mounts, MACHINE.needed, MACHINE.hidden)
    steps = plan_view(machine, ViewRequest(as_root=True, readonly_root=False))
    assert [step["lower"] for step in of(steps, "overlay")] == ["/", "/home", "/home/data"]


def test_a_tmpfs_that_holds_our_python_is_shown_and_one_that_holds_nothing_is_not():
    mounts = (MountPoint("/work", "tmpfs", is_folder=True), MountPoint("/scratch", "tmpfs", is_folder=True))
    steps = plan_view(Machine(mounts, MACHINE.needed, ()), ViewRequest(as_root=True, readonly_root=False))
    assert [step["lower"] for step in of(steps, "overlay")] == ["/", "/work"]


def test_a_mounted_file_is_shown_read_only():
    mounts = (MountPoint("/etc/resolv.conf", "ext4", is_folder=False),)
    steps = plan_view(Machine(mounts, (), ()), ViewRequest(as_root=True, readonly_root=False))
    (step,) = of(steps, "bind")
    assert (step["source"], step["target"], step["readonly"]) == ("/etc/resolv.conf", "/etc/resolv.conf", True)


def test_a_temporary_folder_is_hidden_and_the_checkout_in_it_mounted_again():
    machine = Machine((), ("/tmp/checkout/.venv",), MACHINE.hidden)
    steps = plan_view(machine, ViewRequest(as_root=False, readonly_root=True))
    assert [step["path"] for step in of(steps, "hide")] == ["/tmp", "/run"]
    assert [step["lower"] for step in of(steps, "overlay")] == ["/", "/tmp/checkout/.venv"]
    laid_in, opened = steps.index(of(steps, "overlay")[1]), steps.index(of(steps, "open")[0])
    assert steps.index(of(steps, "hide")[0]) < laid_in < opened
    assert steps[-1] == {"do": "seal", "paths": ["/", "/tmp", "/run", "/tmp/checkout/.venv"]}


def test_a_mount_inside_another_comes_after_it():
    mounts = [
        MountRecord("/data/inner/deep", "/h/3", readonly=True),
        MountRecord("/data/inner", "/h/2", readonly=False),
        MountRecord("/data/", "/h/1", readonly=False),
    ]
    steps = plan_view(MACHINE, ViewRequest(as_root=True, readonly_root=False, mounts=mounts))
    assert [step["source"] for step in of(steps, "bind")] == ["/h/1", "/h/2", "/h/3"]


def test_a_volume_over_a_checkout_in_tmp_does_not_hide_our_python():
    machine = Machine(mounts=MACHINE.mounts, needed=("/tmp/clone/.venv", "/work/main"), hidden=MACHINE.hidden)
    mounts = [MountRecord("/tmp", "/h/tmp", readonly=False), MountRecord("/work/main", "/h/w", readonly=True)]
    steps = plan_view(machine, ViewRequest(as_root=False, readonly_root=False, mounts=mounts))
    assert [step["target"] for step in of(steps, "bind")] == ["/tmp", "/work/main"]
    assert [step["lower"] for step in of(steps, "overlay")] == ["/", "/tmp/clone/.venv"]
    assert steps.index(of(steps, "bind")[0]) < steps.index(of(steps, "overlay")[1])


def test_a_read_only_root_is_sealed_last_and_without_the_volumes():
    mounts = [MountRecord("/tmp", "/h/tmp", readonly=False)]
    request = ViewRequest(as_root=True, readonly_root=True, mounts=mounts, masked=["/proc/kcore"])
    steps = plan_view(MACHINE, request)
    assert steps[-1] == {"do": "seal", "paths": ["/", "/run"]}


def test_folders_covered_by_a_volume_are_not_sealed_but_mounts_inside_it_are():
    machine = Machine(mounts=MACHINE.mounts, needed=("/tmp/clone",), hidden=(TMP,))
    mounts = [MountRecord("/tmp", "/h/tmp", readonly=False)]
    steps = plan_view(machine, ViewRequest(as_root=False, readonly_root=True, mounts=mounts))
    assert of(steps, "seal")[0]["paths"] == ["/", "/tmp/clone"]


def test_our_own_state_inside_a_checkout_in_tmp_stays_hidden():
    machine = Machine((), ("/tmp/clone",), (TMP, HiddenFolder("/tmp/clone/state", 0o755)))
    steps = plan_view(machine, ViewRequest(as_root=True, readonly_root=True))
    assert [step["path"] for step in of(steps, "hide")] == ["/tmp", "/tmp/clone/state"]
    assert steps.index(of(steps, "overlay")[1]) < steps.index(of(steps, "hide")[1])
    assert steps[-1]["paths"] == ["/", "/tmp", "/tmp/clone", "/tmp/clone/state"]


def test_in_a_user_namespace_each_folder_of_the_root_gets_a_layer():
    mounts = (*MACHINE.mounts, MountPoint("/home", "ext4", is_folder=True))
    tops = ("/dev", "/etc", "/home", "/proc", "/run", "/sys", "/tmp", "/usr")
    machine = Machine(mounts, MACHINE.needed, MACHINE.hidden, mapped_root=True, top_folders=tops)
    steps = plan_view(machine, ViewRequest(as_root=True, readonly_root=True))
    assert steps[0] == {"do": "skeleton"}
    assert [(step["lower"], step["userxattr"]) for step in of(steps, "overlay")] == [
        ("/etc", True),
        ("/usr", True),
        ("/home", True),
    ]
    assert steps[-1] == {"do": "seal", "paths": ["/", "/etc", "/usr", "/home", "/tmp", "/run"]}


def test_mountinfo_is_read_with_its_escapes():
    text = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "90 22 0:40 / /mnt/with\\040blank rw - tmpfs headrace-node rw\n"
    )
    assert parse_mounts(text) == [("/", "ext4", "/dev/vda"), ("/mnt/with blank", "tmpfs", "headrace-node")]


def test_paths():
    assert parents("/a/b/c") == ["/a", "/a/b"]
    assert below("/a/b", "/a")
    assert below("/a", "/a")
    assert not below("/ab", "/a")
    assert below("/a", "/")
