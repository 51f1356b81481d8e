"""A container's launcher: makes its namespaces and file view, writes its log, notes its exit code.

Started by the runtime as `python -I -S -c ... FOLDER`, it outlives the runtime. Files in FOLDER:
`launch.json` (read), `state.json` (its processes; written before the command starts and once it runs), `exit.json`
(how it ended). On stdout it answers with one JSON line: `{"started": true}` or `{"error": "..."}`.
SIGUSR1 makes it reopen the log.
"""

# pathlib is slow to import, and each container starts one of these interpreters:
# ruff: noqa: PTH118, PTH123

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
import traceback

from headrace_local.runtime.inner import files, identity, lives, syscalls
from headrace_local.runtime.inner.logs import LineSplitter, LogFile
from headrace_local.runtime.inner.rootfs import FileView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headrace_local.runtime.plans import LaunchPlan

#: Exit code that container runtimes report for a command that could not be started.
START_FAILED = 128
_CHUNK = 64 * 1024


def main(folder: str) -> int:
    """Run the container of this folder until it ends; 1 if it could not be started."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the launcher ends with its container, or by SIGKILL
    with open(os.path.join(folder, "launch.json"), encoding="utf-8") as file:
        plan: LaunchPlan = json.load(file)
    container = _Container(folder, plan)
    error = container.start()
    if error:
        container.note_exit(START_FAILED, "StartError", error)
        _answer({"error": error})
        return 1
    _answer({"started": True})
    container.follow()
    return 0


class _Container:
    """The container while it runs: its first process, its two output pipes, its log."""

    def __init__(self, folder: str, plan: LaunchPlan) -> None:
        self._folder = folder
        self._plan = plan
        self._log = LogFile(plan["log_path"])
        self._wake_reader, self._wake_writer = os.pipe()
        self._init = 0

    def start(self) -> str:
        """Start the command. Returns why that failed, or an empty string."""
        self._note_state()
        os.set_blocking(self._wake_writer, False)
        signal.set_wakeup_fd(self._wake_writer)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        self._pipes = {name: os.pipe() for name in ("stdout", "stderr")}
        failure_reader, failure_writer = os.pipe()
        try:
            syscalls.unshare(syscalls.CLONE_NEWPID)
        except OSError as error:
            return f"cannot make a process namespace: {error}"
        self._init = os.fork()
        if self._init == 0:
            os.close(failure_reader)
            self._become_container(failure_writer)
        os.close(failure_writer)
        for _, writer in self._pipes.values():
            os.close(writer)
        with os.fdopen(failure_reader, encoding="utf-8") as reader:
            failure = reader.read()  # ends when the command is executed, which closes the other side
        if failure:
            os.waitpid(self._init, 0)
            return failure
        self._note_state()
        return ""

    def follow(self) -> None:
        """Copy the output to the log until the container ends, then note its exit code."""
        watched = selectors.DefaultSelector()
        for name, (reader, _) in self._pipes.items():
            watched.register(reader, selectors.EVENT_READ, LineSplitter(name))
        watched.register(self._wake_reader, selectors.EVENT_READ, "wake")
        process = os.pidfd_open(self._init)
        watched.register(process, selectors.EVENT_READ, "end")
        ended = False
        while not ended:
            for key, _ in watched.select():
                if key.data == "end":
                    ended = True
                elif key.data == "wake":
                    os.read(self._wake_reader, 64)
                    self._log.reopen()
                else:
                    self._copy(watched, key)
        _, status = os.waitpid(self._init, 0)
        # The kernel has killed everything else in the namespace with it, so the pipes end here.
        for key in [key for key in watched.get_map().values() if isinstance(key.data, LineSplitter)]:
            while self._copy(watched, key):
                pass
        code = files.exit_code(status)
        self.note_exit(code, "Completed" if code == 0 else "Error", "")

    def note_exit(self, code: int, reason: str, message: str) -> None:
        """Write `exit.json`."""
        content = {"exit_code": code, "reason": reason, "message": message, "finished_at": time.time_ns()}
        files.write_json(os.path.join(self._folder, "exit.json"), content)

    def _copy(self, watched: selectors.BaseSelector, key: selectors.SelectorKey) -> bool:
        chunk = os.read(key.fd, _CHUNK)
        now = time.time_ns()
        self._log.write(key.data.feed(chunk, now) if chunk else key.data.finish(now))
        if not chunk:
            watched.unregister(key.fd)
        return bool(chunk)

    def _note_state(self) -> None:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        content = {
            "boot": boot,
            "supervisor": [os.getpid(), lives.start_ticks(os.getpid())],
            "init": [self._init, _ticks_or_zero(self._init)],
            "started_at": time.time_ns(),
        }
        files.write_json(os.path.join(self._folder, "state.json"), content)

    def _become_container(self, failure: int) -> None:
        """Runs in the child; never returns."""
        signal.set_wakeup_fd(-1)
        for (_, writer), target in zip(self._pipes.values(), (1, 2), strict=True):
            os.dup2(writer, target)
        try:
            syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS)
            if self._plan["hostname"]:
                syscalls.set_hostname(self._plan["hostname"])
            view = FileView(self._folder)
            view.build(self._plan["steps"])
            view.enter()
            identity.run(self._plan["command"])
        except OSError as error:
            os.write(failure, _describe(error, self._plan["command"]["argv"][0]).encode())
        except BaseException:  # our own bug: the kubelet must still get the reason
            os.write(failure, traceback.format_exc().encode())
        os._exit(START_FAILED)


def _describe(error: OSError, command: str) -> str:
    if error.filename is None or os.fsdecode(error.filename).endswith(command):
        return f'exec "{command}": {error.strerror} (the command, its folder or its interpreter in the container)'
    return f"{error.strerror}: {os.fsdecode(error.filename)}"


def _ticks_or_zero(pid: int) -> int:
    try:
        return lives.start_ticks(pid) if pid else 0
    except ProcessLookupError:  # it has ended already; its exit is noted next
        return 0


def _answer(content: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
