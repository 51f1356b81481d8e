"""`python -m headrace_local.runtime --slot N`: the CRI runtime, until SIGTERM. Its containers outlive it."""

from __future__ import annotations

import argparse
import sys

from headrace_local.layout import default_slot
from headrace_local.runtime.server import make_server
from headrace_local.serving import log_to_stderr, ready_until_stopped


def main() -> int:
    """Serve until SIGTERM; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m headrace_local.runtime", description=__doc__)
    parser.add_argument("--slot", type=int, default=0, help="number of the embedded cluster")
    parser.add_argument(
        "--extra-image",
        action="append",
        default=[],
        metavar="NAME",
        help="an additional image name that stands for this machine",
    )
    options = parser.parse_args()
    log_to_stderr()
    slot = default_slot(options.slot)
    try:
        server = make_server(slot, options.extra_image)
    except PermissionError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    server.start()
    ready_until_stopped(slot.ready_file("runtime"))
    server.stop(grace=1).wait()
    slot.runtime_socket.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
