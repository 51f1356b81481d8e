"""Logs: one JSON object a line for machines, rich for people."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from rich.logging import RichHandler

PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
QUIET = ("transformers", "uvicorn", "uvicorn.error", "asyncio", "httpx", "urllib3", "filelock", "huggingface_hub")


class JsonFormatter(logging.Formatter):
    """time, level, logger, message, the record's extra fields, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({name: value for name, value in vars(record).items() if name not in PLAIN})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(*, as_json: bool) -> None:
    """Send all logs to standard error in the chosen form."""
    handler: logging.Handler
    if as_json:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
    else:
        handler = RichHandler(show_path=False, log_time_format="[%X]")
        handler.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
