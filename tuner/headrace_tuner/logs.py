"""JSON lines on standard error: time, level, message, and whatever `extra` adds."""

from __future__ import annotations

import logging
import sys

from headrace_core.json_log import JsonFormatter


def configure() -> None:
    """Send every log record to standard error as JSON, from INFO on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
