"""Answers that may be longer than a message: given page by page, each well below the 4 MiB.

A caller goes on where the last page ended; every page is read anew, so what changes in between may
be seen or not, but nothing that stood before the first page and still stands is left out.
"""

import asyncio
from collections.abc import Collection
from heapq import nsmallest
from typing import Final

from coordinator.machine.limits import LIMITS
from coordinator.machine.state import Group
from coordinator.shard import Shard
from muster.v1 import admin_pb2, group_pb2

PAGE_BYTES: Final = LIMITS.client_message_max_bytes // 4
"""A page ends with the entry that reaches this; an entry has less than 5 KiB."""

PAGE_OFFSETS: Final = 5_000
"""Offsets in one page."""

PAGE_GROUPS: Final = 5_000
"""Groups in one page."""

SLICE_GROUPS: Final = 1_000
"""Groups looked at between two pauses for the loop."""


# ---- offsets

OffsetsQuery = group_pb2.OffsetFetchRequest | group_pb2.OffsetFetchRequest.Group
OffsetsAnswer = group_pb2.OffsetFetchResponse | group_pb2.OffsetFetchResponse.Group


def fill_offsets(
    group: Group | None,
    request: OffsetsQuery,
    response: OffsetsAnswer,
    page_bytes: int = PAGE_BYTES,
) -> None:
    """The offsets asked for, in the request's order, or with `all` in the order of their keys.

    -1 where none is committed (group-protocol F3, F5). `more` where the page did not hold all.
    """
    if group is not None and group.blob.blob:
        response.blob = group.blob.blob
    wanted, response.more = _wanted(group, request)
    size = 0
    for topic, partition in wanted:
        if size >= page_bytes:
            response.more = True
            break
        stored = group.offsets.get((topic, partition)) if group else None
        one = response.partitions.add(topic=topic, partition=partition, offset=-1, generation=-1)
        if stored is not None:
            one.offset = stored.offset
            one.metadata = stored.metadata
            one.wall_ms = stored.wall_ms
            one.generation = stored.generation
            if stored.end_offset is not None:
                one.end_offset = stored.end_offset
            if stored.start_offset is not None:
                one.start_offset = stored.start_offset
        size += one.ByteSize()


def _wanted(group: Group | None, request: OffsetsQuery) -> tuple[list[tuple[str, int]], bool]:
    """The keys of a page, and whether there are more than a page may hold."""
    if not request.all:
        return [(p.topic, p.partition) for p in request.partitions], False
    if group is None:
        return [], False
    after = (request.after.topic, request.after.partition) if request.HasField("after") else None
    keys = (key for key in group.offsets if after is None or key > after)
    found = nsmallest(PAGE_OFFSETS + 1, keys)
    return found[:PAGE_OFFSETS], len(found) > PAGE_OFFSETS


# ---- groups

CLASSIC: Final = "classic"
SIMPLE: Final = "simple"


class GroupsPage:
    """Groups of one shard after the other; each shard's by id."""

    def __init__(self, request: admin_pb2.ListGroupsRequest) -> None:
        self._states = _names(request.states)
        self._types = _names(request.types)
        self._protocol_types = _names(request.protocol_types)
        self._after = request.after_group_id
        self._size = 0
        self.response = admin_pb2.ListGroupsResponse()

    async def add(self, shard: Shard, *, resumed: bool) -> bool:
        """Add a shard's groups; False where the page is full.

        Args:
            shard: one that this node serves.
            resumed: the last page ended in this shard.
        """
        after = self._after if resumed else ""
        groups, cut = await self._first(shard, after)
        for group in groups:
            if self._size >= PAGE_BYTES or len(self.response.groups) >= PAGE_GROUPS:
                self.response.more = True
                return False
            one = self.response.groups.add(
                group_id=group.group_id,
                state=group.phase.value,
                protocol_type=group.protocol_type,
                members=len(group.members),
                generation=group.generation,
                type=type_of(group),
            )
            self._size += one.ByteSize()
        self.response.more = cut  # true only where groups have vanished since they were chosen
        return not cut

    async def _first(self, shard: Shard, after: str) -> tuple[list[Group], bool]:
        """The shard's next groups by id, one more than a page holds, and whether there are others.

        Told apart because groups may vanish while this pauses.
        """
        room = PAGE_GROUPS - len(self.response.groups) + 1
        groups = list(shard.state.groups.values())
        first: list[str] = []
        cut = False
        for start in range(0, len(groups), SLICE_GROUPS):
            if start:
                await asyncio.sleep(0)
            some = [
                group.group_id
                for group in groups[start : start + SLICE_GROUPS]
                if group.group_id > after and self._is_wanted(group)
            ]
            cut |= len(first) + len(some) > room
            first = sorted(first + some)[:room]
        found = (shard.state.groups.get(group_id) for group_id in first)
        return [group for group in found if group is not None], cut

    def _is_wanted(self, group: Group) -> bool:
        """Any of each list, all of the lists (group-protocol 2.13)."""
        return (
            (not self._states or group.phase.value.lower() in self._states)
            and (not self._types or type_of(group) in self._types)
            and (not self._protocol_types or group.protocol_type.lower() in self._protocol_types)
        )


def type_of(group: Group) -> str:
    """A group that nobody ever joined, or is about to, has offsets alone, or settings."""
    return CLASSIC if group.protocol_type or group.pending else SIMPLE


def _names(given: Collection[str]) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in given)
