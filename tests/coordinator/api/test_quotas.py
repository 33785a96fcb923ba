"""Quotas: what is charged, what never is, and what a caller is told that is over one."""

import grpc
import pytest

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from muster.v1.quota_pb2 import QuotaChange as WireChange
from musterd.coordinator.api.frame.operator_access import OperatorAccess
from musterd.coordinator.api.limits import quota_buckets
from musterd.coordinator.api.limits.quota_buckets import (
    DELAY_MS_MAX,
    DELAYED_MAX,
    Amount,
    QuotaBuckets,
)
from musterd.coordinator.machine.commands import AlterQuotas, FinalizeLevel, NodeLevel
from musterd.coordinator.machine.events import LevelRaised
from musterd.coordinator.machine.quotas import QuotaChange, QuotaEntity, QuotaKey, QuotaOf
from musterd.coordinator.machine.shard_state import evolve_shard_counted
from musterd.levels import LEVEL
from tests.coordinator.api.test_group_service import committing, joining, run, with_topic
from tests.coordinator.local import local_node, until
from tests.coordinator.shard_cluster import ShardCluster

GROUP, PRINCIPAL = QuotaEntity.GROUP, QuotaEntity.PRINCIPAL
COMMITS, JOINS = QuotaKey.COMMITS, QuotaKey.JOINS
THROTTLED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class Bucketed:
    """Buckets under a clock that the test moves."""

    def __init__(self, **quotas):
        self.quotas, self.now = {}, 0.0
        self.buckets = QuotaBuckets(lambda: self.quotas, lambda: self.now)

    def set(self, entity, name, key, value):
        self.quotas[QuotaOf(entity, name, key)] = value

    def commits(self, count, principal="ann", group="g"):
        return self.buckets.delay_ms(principal, group, [Amount(COMMITS, count)])


@pytest.mark.parametrize("value", [1, 3, 7, 1_000])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_delay_that_is_told_is_enough(value, count):
    """Who comes when it was told to is taken; a call that is larger than the burst, too."""
    bucketed = Bucketed()
    bucketed.set(GROUP, "", COMMITS, value)
    taken = 0
    for _ in range(10_000):
        delay = bucketed.commits(count)
        if delay:
            assert delay < DELAY_MS_MAX
            bucketed.now += delay / 1000
            assert bucketed.commits(count) == 0
        taken += count
        if bucketed.now > 20:
            break
    assert taken <= value * (bucketed.now + quota_buckets.BURST_S) + count


def test_a_principal_at_its_quota_does_not_slow_another():
    """Neither where they share the default."""
    bucketed = Bucketed()
    bucketed.set(PRINCIPAL, "", COMMITS, 1)
    assert bucketed.commits(2) == 0
    assert bucketed.commits(1) > 0
    assert bucketed.commits(2, principal="bob") == 0
    assert bucketed.buckets.throttled_total[COMMITS] == 1


def test_what_is_refused_is_charged_to_nobody():
    """The principal is over its quota; its group is left as it was."""
    bucketed = Bucketed()
    bucketed.set(PRINCIPAL, "ann", COMMITS, 1)
    bucketed.set(GROUP, "g", COMMITS, 2)
    assert bucketed.commits(2) == 0
    for _ in range(10):
        assert bucketed.commits(2) > 0
    assert bucketed.commits(2, principal="bob") == 0
    assert bucketed.commits(1, principal="bob") > 0


def test_a_value_of_its_own_counts_before_the_default():
    """Larger or smaller."""
    bucketed = Bucketed()
    bucketed.set(GROUP, "", COMMITS, 1)
    bucketed.set(GROUP, "g", COMMITS, 100)
    assert bucketed.commits(200) == 0
    assert bucketed.commits(2, group="h") == 0
    assert bucketed.commits(1, group="h") > 0


def test_buckets_are_bounded(monkeypatch):
    """Whoever was asked least recently is forgotten."""
    monkeypatch.setattr(quota_buckets, "BUCKETS_MAX", 3)
    bucketed = Bucketed()
    bucketed.set(GROUP, "", COMMITS, 1)
    for number in range(10):
        assert bucketed.commits(2, group=str(number)) == 0
        assert len(bucketed.buckets) <= 3
    assert bucketed.commits(2, group="9") > 0
    assert bucketed.commits(2, group="0") == 0


def test_who_was_told_to_wait_last_is_known_by_name():
    """The principal or the group whose quota it was, and of many the last few."""
    bucketed = Bucketed()
    bucketed.set(PRINCIPAL, "ann", COMMITS, 1)
    bucketed.set(GROUP, "", COMMITS, 1)
    assert bucketed.commits(2) == 0
    assert bucketed.buckets.delayed == {}
    for _ in range(3):
        assert bucketed.commits(1, group="h") > 0
    assert bucketed.buckets.delayed == {QuotaOf(PRINCIPAL, "ann", COMMITS): 3}
    for number in range(DELAYED_MAX):
        group = f"g{number}"
        assert bucketed.commits(2, principal="bob", group=group) == 0
        assert bucketed.commits(1, principal="bob", group=group) > 0
    assert bucketed.commits(1, principal="bob", group="g0") > 0
    last = [(of.name, times) for of, times in bucketed.buckets.delayed.items()]
    assert last == [*((f"g{number}", 1) for number in range(1, DELAYED_MAX)), ("g0", 2)]


def at_level(node):
    """Have the cluster at this build's level, and its quotas under a clock that stands."""
    evolve_shard_counted(node.shards[0].state, LevelRaised(LEVEL))
    node.core.quotas._clock = lambda: 0.0


async def alter(node, **values):
    """Quotas that count for every group from now on."""
    changes = [
        WireChange(entity=2, key=int(QuotaKey[key.upper()]), value=value)
        for key, value in values.items()
    ]
    answer = await node.admin.AlterClientQuotas(admin.AlterClientQuotasRequest(changes=changes))
    assert answer.status.code == ErrorCode.NONE, answer
    return answer


@run
async def test_over_the_quota_a_commit_is_told_how_long_to_wait_and_nothing_is_stored():
    """Of another group it is taken; once the quota is gone, of this one, too."""
    async with local_node() as node:
        at_level(node)
        await with_topic(node)
        await alter(node, commits=1)
        for offset in (1, 2):
            taken = await node.groups.OffsetCommit(committing(offset))
            assert taken.status.code == ErrorCode.NONE
        before = [log.applied_index for log in node.logs]
        over = await node.groups.OffsetCommit(committing(3))
        assert over.status.code == THROTTLED
        assert over.status.retriable
        assert over.status.retry_after_ms == 1_000
        assert not over.partitions
        assert [log.applied_index for log in node.logs] == before
        other = await node.groups.OffsetCommit(committing(3, group="h"))
        assert other.status.code == ErrorCode.NONE
        await alter(node, commits=0)
        taken = await node.groups.OffsetCommit(committing(3))
        assert taken.status.code == ErrorCode.NONE


@run
async def test_each_partition_that_a_commit_names_is_charged():
    """One call of four is four."""
    async with local_node() as node:
        at_level(node)
        await with_topic(node)
        await alter(node, commits=2)
        request = committing(1)
        for partition in (1, 2, 3):
            request.partitions.add(topic="orders", partition=partition, offset=1)
        assert (await node.groups.OffsetCommit(request)).status.code == ErrorCode.NONE
        over = await node.groups.OffsetCommit(committing(2))
        assert (over.status.code, over.status.retry_after_ms) == (THROTTLED, 500)


@run
async def test_bytes_and_new_groups_are_charged():
    """A group that exists is no new one."""
    async with local_node() as node:
        at_level(node)
        await with_topic(node)
        changes = [WireChange(entity=1, key=int(QuotaKey.NEW_GROUPS), value=1)]
        await node.admin.AlterClientQuotas(admin.AlterClientQuotasRequest(changes=changes))
        for group in ("a", "b"):
            made = await node.groups.OffsetCommit(committing(1, group=group))
            assert made.status.code == ErrorCode.NONE
        over = await node.groups.OffsetCommit(committing(1, group="c"))
        assert over.status.code == THROTTLED
        assert (await node.groups.JoinGroup(joining("m", group="d"))).status.code == THROTTLED
        known = await node.groups.OffsetCommit(committing(2, group="a"))
        assert known.status.code == ErrorCode.NONE
        await alter(node, commit_bytes=1)
        assert (await node.groups.OffsetCommit(committing(3, group="a"))).status.code == 0
        over = await node.groups.OffsetCommit(committing(4, group="a"))
        assert over.status.code == THROTTLED
        total = node.core.quotas.throttled_total
        assert (total[QuotaKey.NEW_GROUPS], total[QuotaKey.COMMIT_BYTES]) == (2, 1)


@run
async def test_heartbeats_syncs_and_leaves_are_never_throttled():
    """Of a group that has used up all there is; nor the Join that a round waits for."""
    async with local_node() as node:
        at_level(node)
        await with_topic(node)
        member = await node.groups.JoinGroup(joining("a"))
        await alter(node, joins=1, commits=1, commit_bytes=1, new_groups=1)
        who = {"group_id": "g", "member_id": member.member_id}
        for _ in range(3):
            await node.groups.OffsetCommit(committing(1))
            node.core.quotas.delay_ms("anonymous", "g", [Amount(JOINS, 1)])
        over = await node.groups.JoinGroup(joining("b"))
        assert over.status.code == THROTTLED
        synced = await node.groups.SyncGroup(
            pb.SyncGroupRequest(
                **who,
                generation=member.generation,
                assignments=[pb.SyncGroupRequest.Assignment(member_id=member.member_id)],
            )
        )
        assert synced.status.code == ErrorCode.NONE
        for seq in range(1, 20):
            beat = pb.HeartbeatRequest(
                client_nonce="0" * 32,
                call_seq=seq,
                members=[pb.HeartbeatRequest.Member(**who, generation=member.generation)],
                at_once=True,
            )
            (result,) = (await node.groups.Heartbeat(beat)).results
            assert result.status.code == ErrorCode.NONE
        await alter(node, joins=0)
        newcomer = node.groups.JoinGroup(joining("b"))
        group = node.core.shard_for("g").state.groups["g"]
        await until(lambda: group.phase == "PreparingRebalance")
        await alter(node, joins=1)
        for _ in range(3):
            node.core.quotas.delay_ms("anonymous", "g", [Amount(JOINS, 1)])
        again = await node.groups.JoinGroup(joining("a", member_id=member.member_id))
        assert again.status.code == ErrorCode.NONE
        await newcomer
        leave = pb.LeaveGroupRequest.Member(member_id=member.member_id)
        left = await node.groups.LeaveGroup(pb.LeaveGroupRequest(group_id="g", members=[leave]))
        assert left.results[0].status.code == ErrorCode.NONE


@run
async def test_quotas_are_listed_as_they_were_set_and_stand_behind_their_level():
    """By kind, name and key; below the level UNSUPPORTED_VERSION, and nothing changes."""
    async with local_node() as node:
        request = admin.AlterClientQuotasRequest(
            changes=[
                WireChange(entity=2, name="g", key=2, value=5),
                WireChange(entity=1, key=1, value=7),
            ]
        )
        refused = await node.admin.AlterClientQuotas(request)
        assert refused.status.code == ErrorCode.UNSUPPORTED_VERSION
        at_level(node)
        assert (await node.admin.AlterClientQuotas(request)).changed
        assert not (await node.admin.AlterClientQuotas(request)).changed
        found = await node.admin.DescribeClientQuotas(admin.DescribeClientQuotasRequest())
        assert list(found.quotas) == list(reversed(request.changes))
        wrong = admin.AlterClientQuotasRequest(changes=[WireChange(entity=9, key=1, value=1)])
        assert (await node.admin.AlterClientQuotas(wrong)).status.code == ErrorCode.INVALID_REQUEST


def test_quotas_survive_a_failover():
    """The next coordinator, and a node that starts again, count by the same."""
    cluster = ShardCluster(3)
    cluster.ask(FinalizeLevel(LEVEL, tuple(NodeLevel(n, LEVEL) for n in cluster.ids)))
    cluster.ask(AlterQuotas((QuotaChange(GROUP, "g", COMMITS, 5),)))
    first = cluster.leader().number
    cluster.crash(first)
    cluster.run(lambda: cluster.leader() is not None)
    cluster.restart(first)
    cluster.run(cluster.converged)
    for number in cluster.ids:
        assert cluster.shard(number).state.quotas == {QuotaOf(GROUP, "g", COMMITS): 5}


@run
async def test_quotas_are_an_operators():
    """Without the admin secret neither shown nor changed."""
    secret = OperatorAccess(b"0123456789abcdef", on_loopback=False)
    async with local_node(access=secret) as node:
        at_level(node)
        for call, request in (
            (node.admin.DescribeClientQuotas, admin.DescribeClientQuotasRequest()),
            (node.admin.AlterClientQuotas, admin.AlterClientQuotasRequest()),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call(request)
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
