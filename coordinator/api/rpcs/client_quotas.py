"""DescribeClientQuotas and AlterClientQuotas: the cluster's quotas, which shard 0 keeps."""

from typing import Final

from muster.v1 import admin_pb2 as pb
from muster.v1 import quota_pb2
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.audit_trail import listed
from musterd.coordinator.api.frame.handler import (
    CLUSTER_SHARD,
    ActiveCall,
    ClusterService,
    handler,
    with_status,
)
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.machine.commands import AlterQuotas
from musterd.coordinator.machine.quotas import QuotaChange, QuotaEntity, QuotaKey
from musterd.coordinator.machine.replies import Done

LEVEL_NEEDED: Final = 6


class ClientQuotas(ClusterService):
    """This node's side of both."""

    @handler(Kind.ORDINARY, bounds.NONE, with_status(pb.DescribeClientQuotasResponse), reads=True)
    async def DescribeClientQuotas(
        self, request: pb.DescribeClientQuotasRequest, call: ActiveCall
    ) -> pb.DescribeClientQuotasResponse:
        """All quotas: 5,000 at most, so one answer holds them."""
        del request
        shard = self.core.shards[CLUSTER_SHARD]
        await call.confirmed(shard)
        async with call.slices() as slices:
            await slices.turn(len(shard.state.quotas))
            found = sorted(shard.state.quotas.items())
            return pb.DescribeClientQuotasResponse(
                quotas=[
                    quota_pb2.QuotaChange(
                        entity=int(of.entity),  # type: ignore[arg-type]
                        name=of.name,
                        key=int(of.key),  # type: ignore[arg-type]
                        value=value,
                    )
                    for of, value in found
                ]
            )

    @handler(Kind.ORDINARY, bounds.ALTER_QUOTAS, with_status(pb.AlterClientQuotasResponse))
    async def AlterClientQuotas(
        self, request: pb.AlterClientQuotasRequest, call: ActiveCall
    ) -> pb.AlterClientQuotasResponse:
        """Commit the changes in shard 0, all or nothing; each node counts by them once applied."""
        call.needs_level(LEVEL_NEEDED)
        try:
            changes = tuple(
                QuotaChange(QuotaEntity(one.entity), one.name, QuotaKey(one.key), one.value)
                for one in request.changes
            )
        except ValueError:
            call.invalid("A quota is of a principal or a group, and of one of the keys.")
        quotas = self.core.shards[CLUSTER_SHARD].state.quotas
        before = ((_named(one), quotas.get(one.of, 0)) for one in changes)
        after = ((_named(one), one.value) for one in changes)
        call.changed(listed(before, len(changes)), listed(after, len(changes)))
        done = await call.ask(AlterQuotas(changes), call.size, Done)
        return pb.AlterClientQuotasResponse(changed=done.changed)


def _named(change: QuotaChange) -> str:
    """What the audit trail calls a quota."""
    return f"{change.entity.name.lower()}:{change.name} {change.key.name.lower()}"
