"""Connections that say nothing: `python -m musterd.chaos.faults.callers`, held until stdin ends."""

import contextlib
import socket
import sys

from musterd.chaos import child
from musterd.coordinator.node.config import split_address

CONNECT_S_MAX = 0.2
"""Longer waits only the one whom nobody takes."""


def main() -> None:
    """Connect `count` times to `endpoint`; answers with how many connections were established."""
    config = child.config()
    address = split_address(config["endpoint"])
    with contextlib.ExitStack() as held:
        connected = 0
        for _ in range(config["count"]):
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_connection(address, CONNECT_S_MAX))
                connected += 1
        child.answer(connected=connected)
        sys.stdin.read()


if __name__ == "__main__":
    main()
