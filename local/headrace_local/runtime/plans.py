"""What the runtime writes for the launcher: the shape of `launch.json` and of an exec request (types only)."""

from __future__ import annotations

from typing import TypedDict


class CommandPlan(TypedDict):
    """A command and who runs it. `honour_user` is false where users cannot be changed (a mapped root)."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    uid: int
    gid: int
    groups: list[int]
    capabilities: list[int]
    no_new_privileges: bool
    honour_user: bool


class LaunchPlan(TypedDict):
    """Everything that one container's launcher needs; `steps` are the file view's (see `fileview`)."""

    folder: str
    log_path: str
    hostname: str
    steps: list[dict[str, object]]
    command: CommandPlan


class EnterPlan(TypedDict):
    """A command to be run beside a container's first process `pid` (started at clock tick `start`)."""

    pid: int
    start: int
    command: CommandPlan
