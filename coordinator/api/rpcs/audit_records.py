"""The RPCs of the audit trail: nodes hand entries to the leader of shard 0, who shows them."""

from typing import Final

from muster.v1 import admin_pb2 as pb
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.handler import (
    CLUSTER_SHARD,
    ActiveCall,
    ClusterService,
    handler,
    with_status,
)
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.machine.access import OPERATOR
from musterd.coordinator.machine.commands import AuditEntry, RecordAudit
from musterd.coordinator.machine.replies import Done

AUDIT_LEVEL: Final = 6
"""The cluster's level from which on there is an audit trail."""

AHEAD_MS_MAX: Final = 86_400_000
"""Batches are numbered by the sender's clock, behind which this node's may be so far.

Where a batch of that node is recorded that is later than this node's clock, so far behind that one.
"""

PAGE: Final = 100
"""Entries of one answer: 400 KiB at most."""


class AuditRecords(ClusterService):
    """This node's side of the audit trail."""

    @handler(Kind.EXEMPT, bounds.RECORD_AUDIT, with_status(pb.RecordAuditResponse))
    async def RecordAudit(
        self, request: pb.RecordAuditRequest, call: ActiveCall
    ) -> pb.RecordAuditResponse:
        """Record entries of a node's own calls. Never refused for load: it is one call a second.

        Who has the admin secret may be that node, or not: such a call is in the trail itself.
        """
        call.must_be_operator()
        who = call.identity or call.certified
        is_node = call.shows_node(request.node_id)
        if is_node:
            call.record = None
        elif call.record is not None:
            call.record.gather(pb.RecordAuditRequest(node_id=request.node_id))
        call.needs_level(AUDIT_LEVEL)
        call.refuse(self.refuse_node(request.node_id), request)
        is_other = who is not None and not is_node and who.principal != OPERATOR
        if is_other or any(one.node_id != request.node_id for one in request.entries):
            call.invalid("A node records its own calls alone.")
        shard = self.core.shards[CLUSTER_SHARD]
        recorded = shard.state.audit_batches.get(request.node_id, 0)
        latest = max(shard.node.wall_ms(), recorded) + AHEAD_MS_MAX
        if request.batch > latest:  # no later one of this node would be recorded
            call.invalid(
                f"Batch {request.batch} is more than a day ahead of this node's clock: see that "
                "the nodes' clocks agree."
            )
        command = RecordAudit(request.node_id, request.batch, tuple(map(_entry, request.entries)))
        await call.ask(command, call.size, Done)
        return pb.RecordAuditResponse()

    @handler(Kind.ORDINARY, bounds.NONE, with_status(pb.DescribeAuditResponse), reads=True)
    async def DescribeAudit(
        self, request: pb.DescribeAuditRequest, call: ActiveCall
    ) -> pb.DescribeAuditResponse:
        """Return entries from a number on, from state that holds all that was acknowledged."""
        call.needs_level(AUDIT_LEVEL)
        shard = self.core.shards[CLUSTER_SHARD]
        await call.confirmed(shard)
        state = shard.state
        response = pb.DescribeAuditResponse(
            kept=next(iter(state.audit), state.audit_next),
            next=state.audit_next,
            base=state.audit_base,
            head=state.audit_head,
        )
        first = max(request.first, response.kept)
        response.more = state.audit_next - first > PAGE
        for number in range(first, min(first + PAGE, state.audit_next)):
            shown = _shown(number, state.audit[number])
            shown.hash = state.audit_hashes[number]
            response.entries.append(shown)
        return response


def _entry(one: pb.AuditTrailEntry) -> AuditEntry:
    return AuditEntry(
        one.wall_ms,
        one.node_id,
        one.principal,
        one.peer,
        one.method,
        one.request_id,
        one.result,
        one.detail,
    )


def _shown(number: int, entry: AuditEntry) -> pb.AuditTrailEntry:
    return pb.AuditTrailEntry(
        number=number,
        wall_ms=entry.wall_ms,
        node_id=entry.node_id,
        principal=entry.principal,
        peer=entry.peer,
        method=entry.method,
        request_id=entry.request_id,
        result=entry.result,
        detail=entry.detail,
    )
