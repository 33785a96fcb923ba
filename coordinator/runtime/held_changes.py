"""Holds back calls that would change a modern group while a plan of it is overdue (planner.py).

A plan is refused where what it was made from has changed meanwhile. Of a group that changes more
often than its plan takes none would ever be stored.
"""

from collections import Counter, deque
from collections.abc import Callable

from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.runtime.answers import Answer, Shed
from musterd.coordinator.runtime.calls import Call


class HeldChanges:
    """The calls of one shard that wait, in the order in which they came."""

    def __init__(self) -> None:
        self._calls: deque[tuple[str, Call, int]] = deque()
        self._groups: Counter[str] = Counter()
        """How many calls of each group wait."""
        self._bytes = 0

    def __bool__(self) -> bool:
        """True while a call waits."""
        return bool(self._calls)

    def has(self, group_id: str) -> bool:
        """Whether a call of this group waits: what would change it later comes after that one."""
        return group_id in self._groups

    def hold(self, group_id: str, call: Call, size: int) -> None:
        """Keep a call whose command takes at most `size` bytes; sheds it where there is no room."""
        most = LIMITS.held_changes_max_bytes
        if len(self._calls) >= LIMITS.held_changes_max or self._bytes + size > most:
            call.answer(Shed("the changes that wait for a plan"))
            return
        self._keep(group_id, call, size)
        call.waits()

    def _keep(self, group_id: str, call: Call, size: int) -> None:
        self._calls.append((group_id, call, size))
        self._groups[group_id] += 1
        self._bytes += size

    def free(self, is_held: Callable[[str], bool]) -> list[tuple[Call, int]]:
        """Take the calls of groups that are not held any more, in order, with their sizes."""
        if not self._calls:
            return []
        free: list[tuple[Call, int]] = []
        calls, self._calls, self._groups, self._bytes = self._calls, deque(), Counter(), 0
        for group_id, call, size in calls:
            if is_held(group_id):
                self._keep(group_id, call, size)
            else:
                free.append((call, size))
        return free

    def release(self, answer: Answer) -> None:
        """Answer all: this node leads the shard no more."""
        for call, _ in self.free(lambda _: False):
            call.answer(answer)
