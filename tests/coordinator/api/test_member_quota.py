"""The quota of members: newcomers beyond it are refused, and nobody goes who is one."""

import asyncio
import dataclasses

from muster.group.consumer_protocol import encode_subscription
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.api.limits.member_quota import MemberQuota
from musterd.coordinator.machine.commands import AlterQuotas, FinalizeLevel, NodeLevel
from musterd.coordinator.machine.quotas import QuotaChange, QuotaEntity, QuotaKey, QuotaOf
from musterd.coordinator.machine.records.shard_records import load_state, shard_records
from musterd.coordinator.runtime.planner import Planner
from musterd.levels import LEVEL
from tests.coordinator.api.test_access import GROUP, TOPIC, made, on_node, rule
from tests.coordinator.api.test_group_service import joining
from tests.coordinator.fakes import join
from tests.coordinator.local import until
from tests.coordinator.shard_cluster import ShardCluster

FULL, OK = ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.NONE
MEMBERS = QuotaKey.MEMBERS


async def limit(node, entity, name, most):
    """A quota of members from now on."""
    await node.put(AlterQuotas((QuotaChange(entity, name, MEMBERS, most),)))


async def member(node, name, group="g", metadata=None, **more):
    """Join a group of one member, with its assignment; the answer."""
    joined = await node.groups.JoinGroup(joining(name, group, **more), metadata=metadata)
    if joined.status.code == OK and joined.leader_id == joined.member_id:
        vector = [pb.SyncGroupRequest.Assignment(member_id=m.member_id) for m in joined.members]
        await node.groups.SyncGroup(
            pb.SyncGroupRequest(
                group_id=group,
                member_id=joined.member_id,
                generation=joined.generation,
                assignments=vector,
            ),
            metadata=metadata,
        )
    return joined


@on_node
async def test_a_newcomer_beyond_a_groups_quota_is_refused_and_members_stay(node):
    """Whatever the quota falls to; who is a member joins again, a static one takes its place."""
    await made(node, "orders")
    await limit(node, QuotaEntity.GROUP, "", 2)
    first = await member(node, "a", group_instance_id="i")
    second = asyncio.create_task(member(node, "b"))
    group = node.core.shard_for("g").state.groups["g"]
    await until(lambda: len(group.members) == 2)
    beyond = await node.groups.JoinGroup(joining("c"))
    assert (beyond.status.code, beyond.status.retriable) == (FULL, False)
    assert beyond.status.message == "The group has its quota of 2 members."
    assert len(group.members) == 2
    await limit(node, QuotaEntity.GROUP, "g", 1)
    again = await member(node, "a", member_id=first.member_id, group_instance_id="i")
    assert (again.status.code, (await second).status.code) == (OK, OK)
    taken = await member(node, "a", join_nonce="2" * 32, group_instance_id="i")
    assert taken.status.code == OK
    assert sorted(group.members) == sorted((taken.member_id, second.result().member_id))
    assert node.core.quotas.throttled_total[MEMBERS] == 1
    assert node.core.quotas.delayed == {QuotaOf(QuotaEntity.GROUP, "g", MEMBERS): 1}
    await limit(node, QuotaEntity.GROUP, "g", 0)
    await limit(node, QuotaEntity.GROUP, "", 0)
    newcomer = asyncio.create_task(member(node, "c"))
    await until(lambda: len(group.members) == 3)
    newcomer.cancel()


@on_node
async def test_a_principal_has_its_members_in_all_its_groups(node):
    """Another principal has its own; the superuser, too, once it has a quota."""
    await made(node, "orders", "nowhere")
    rules = [rule("*", right, GROUP, "*") for right in ("join", "commit")]
    await node.allow(*rules, rule("*", "describe", TOPIC, "*"))
    ann, bob = [await node.token_of(who) for who in ("ann", "bob")]
    await limit(node, QuotaEntity.PRINCIPAL, "ann", 3)
    for number in range(3):
        joined = await member(node, "a", f"g{number}", ann)
        assert joined.status.code == OK
    for number in range(2, 6):
        beyond = await node.groups.JoinGroup(joining("b", f"g{number}"), metadata=ann)
        assert beyond.status.code == FULL
        assert beyond.status.message == "'ann' has its quota of 3 members."
    assert (await member(node, "c", "h", bob)).status.code == OK
    leave = pb.LeaveGroupRequest.Member(member_id=joined.member_id)
    await node.groups.LeaveGroup(pb.LeaveGroupRequest(group_id="g2", members=[leave]), metadata=ann)
    assert (await member(node, "d", "g4", ann)).status.code == OK


@on_node
async def test_who_takes_over_anothers_static_members_has_them_in_its_quota(node):
    """Its own it takes back whatever the quota; its group has no member more by it."""
    await made(node, "orders", "nowhere")
    rules = [rule("*", right, GROUP, "*") for right in ("join", "commit")]
    await node.allow(*rules, rule("*", "describe", TOPIC, "*"))
    ann, bob = [await node.token_of(who) for who in ("ann", "bob")]
    for number in range(2):
        held = await member(node, "b", f"g{number}", bob, group_instance_id="i")
        assert held.status.code == OK
    assert (await member(node, "a", "h", ann)).status.code == OK
    await limit(node, QuotaEntity.PRINCIPAL, "", 1)
    await limit(node, QuotaEntity.GROUP, "", 1)
    over = {"join_nonce": "2" * 32, "group_instance_id": "i"}
    for number in range(2):
        beyond = await node.groups.JoinGroup(joining("a", f"g{number}", **over), metadata=ann)
        assert beyond.status.code == FULL
        assert beyond.status.message == "'ann' has its quota of 1 members."
    again = await member(node, "b", "g0", bob, **over)
    assert again.status.code == OK
    await limit(node, QuotaEntity.PRINCIPAL, "ann", 2)
    taken = await member(node, "a", "g1", ann, **over)
    assert taken.status.code == OK
    counts = [shard.state.members_of for shard in node.shards]
    assert [sum(one.get(who, 0) for one in counts) for who in ("ann", "bob")] == [2, 1]
    late = await member(node, "b", "g1", bob, group_instance_id="i")
    assert late.status.code == ErrorCode.FENCED_INSTANCE_ID
    assert not len(node.core.member_quota)


@on_node
async def test_joins_that_come_together_do_not_pass_the_quota(node):
    """Those under way count; a Join that is repeated counts once; ended ones leave nothing."""
    await made(node, "orders")
    await limit(node, QuotaEntity.GROUP, "", 5)
    node.applying = False
    joins = [asyncio.create_task(member(node, f"m{n}")) for n in range(20)]
    again = asyncio.create_task(member(node, "m0"))
    await until(lambda: sum(one.done() for one in joins) >= 15)
    await until(lambda: len(node.core.member_quota) == 5)
    node.applying = True
    codes = [one.status.code for one in await asyncio.gather(*joins, again)]
    assert (codes.count(OK), codes.count(FULL)) == (5, 15)
    assert len(node.core.shard_for("g").state.groups["g"].members) == 5
    await until(lambda: not len(node.core.member_quota))


@on_node
async def test_joins_that_wait_for_a_plan_take_places_of_members_and_none_of_calls(
    node, monkeypatch
):
    """No node takes Joins while so many are active: those of one group would stop all others."""
    await made(node, "orders")
    first = pb.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="x", session_timeout_ms=45_000, rebalance_timeout_ms=60_000
    )
    first.topics.names.append("orders")
    assert (await node.groups.ConsumerGroupHeartbeat(first)).status.code == OK
    await limit(node, QuotaEntity.GROUP, "", 3)

    async def classic(name):
        request = joining(name, session_timeout_ms=45_000, subscribed_topics=["orders"])
        request.protocols[0].name = "range"
        request.protocols[0].metadata = encode_subscription(("orders",))
        return await node.groups.JoinGroup(request)

    held = node.core.shard_for("g").leadership._held_changes
    with monkeypatch.context() as patched:
        patched.setattr(Planner, "holds", lambda *_: True)
        joins = [asyncio.create_task(classic(name)) for name in "ab"]
        await until(lambda: len(held._calls) == 2)
        assert node.core.admission.of_kind[Kind.JOIN] == 0
        assert (await classic("c")).status.code == FULL
    assert [one.status.code for one in await asyncio.gather(*joins)] == [OK, OK]
    assert not len(node.core.member_quota)


@on_node
async def test_below_its_level_the_log_says_nothing_of_who_joins(node):
    """Builds of before would refuse the entry."""
    await made(node, "orders", "nowhere")
    await node.allow(rule("*", "join", GROUP, "*"), rule("*", "describe", TOPIC, "*"))
    ann = await node.token_of("ann")
    for level, who in ((0, ""), (6, "ann")):
        for shard in node.shards:
            shard.state.level = level
        joined = await member(node, "a", f"g{level}", ann)
        group = node.core.shard_for(f"g{level}").state.groups[f"g{level}"]
        assert group.members[joined.member_id].principal == who


def test_after_a_failover_members_count_for_who_made_them():
    """At the next coordinator, at a node that starts again, and in a state that is loaded."""
    cluster = ShardCluster(3)
    cluster.ask(FinalizeLevel(LEVEL, tuple(NodeLevel(n, LEVEL) for n in cluster.ids)))
    cluster.ask(AlterQuotas((QuotaChange(QuotaEntity.PRINCIPAL, "ann", MEMBERS, 1),)))
    mine = dataclasses.replace(join("a"), principal="ann")
    cluster.shard(cluster.leader().number).submit(mine, 100, lambda _answer: None)
    cluster.run(lambda: cluster.shard(cluster.leader().number).state.members_of == {"ann": 1})
    first = cluster.leader().number
    cluster.crash(first)
    cluster.run(lambda: cluster.leader() is not None)
    cluster.restart(first)
    cluster.run(cluster.converged)
    for number in cluster.ids:
        state = cluster.shard(number).state
        loaded = load_state(sorted(shard_records(state)))
        for one in (state, loaded):
            quota = MemberQuota(lambda one=one: one.quotas, lambda one=one: [one], list)
            beyond = dataclasses.replace(join("b"), principal="ann")
            refused = quota.refusal(beyond, one.groups["g"])
            assert refused is not None
            assert refused.error == FULL


def test_the_place_of_a_member_is_counted_once_and_given_back():
    """However often its Join is sent."""
    quota = MemberQuota(lambda: {QuotaOf(QuotaEntity.GROUP, "g", MEMBERS): 1}, list, list)
    places = [quota.take(join("a"), None) for _ in range(3)]
    assert quota.refusal(join("a"), None) is None
    for place in places:
        assert quota.refusal(join("b"), None) is not None
        quota.let_go(place)
    assert quota.refusal(join("b"), None) is None
    assert (len(quota), +quota._by_group, +quota._by_principal) == (0, {}, {})
