"""Logs for machines: every record is one JSON object with its extra fields."""

import json
import logging
import sys

from headrace_core.json_log import JsonFormatter


def line_of(record: logging.LogRecord) -> dict[str, object]:
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_record_is_one_object_with_its_extra_fields():
    record = logging.makeLogRecord(
        {"name": "x", "levelname": "INFO", "msg": "took %d", "args": (3,), "trial": 7, "created": 0.5}
    )
    assert line_of(record) == {
        "time": "1970-01-01T00:00:00.500+00:00", "level": "info", "logger": "x", "message": "took 3", "trial": 7
    }  # fmt: skip


def test_a_traceback_and_what_json_cannot_hold_are_text():
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info(), "path": {1}})
    line = line_of(record)
    assert "ValueError: no" in str(line["traceback"])
    assert line["path"] == "{1}"
