"""Ctrl-C and SIGTERM: the first one ends a run in good order, the next one at once."""

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """As a context manager, in the main thread: inside, both signals raise KeyboardInterrupt.

    The processes of a run do not hear of Ctrl-C (`musterd.chaos.child`): this one alone is told.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say`: told where a signal changes nothing."""
        self._say = say
        self.count = 0
        """How many signals have come."""
        self._finishing = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._heard) for number in _NUMBERS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def finishing(self) -> None:
        """The run is over: the first signal, if it comes only now, ends nothing any more."""
        self._finishing = True

    def _heard(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.count += 1
        if self._finishing and self.count == 1:
            self._say("the run is over, its report comes in a moment; again = at once")
        else:
            raise KeyboardInterrupt
