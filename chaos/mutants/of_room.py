"""Builds that let state or disks grow beyond what there is room for."""

import musterd.coordinator.runtime.shard
import musterd.raft.driver
from musterd.chaos.mutants.build import Build
from musterd.coordinator.machine.commands import Command
from musterd.coordinator.runtime.calls import Call
from musterd.coordinator.runtime.growth import Growth, StateSize
from musterd.coordinator.runtime.proposer import Proposer
from musterd.raft.codec import Message
from musterd.raft.contract import Room
from musterd.raft.disk_room import DiskRoom
from musterd.raft.replica.replica import Replica


def _never_refused(_self: StateSize, _growth: Growth, _group: int, _shard: int) -> None:
    """Everything has a place."""


class WithoutReservation(Proposer):
    """Counts what is applied alone: a burst that is under way exceeds every limit."""

    def offer(
        self,
        command: Command,
        size: int,
        call: Call | None = None,
        growth: int = 0,
        offsets: int = 0,
    ) -> str | None:
        return super().offer(command, size, call, offsets=offsets)


def _has_room(_self: DiskRoom, _node: int) -> Room:
    return Room.ENOUGH


class TakingWithoutRoom(Replica):
    """Takes entries of its leader though its disk has no room for them."""

    def _keep_matching(self, message: Message) -> None:
        rooms = self._host.rooms
        room, rooms.own = rooms.own, Room.ENOUGH
        try:
            super()._keep_matching(message)
        finally:
            rooms.own = room


BUILDS = (
    Build(
        "growth_unreserved",
        WithoutReservation.__doc__ or "",
        ((musterd.coordinator.runtime.shard, "Proposer", WithoutReservation),),
    ),
    Build(
        "low_unheard",
        "A leader does not hear what followers say of their disks.",
        ((DiskRoom, "of", _has_room),),
    ),
)
"""Caught by unit tests."""

SIMULATED = (
    Build(
        "growth_unchecked",
        "Takes whatever the state's limits say.",
        ((StateSize, "refusal", _never_refused),),
    ),
    Build(
        "taken_without_room",
        TakingWithoutRoom.__doc__ or "",
        ((musterd.raft.driver, "Replica", TakingWithoutRoom),),
    ),
)
