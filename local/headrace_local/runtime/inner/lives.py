"""Whether a process is alive, and since when, from /proc.

A process ends thread by thread. When its first thread has ended, /proc shows a zombie, though the others may still hold
the process's ports and files: it has ended once none of them is left.
"""

# ruff: noqa: PTH123 - pathlib is slow to import, and each container starts one of these interpreters

from __future__ import annotations


def life_of(pid: int) -> tuple[bool, int] | None:
    """Whether the process with this pid has ended and only waits for its parent, and its start in ticks since boot.

    None if there is none.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            content = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = content[content.rindex(b")") + 2 :].split()  # the command's name, in parentheses, may hold anything
    state, threads, start = fields[0], int(fields[17]), int(fields[19])
    return state in {b"Z", b"X"} and threads <= 1, start


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot, which with the pid identifies it until the next boot.

    ProcessLookupError when there is none, or it has ended.
    """
    life = life_of(pid)
    if life is None:
        raise ProcessLookupError(3, "no such process", str(pid))
    ended, start = life
    if ended:
        raise ProcessLookupError(3, "the process has ended", str(pid))
    return start
