"""OffsetFetch: of one group, or of many in one call (gp-2.9)."""

import asyncio
from collections.abc import Sequence

from muster.v1 import group_pb2 as pb
from musterd.coordinator.api.cooperative_yield import KEYS_PER_ENTRY, Slices
from musterd.coordinator.api.handler import Coordination, refuse_bytes, refuse_group
from musterd.coordinator.api.paging import OffsetsAnswer, OffsetsPage, OffsetsQuery
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Refused

FETCH_GROUPS_MAX = 1_000
"""Groups in one OffsetFetch."""


class OffsetFetch:
    """Linearizable reads: a quorum has confirmed each shard's leader after the call came."""

    def __init__(self, core: Coordination) -> None:
        self._core = core

    async def fetch(self, request: pb.OffsetFetchRequest) -> pb.OffsetFetchResponse:
        """Page by page. Of many groups each has its own outcome (sc-O31)."""
        response = pb.OffsetFetchResponse()
        refused = refuse_bytes(request.ByteSize()) or _refuse_many(request)
        if refused is not None:
            response.status.CopyFrom(self._core.statuses.of(refused))
            return response
        if not request.groups:
            await self._read([request], [response], stable=request.require_stable)
            return response
        answers = [response.groups.add(group_id=query.group_id) for query in request.groups]
        await self._read(request.groups, answers, stable=request.require_stable)
        return response

    async def _read(
        self,
        queries: Sequence[OffsetsQuery],
        answers: Sequence[OffsetsAnswer],
        *,
        stable: bool,
    ) -> None:
        core = self._core
        entries = sum(1 + len(query.partitions) for query in queries)
        async with Slices(core.one_long_read) as slices:
            await slices.turn(entries)
            refusals = [refuse_group(query.group_id) or _refuse(query) for query in queries]
            shards = {
                (shard := core.shard_for(query.group_id)).number: shard
                for query, refused in zip(queries, refusals, strict=True)
                if refused is None
            }
        confirmed = await asyncio.gather(
            *(core.confirmed(shard, settled=stable) for shard in shards.values())
        )
        elsewhere = dict(zip(shards, confirmed, strict=True))
        async with Slices(core.one_long_read) as slices:
            await slices.turn(entries + sum(map(self._keys, queries)) // KEYS_PER_ENTRY)
            page = OffsetsPage(slices)
            for query, answer, refused in zip(queries, answers, refusals, strict=True):
                if refused is not None:
                    answer.status.CopyFrom(core.statuses.of(refused))
                    continue
                shard = core.shard_for(query.group_id)
                known = elsewhere[shard.number]
                if known is None and shard.coordinator_state.elsewhere:
                    known = shard.elsewhere()  # since the quorum confirmed it
                if known is not None:
                    answer.status.CopyFrom(core.statuses.of(known))
                    continue
                answer.applied_index, answer.term = shard.log.applied_index, shard.log.term
                if page.full:
                    answer.more = True
                else:
                    await page.add(shard.state.groups.get(query.group_id), query, answer)

    def _keys(self, query: OffsetsQuery) -> int:
        """How many keys a query of all offsets chooses from."""
        if not query.all:
            return 0
        group = self._core.shard_for(query.group_id).state.groups.get(query.group_id)
        return len(group.offsets) if group is not None else 0


def _refuse_many(request: pb.OffsetFetchRequest) -> Refused | None:
    if not request.groups:
        return None
    if request.group_id or request.partitions or request.all or request.HasField("after"):
        return Refused(Error.INVALID_REQUEST, "Ask for one group or for `groups`, not both.")
    if len(request.groups) > FETCH_GROUPS_MAX:
        return Refused(
            Error.INVALID_REQUEST, f"At most {FETCH_GROUPS_MAX} groups are fetched in one call."
        )
    if len({query.group_id for query in request.groups}) != len(request.groups):
        return Refused(Error.INVALID_REQUEST, "A group is named twice: name each once.")
    if sum(len(query.partitions) for query in request.groups) > LIMITS.commit_max_partitions:
        return _too_many_partitions()
    return None


def _refuse(query: OffsetsQuery) -> Refused | None:
    if query.all and query.partitions:
        return Refused(Error.INVALID_REQUEST, "Ask for all offsets or for partitions, not both.")
    if query.HasField("after") and not query.all:
        return Refused(Error.INVALID_REQUEST, "`after` goes on with all offsets: set `all`, too.")
    if len(query.partitions) > LIMITS.commit_max_partitions:
        return _too_many_partitions()
    return None


def _too_many_partitions() -> Refused:
    return Refused(
        Error.INVALID_REQUEST,
        f"At most {LIMITS.commit_max_partitions} partitions are fetched in one call.",
    )
