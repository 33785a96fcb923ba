"""Tells systemd how the node is: ready, alive, stopping (sd_notify(3)).

The watchdog's sign of life comes from the node's own loop, so a loop that hangs is noticed and the
node is started anew. It says nothing of quorum: a node without one is alive.
"""

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Final

_US: Final = 1_000_000


class ServiceManager:
    """The service manager that started this process, or nobody: then each call does nothing."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`environment`: with NOTIFY_SOCKET and WATCHDOG_USEC as systemd sets them."""
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        watched = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environment.get("WATCHDOG_USEC", "")
        self.interval_s = int(usec) / _US / 2 if watched and usec.isdigit() else 0.0
        """Between two signs of life: half of what systemd waits for; 0 = it does not wait."""
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, status: str) -> None:
        """The ports are open; from here on the loop gives signs of life."""
        self._tell(f"READY=1\nSTATUS={status}")
        if self.interval_s and self._address:
            self._alive()

    def stopping(self) -> None:
        """The node drains. Signs of life go on, since the loop still works."""
        self._tell("STOPPING=1\nSTATUS=handing leadership over")

    def close(self) -> None:
        """No more signs of life."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _alive(self) -> None:
        self._tell("WATCHDOG=1")
        self._timer = asyncio.get_running_loop().call_later(self.interval_s, self._alive)

    def _tell(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
                one.setblocking(False)
                one.sendto(text.encode(), self._address)
        except OSError:
            return  # systemd ends a node that it does not hear: nothing is left to do here
