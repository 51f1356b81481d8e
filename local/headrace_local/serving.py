"""Shared by our own node processes: logging to stderr, a ready file, a clean end on SIGTERM."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def log_to_stderr(level: int = logging.INFO) -> None:
    """Log one line per message to stderr, with the time."""
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


@contextmanager
def ready(path: Path) -> Iterator[None]:
    """Keep the ready file in place while the block runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def ready_until_stopped(path: Path) -> None:
    """Create the ready file and wait for SIGTERM or SIGINT."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with ready(path):
        stopped.wait()
