"""Pages of answers that may be longer than a message; each is well below its 4 MiB.

A caller goes on where the last page ended. Every page is read anew: what changes in between may be
seen or not, but all that stood before the first page and still stands is in one of them.
"""

from collections.abc import Callable, Collection
from typing import Final

from muster.v1 import admin_pb2, group_pb2
from musterd.coordinator.api.frame.group_state import state_of, type_of
from musterd.coordinator.api.limits.cooperative_yield import KEYS_PER_ENTRY, Slices
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.state import Group, Offset
from musterd.coordinator.runtime.shard import Shard

PAGE_BYTES: Final = LIMITS.client_message_max_bytes // 4
"""A page ends with the entry that reaches this; an entry has less than 5 KiB."""

PAGE_OFFSETS: Final = 5_000
"""Offsets in one page."""

PAGE_GROUPS: Final = 5_000
"""Groups in one page."""

SLICE_GROUPS: Final = 1_000
"""Groups looked at between two pauses for the loop."""

GROUPS_PER_ENTRY: Final = 10
"""So many groups are looked at in the time of one entry of an answer (cooperative_yield.py)."""

SLICE_KEYS: Final = 2_000
"""Keys of offsets sorted between two pauses."""

KEYS_MAX: Final = 2 * LIMITS.group_max_offsets
"""Keys of offsets looked at in one call: the group that reaches this is the last one answered."""


# ---- offsets

Key = tuple[str, int]
OffsetsQuery = group_pb2.OffsetFetchRequest | group_pb2.OffsetFetchRequest.Group
OffsetsAnswer = group_pb2.OffsetFetchResponse | group_pb2.OffsetFetchResponse.Group


class OffsetsPage:
    """Offsets of one group after the other, until the answer is full or has cost enough."""

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._room = PAGE_BYTES
        self._keys = KEYS_MAX

    @property
    def full(self) -> bool:
        """True where nothing more is to be added."""
        return self._room <= 0 or self._keys <= 0

    async def add(self, group: Group | None, query: OffsetsQuery, answer: OffsetsAnswer) -> None:
        """The offsets asked for, in the request's order, or with `all` in the order of their keys.

        -1 where none is committed (gp-F3, gp-F5). `more` where the page did not hold all.
        What is answered stood at one moment, with the blob.
        """
        if query.all:
            found, answer.more = await self._next(group, query)
        else:
            offsets = {} if group is None else group.offsets
            found = [
                (key, offsets.get(key))
                for key in ((p.topic, p.partition) for p in query.partitions)
            ]
            self._keys -= len(found)
        if group is not None and group.blob.blob:
            answer.blob = group.blob.blob
        size = 0
        for key, stored in found:
            if size >= self._room:
                answer.more = True
                break
            size += _add_offset(answer, key, stored)
            await self._slices.did(1)
        self._room -= answer.ByteSize()
        await self._slices.did(1)

    async def _next(
        self, group: Group | None, query: OffsetsQuery
    ) -> tuple[list[tuple[Key, Offset | None]], bool]:
        """With `all` what comes next, and whether there is more than a page may hold."""
        after = (query.after.topic, query.after.partition) if query.HasField("after") else None
        while group is not None:
            keys, more = await self._first(group, after)
            offsets = group.offsets
            found = [(key, stored) for key in keys if (stored := offsets.get(key))]
            if found or not more:
                return list(found), more
            after = keys[-1]  # all of them were removed during the pauses
        return [], False

    async def _first(self, group: Group, after: Key | None) -> tuple[list[Key], bool]:
        """The next keys in their order, and whether there are others."""
        keys = list(group.offsets)
        self._keys -= len(keys)
        first: list[Key] = []
        for start in range(0, len(keys), SLICE_KEYS):
            some = keys[start : start + SLICE_KEYS]
            if after is not None:
                some = [key for key in some if key > after]
            if len(first) > PAGE_OFFSETS:
                some = [key for key in some if key < first[-1]]
            if some:
                first = sorted(first + some)[: PAGE_OFFSETS + 1]
            await self._slices.looked_at(SLICE_KEYS + KEYS_PER_ENTRY * len(some) // 10)
        return first[:PAGE_OFFSETS], len(first) > PAGE_OFFSETS


def _add_offset(answer: OffsetsAnswer, key: Key, stored: Offset | None) -> int:
    """One partition; returns the bytes it takes."""
    one = answer.partitions.add(topic=key[0], partition=key[1], offset=-1, generation=-1)
    if stored is not None:
        one.offset = stored.offset
        one.metadata = stored.metadata
        one.wall_ms = stored.wall_ms
        one.generation = stored.generation
        if stored.end_offset is not None:
            one.end_offset = stored.end_offset
        if stored.start_offset is not None:
            one.start_offset = stored.start_offset
        if stored.leader_epoch is not None:
            one.leader_epoch = stored.leader_epoch
    return one.ByteSize()


# ---- groups


class GroupsPage:
    """Groups of one shard after the other; each shard's by id."""

    def __init__(
        self,
        request: admin_pb2.ListGroupsRequest,
        slices: Slices,
        may_see: Callable[[str], bool],
    ) -> None:
        """`may_see`: whether the caller may know of a group."""
        self._slices = slices
        self._may_see = may_see
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
                state=state_of(group),
                protocol_type=group.protocol_type,
                members=group.member_count,
                generation=group.generation,
                type=type_of(group),
            )
            self._size += one.ByteSize()
            await self._slices.did(1 + one.members // GROUPS_PER_ENTRY)
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
                await self._slices.pause()
            batch = groups[start : start + SLICE_GROUPS]
            some = [
                group.group_id
                for group in batch
                if group.group_id > after and self._is_wanted(group)
            ]
            cut |= len(first) + len(some) > room
            first = sorted(first + some)[:room]
            await self._slices.did(len(batch) // GROUPS_PER_ENTRY)
        found = (shard.state.groups.get(group_id) for group_id in first)
        return [group for group in found if group is not None], cut

    def _is_wanted(self, group: Group) -> bool:
        """Any of each list, all of the lists (gp-2.13)."""
        return (
            (not self._states or state_of(group).lower() in self._states)
            and (not self._types or type_of(group) in self._types)
            and (not self._protocol_types or group.protocol_type.lower() in self._protocol_types)
            and self._may_see(group.group_id)
        )


def _names(given: Collection[str]) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in given)
