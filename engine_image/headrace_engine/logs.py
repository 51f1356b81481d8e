"""Logging set-up: one JSON object per line for machines, rich output for people."""

from __future__ import annotations

import logging
import sys

from rich.logging import RichHandler

from headrace_core.json_log import JsonFormatter

QUIET = ("transformers", "uvicorn", "uvicorn.error", "asyncio", "httpx", "urllib3", "filelock", "huggingface_hub")
ACCESS = "headrace_engine.access"


def configure(*, as_json: bool, access_log: bool = True) -> None:
    """Send all logs to standard error; without `access_log`, only warnings of the access log."""
    handler: logging.Handler
    if as_json:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
    else:
        handler = RichHandler(show_path=False, log_time_format="[%X]")
        handler.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in (*QUIET, *(() if access_log else (ACCESS,))):
        logging.getLogger(name).setLevel(logging.WARNING)
