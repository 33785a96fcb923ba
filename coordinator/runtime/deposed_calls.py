"""Calls whose coordinator has just been deposed: they wait a moment for the new one's name."""

from musterd.coordinator.runtime.answers import NotHere
from musterd.coordinator.runtime.calls import Call
from musterd.coordinator.runtime.timeouts import DEPOSED_HOLD_MS


class DeposedCalls:
    """A hint in NOT_COORDINATOR saves its caller a round trip, and is known some ms later."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._end_ms = 0

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call, clock_ms: int) -> None:
        """Keep a call, until `clock_ms` + 200 at most; the first one's time counts for all."""
        if not self._calls:
            self._end_ms = clock_ms + DEPOSED_HOLD_MS
        self._calls.append(call)

    def turn(self, clock_ms: int, answer: NotHere) -> None:
        """Answer them all if the new leader is known or the time is over."""
        if answer.leader is not None or clock_ms >= self._end_ms:
            self.release(answer)

    def release(self, answer: NotHere) -> None:
        """Give every call that waits this answer."""
        calls, self._calls = self._calls, []
        for call in calls:
            call.answer(answer)
