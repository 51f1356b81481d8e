"""Container output in the CRI log format: `TIMESTAMP STREAM F|P LINE`."""

# pathlib is slow to import, and each container starts one of these interpreters:
# ruff: noqa: PTH103, PTH120

from __future__ import annotations

import os
import time

#: A longer line is written in parts (tag P), the last one with tag F.
MAX_LINE = 16 * 1024


def timestamp(nanoseconds: int) -> str:
    """RFC 3339 in UTC with nine digits of the second."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:09d}Z"


class LineSplitter:
    """Turns the chunks read from one stream into log lines. Keeps the unfinished line; otherwise pure."""

    def __init__(self, stream: str) -> None:
        self._stream = stream.encode()
        self._rest = b""

    def feed(self, chunk: bytes, now: int) -> bytes:
        """The log lines that this chunk completes; `now` in nanoseconds since 1970."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        written = [self._line(line, b"F", now) for line in lines]
        while len(self._rest) >= MAX_LINE:
            written.append(self._format(self._rest[:MAX_LINE], b"P", now))
            self._rest = self._rest[MAX_LINE:]
        return b"".join(written)

    def finish(self, now: int) -> bytes:
        """What is left when the stream ends without a line break: a partial line, as other runtimes write it."""
        rest, self._rest = self._rest, b""
        return self._line(rest, b"P", now) if rest else b""

    def _line(self, line: bytes, tag: bytes, now: int) -> bytes:
        parts = [line[start : start + MAX_LINE] for start in range(0, len(line), MAX_LINE)] or [b""]
        tags = [b"P"] * (len(parts) - 1) + [tag]
        return b"".join(self._format(part, mark, now) for part, mark in zip(parts, tags, strict=True))

    def _format(self, part: bytes, tag: bytes, now: int) -> bytes:
        return b" ".join((timestamp(now).encode(), self._stream, tag, part)) + b"\n"


class LogFile:
    """The container's log file; the kubelet may rename it at any time and ask for a new one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = self._open()

    def write(self, lines: bytes) -> None:
        """Append. On an error such as a full disk the lines are lost, but the container goes on."""
        view = memoryview(lines)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except OSError:
                return

    def reopen(self) -> None:
        """Open a new file at the same path and write to that from now on."""
        fresh = self._open()
        os.close(self._descriptor)
        self._descriptor = fresh

    def _open(self) -> int:
        if not self._path:
            return os.open(os.devnull, os.O_WRONLY)
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
