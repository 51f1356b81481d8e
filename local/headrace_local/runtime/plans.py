"""Types of the launcher's `launch.json` and of the plan for a command inside a container."""

from __future__ import annotations

from typing import TypedDict


class CommandPlan(TypedDict):
    """A command and its user. `honour_user` is false where the user can't be changed (mapped root)."""

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
    """A command to run in the namespaces of process `pid` (started at clock tick `start`)."""

    pid: int
    start: int
    command: CommandPlan
