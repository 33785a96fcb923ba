"""Shows a run while it goes on."""

import sys
import time

EVERY_S = 30.0


class View:
    """A display of a run; this one shows nothing."""

    def say(self, line: str) -> None: ...

    def update(self, done: float, now: str) -> None:
        """So much of the run is over (0 to 1), and this is happening."""


class Lines(View):
    """On stderr a line for each thing that happens, and one now and then."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next_s = EVERY_S

    def say(self, line: str) -> None:
        """With the seconds since the start."""
        sys.stderr.write(f"{time.monotonic() - self._began:6.1f} s  {line}\n")
        sys.stderr.flush()

    def update(self, done: float, now: str) -> None:
        """Not more often than every 30 s."""
        now_s = time.monotonic() - self._began
        if now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            self.say(f"{done:4.0%}  {now}")
