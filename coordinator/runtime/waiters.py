"""Parked Joins and Syncs of one shard, answered from events (gp-1.5).

Whether a member has joined or synced is replicated; only whom to answer is kept here, on the
leader.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from enum import Enum

from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    AssignmentPublished,
    Event,
    GenerationFormed,
    MemberRemoved,
    MemberReplaced,
    RebalanceStarted,
)
from musterd.coordinator.machine.replies import Refused, join_reply, sync_reply
from musterd.coordinator.machine.state import Group
from musterd.coordinator.runtime.answers import Answer, ParkOver, Superseded
from musterd.coordinator.runtime.calls import Call
from musterd.coordinator.runtime.timeouts import PARK_MS_MAX


class Barrier(Enum):
    """The barrier that a parked call waits for."""

    JOIN = "join"
    SYNC = "sync"


_Key = tuple[str, Barrier]

REBALANCING = Refused(
    Error.REBALANCE_IN_PROGRESS, "A new round of this group has opened: join it again."
)
REMOVED = Refused(
    Error.UNKNOWN_MEMBER_ID, "This member was removed from the group: join again as a new one."
)

FENCED = Refused(
    Error.FENCED_INSTANCE_ID, "Another process has joined with the instance id of this member."
)


class Waiters:
    """One parked call per member and barrier; a newer one takes the place of the older."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[_Key, Call]] = {}
        self._ends_ms: OrderedDict[int, tuple[int, str, _Key]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(calls) for calls in self._groups.values())

    def park(
        self, barrier: Barrier, group_id: str, member_id: str, call: Call, clock_ms: int
    ) -> None:
        """Hold `call` until an event answers it, `clock_ms` + 25 s at most."""
        calls = self._groups.setdefault(group_id, {})
        key = (member_id, barrier)
        older = calls.pop(key, None)
        calls[key] = call
        self._ends_ms[id(call)] = (clock_ms + PARK_MS_MAX, group_id, key)
        if older is not None:
            self._ends_ms.pop(id(older), None)
            older.answer(Superseded())

    def unpark(self, call: Call) -> None:
        """Forget a call whose caller is gone; nothing happens where it is not parked."""
        parked = self._ends_ms.pop(id(call), None)
        if parked is not None:
            _, group_id, key = parked
            self._take(group_id, key)

    def consume(self, event: Event, group: Group | None, dropped_version: int) -> None:
        """Answer whom this event answers. `group` is the state right after the event's command.

        `dropped_version`: see `Joined`.
        """
        group_id: str = getattr(event, "group_id", "")
        calls = self._groups.get(group_id)
        if not calls:
            return
        for key, answer in _answers(event, group, calls, dropped_version):
            if key in calls:
                self._answer(group_id, key, answer)

    def turn(self, clock_ms: int) -> None:
        """Let go of calls that were parked for the longest time allowed."""
        while self._ends_ms:
            end_ms, group_id, key = next(iter(self._ends_ms.values()))
            if end_ms > clock_ms:
                return
            self._ends_ms.popitem(last=False)
            call = self._take(group_id, key)
            if call is not None:
                call.answer(ParkOver())

    def release(self) -> list[Call]:
        """Hand over every parked call, in the order of parking: the shard is led elsewhere."""
        calls = [
            call
            for _, group_id, key in self._ends_ms.values()
            if (call := self._groups[group_id].get(key)) is not None
        ]
        self._groups.clear()
        self._ends_ms.clear()
        return calls

    def _answer(self, group_id: str, key: _Key, answer: Answer) -> None:
        call = self._take(group_id, key)
        if call is not None:
            self._ends_ms.pop(id(call), None)
            call.answer(answer)

    def _take(self, group_id: str, key: _Key) -> Call | None:
        calls = self._groups.get(group_id)
        if calls is None:
            return None
        call = calls.pop(key, None)
        if not calls:
            del self._groups[group_id]
        return call


def _answers(  # noqa: C901 - one arm per event
    event: Event, group: Group | None, calls: Collection[_Key], dropped_version: int
) -> Iterator[tuple[_Key, Answer]]:
    """Which calls an event answers, and how; none need be parked there."""
    match event:
        case GenerationFormed() if group is not None:
            for member_id in event.member_ids:
                joined = join_reply(group, member_id, dropped_version)
                yield (member_id, Barrier.JOIN), joined
        case AssignmentPublished() if group is not None:
            for key in _syncs(calls):
                if key[0] in group.members:
                    yield key, sync_reply(group, key[0])
        case RebalanceStarted():
            for key in _syncs(calls):
                yield key, REBALANCING
        case MemberRemoved():
            for barrier in Barrier:
                yield (event.member_id, barrier), REMOVED
        case MemberReplaced():
            for barrier in Barrier:
                yield (event.replaced_id, barrier), FENCED
        case _:
            return


def _syncs(calls: Collection[_Key]) -> list[_Key]:
    return [key for key in calls if key[1] is Barrier.SYNC]
