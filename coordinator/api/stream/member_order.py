"""The order in which a member's requests enter the log: that in which its client made them.

A request waits until those of the same member before it were put to their shard. It does not wait
for their answers: a Leave passes the Join that is parked.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from muster.v1.group_pb2 import (
    ConsumerGroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)

Member: TypeAlias = tuple[str, str]
"""A group's id, and the id of one of its members."""

IN_LOG_REQUESTS: Final = (
    JoinGroupRequest,
    SyncGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    ConsumerGroupHeartbeatRequest,
)
"""Those that enter the log in the order in which their member made them."""


class Entering:
    """A request on its way to the log."""

    __slots__ = ("_is_over", "_last", "_members", "_then", "_told", "_turn", "_waits", "is_in")

    def __init__(self, last: dict[Member, "Entering"], told: Callable[["Entering"], None]) -> None:
        """`last`: by member, its stream's latest request that is not in yet.

        `told` is called once it is parsed, or ends before that.
        """
        self._last = last
        self._told = told
        self._members: tuple[Member, ...] = ()
        self._waits = 0
        """How many requests before it are not in."""
        self._turn: asyncio.Future[None] | None = None
        self._then: list[Callable[[], None]] = []
        """Told of it once it is in."""
        self._is_over = False
        self.is_in = False

    async def parsed(self, request: Any) -> None:
        """Wait for the members' requests before this one."""
        if not self._members:
            self.name(members_of(request))
        self._told(self)
        if self._waits:
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn

    def name(self, members: tuple[Member, ...]) -> None:
        """Say whose request it is; before it is parsed where that is known so early."""
        last = self._last
        self._members = members
        for before in dict.fromkeys(last[one] for one in self._members if one in last):
            before._then.append(self._one_is_in)  # noqa: SLF001 - of its own class
            self._waits += 1
        for member in self._members:
            last[member] = self

    def entered(self) -> None:
        """Its command is on its way: the next one may follow. A second time changes nothing."""
        if self.is_in:
            return
        self.is_in = True
        last = self._last
        for member in self._members:
            if last.get(member) is self:
                del last[member]
        for then in self._then:
            then()
        self._then.clear()

    def ended(self) -> None:
        """It was answered, refused or cancelled. Who follows waits for those before it still."""
        self._is_over = True
        if not self._waits:
            self.entered()
        self._told(self)

    def _one_is_in(self) -> None:
        self._waits -= 1
        if self._waits:
            return
        if self._is_over:
            self.entered()
        elif self._turn is not None and not self._turn.done():
            self._turn.set_result(None)


def members_of(request: Any) -> tuple[Member, ...]:
    """Whose request it is; nobody's where the member has no id yet."""
    group_id: str = request.group_id
    if isinstance(request, LeaveGroupRequest):
        return tuple({(group_id, one.member_id): None for one in request.members if one.member_id})
    return ((group_id, request.member_id),) if request.member_id else ()
