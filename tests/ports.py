"""Ports for servers that have to be told one.

A port that the kernel handed out and got back is handed out again, to any client or server of the other tests, before
the server that was told it has bound it. So these lie below those that the kernel hands out.
"""

import random
import socket
from pathlib import Path

LOWEST = 20_000


def free_port() -> int:
    lowest_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(LOWEST, max(lowest_of_kernel, LOWEST + 1000))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
