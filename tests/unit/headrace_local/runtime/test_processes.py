"""What processes use, by process namespace."""

import os

from headrace_local.runtime.processes import process_namespace, usage_by_namespace


def test_usage_is_counted_by_process_namespace():
    usage = usage_by_namespace()[process_namespace(os.getpid())]
    assert usage.processes >= 1
    assert usage.rss_bytes > 1 << 20
