"""What a run shows while it goes on: one line that is drawn again, or plain lines."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

PLAIN_EVERY_S = 30.0


class View:
    """Where a run shows itself: this one nowhere."""

    def say(self, line: str) -> None:
        """Something happened."""

    def update(self, done: float, now: str) -> None:
        """So much of the run is over (0 to 1), and this is happening."""

    def close(self) -> None:
        """Nothing more comes."""


def make_view() -> View:
    """On stderr, as fits it."""
    return LiveView() if sys.stderr.isatty() else PlainView()


class PlainView(View):
    """A line for each thing that happens, and one now and then."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next_s = PLAIN_EVERY_S

    def say(self, line: str) -> None:
        """With the seconds since the start."""
        sys.stderr.write(f"{time.monotonic() - self._began:6.1f} s  {line}\n")
        sys.stderr.flush()

    def update(self, done: float, now: str) -> None:
        """Not more often than every 30 s."""
        now_s = time.monotonic() - self._began
        if now_s >= self._next_s:
            self._next_s = now_s + PLAIN_EVERY_S
            self.say(f"{done:4.0%}  {now}")


class LiveView(View):
    """A bar with what is happening now; what happened scrolls above it."""

    def __init__(self, console: Console | None = None) -> None:
        self._began = time.monotonic()
        self._progress = Progress(
            TimeElapsedColumn(),
            BarColumn(30),
            TextColumn("{task.percentage:3.0f} %  {task.description}"),
            console=console or Console(stderr=True),
        )
        self._task = self._progress.add_task("starting", total=1.0)
        self._progress.start()

    def say(self, line: str) -> None:
        text = f"{time.monotonic() - self._began:6.1f} s  {line}"
        self._progress.console.print(text, markup=False, highlight=False)

    def update(self, done: float, now: str) -> None:
        self._progress.update(self._task, completed=done, description=now)

    def close(self) -> None:
        self._progress.stop()
