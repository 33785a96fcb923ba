"""Counts steps, so that planning stops after a bounded number of them to let others run."""

from collections.abc import Generator, Iterator
from typing import Final, TypeVar

SLICE_STEPS: Final = 2_000
"""Steps between two stops; one more chunk may come on top. A step is some lines of Python."""
CHUNK: Final = 1_000
"""The most steps that are counted at once, where the length of a loop is not bounded otherwise."""


T = TypeVar("T")


def finished(steps: Generator[None, None, T]) -> T:
    """Make all slices at once; returns what they come to."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class Pace:
    """Says after which step the caller stops. By count, not by a clock: repeatable."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = SLICE_STEPS

    def due(self, steps: int) -> bool:
        """True where these steps were the last of a slice: yield then."""
        self._left -= steps
        if self._left > 0:
            return False
        self._left = SLICE_STEPS
        return True


def chunks(count: int) -> Iterator[range]:
    """Yield `range(count)` in pieces of at most `CHUNK`."""
    for first in range(0, count, CHUNK):
        yield range(first, min(first + CHUNK, count))
