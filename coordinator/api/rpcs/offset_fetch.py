"""The RPC OffsetFetch: offsets of one group, or of many groups in one call (gp-2.9)."""

from collections.abc import Sequence

from muster.v1 import group_pb2 as pb
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.bounds import refuse_group
from musterd.coordinator.api.frame.handler import (
    ActiveCall,
    CoordinatorService,
    handler,
    with_status,
)
from musterd.coordinator.api.frame.paging import OffsetsAnswer, OffsetsPage, OffsetsQuery
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.api.limits.cooperative_yield import KEYS_PER_ENTRY
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Refused


class OffsetReads(CoordinatorService):
    """Linearizable reads: a quorum has confirmed each shard's leader after the call came."""

    @handler(Kind.ORDINARY, bounds.FETCH, with_status(pb.OffsetFetchResponse), reads=True)
    async def OffsetFetch(
        self, request: pb.OffsetFetchRequest, call: ActiveCall
    ) -> pb.OffsetFetchResponse:
        """Page by page. Of many groups each has its own outcome (sc-O31)."""
        response = pb.OffsetFetchResponse()
        queries: Sequence[OffsetsQuery] = request.groups or [request]
        answers: Sequence[OffsetsAnswer] = [response]
        if request.groups:
            answers = [response.groups.add(group_id=query.group_id) for query in request.groups]
        await self._read(queries, answers, call, stable=request.require_stable)
        return response

    async def _read(
        self,
        queries: Sequence[OffsetsQuery],
        answers: Sequence[OffsetsAnswer],
        call: ActiveCall,
        *,
        stable: bool,
    ) -> None:
        core = self.core
        entries = sum(1 + len(query.partitions) for query in queries)
        async with call.slices() as slices:
            await slices.turn(entries)
            refusals = [
                call.denied_item(query.group_id) or refuse_group(query.group_id) or _refuse(query)
                for query in queries
            ]
            shards = [
                core.shard_for(query.group_id)
                for query, refused in zip(queries, refusals, strict=True)
                if refused is None
            ]
        reads = await call.reads(shards, linearizable=True, settled=stable)
        async with call.slices() as slices:
            await slices.turn(entries + sum(map(self._keys, queries)) // KEYS_PER_ENTRY)
            page = OffsetsPage(slices)
            for query, answer, refused in zip(queries, answers, refusals, strict=True):
                shard = core.shard_for(query.group_id)
                if reads.refused(answer.status, shard, refused):
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
        group = self.core.shard_for(query.group_id).state.groups.get(query.group_id)
        return group.offset_count if group is not None else 0


def _refuse(query: OffsetsQuery) -> Refused | None:
    if query.all and query.partitions:
        return Refused(Error.INVALID_REQUEST, "Ask for all offsets or for partitions, not both.")
    if query.HasField("after") and not query.all:
        return Refused(Error.INVALID_REQUEST, "`after` goes on with all offsets: set `all`, too.")
    return None
