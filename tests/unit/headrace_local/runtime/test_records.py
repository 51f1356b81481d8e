"""Records are found again by the next runtime."""

from pathlib import Path

from headrace_local.runtime.plans import LaunchPlan
from headrace_local.runtime.records import (
    ContainerRecord,
    ContainerRecords,
    MountRecord,
    SandboxRecord,
)

SANDBOX = SandboxRecord(
    id="s1",
    name="mill",
    uid="u",
    namespace="default",
    attempt=0,
    hostname="mill",
    address="127.97.0.2",
    host_network=False,
    log_directory="/logs",
    created_at=1,
    boot="b",
    labels={"app": "mill"},
    dns_servers=("127.96.0.10",),
)
CONTAINER = ContainerRecord(
    id="c1",
    sandbox="s1",
    name="wheel",
    attempt=2,
    image="headrace/engine:dev",
    image_ref="sha256:0",
    created_at=2,
    log_path="/logs/wheel/2.log",
    stop_signal=15,
    uid=65532,
    gid=65532,
    groups=(7,),
    mounts=(MountRecord("/etc/x", "/host/x", readonly=True),),
)


def plan() -> LaunchPlan:
    return {
        "folder": "/f",
        "log_path": "/logs/wheel/2.log",
        "hostname": "mill",
        "steps": [{"do": "proc"}],
        "command": {
            "argv": ["python"],
            "env": {"A": "1"},
            "cwd": "/",
            "uid": 65532,
            "gid": 65532,
            "groups": [7],
            "capabilities": [],
            "no_new_privileges": True,
            "honour_user": True,
        },
    }


def test_records_survive_the_runtime(tmp_path: Path):
    before = ContainerRecords(tmp_path)
    before.put_sandbox(SANDBOX)
    before.put_container(CONTAINER, plan())
    before.cursor = 17
    after = ContainerRecords(tmp_path)
    assert after.sandboxes() == [SANDBOX]
    assert after.containers("s1") == [CONTAINER]
    assert after.containers("other") == []
    assert after.launch_plan("c1") == plan()
    assert after.cursor == 17


def test_dropped_records_stay_deleted(tmp_path: Path):
    records = ContainerRecords(tmp_path)
    records.put_sandbox(SANDBOX)
    records.put_container(CONTAINER, plan())
    for _ in range(2):
        records.drop_container("c1")
        records.drop_sandbox("s1")
    assert ContainerRecords(tmp_path).containers() == []
    assert ContainerRecords(tmp_path).sandboxes() == []
    assert not records.folder("c1").exists()


def test_an_interrupted_removal_leaves_no_container(tmp_path: Path):
    records = ContainerRecords(tmp_path)
    records.put_container(CONTAINER, plan())
    (records.folder("c1") / "record.json").unlink()
    assert ContainerRecords(tmp_path).containers() == []
