"""What an operator does to groups, over real gRPC: kick, settings of their own, list by filters."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.api.frame.bounds import GROUPS_MAX
from musterd.coordinator.api.frame.cluster_view import NodeView
from musterd.coordinator.api.frame.paging import PAGE_BYTES
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.state import Group
from musterd.coordinator.node.node import Node
from tests.coordinator.api.test_group_service import committing, joining, run, with_topic
from tests.coordinator.local import local_node

SIZE = "classic.max.size"
LEAST = "classic.min.session.timeout.ms"
DELAY = "classic.initial.rebalance.delay.ms"
COLOCATE = "consumer.colocate"
WEIGHTS = "consumer.weights"
AWAY = "consumer.max.away.ms"
POLICY = "consumer.migration.policy"
RETENTION = "offsets.retention.ms"


def code(status):
    """Its name."""
    return ErrorCode.Name(status.code)


async def alter(node, group_id, removed=(), *, validate_only=False, **settings):
    """AlterGroupConfigs of one group; `_` stands for `.`."""
    one = admin.AlterGroupConfigsRequest.Group(group_id=group_id, removed=removed)
    for name, value in settings.items():
        one.settings.add(name=name.replace("_", "."), value=str(value))
    request = admin.AlterGroupConfigsRequest(groups=[one], validate_only=validate_only)
    answer = await node.admin.AlterGroupConfigs(request)
    assert code(answer.status) == "NONE"
    (result,) = answer.results
    return result


async def settings_of(node, group_id):
    """DescribeGroupConfigs of one group."""
    request = admin.DescribeGroupConfigsRequest(group_ids=[group_id])
    (group,) = (await node.admin.DescribeGroupConfigs(request)).groups
    assert code(group.status) == "NONE"
    return {one.name: one for one in group.settings}


# ---- settings


@run
async def test_settings_of_a_group_that_does_not_exist_yet_count_for_it():
    """sc-A17: before and after are told, the defaults and bounds too; removing goes back."""
    async with local_node() as node:
        assert not any(one.overridden for one in (await settings_of(node, "g")).values())
        told = await alter(node, "g", classic_max_size=1, offsets_retention_ms=5)
        assert {one.name: one.value for one in told.after if one.overridden} == {
            SIZE: 1,
            RETENTION: 5,
        }
        assert not any(one.overridden for one in told.before)
        found = await settings_of(node, "g")
        size = found[SIZE]
        assert (size.value, size.overridden, size.default_value) == (1, True, 2_000)
        assert (size.lowest, size.highest) == (1, 2_000)
        assert list(found) == sorted(found)
        join = asyncio.create_task(_await(node.groups.JoinGroup(joining("a"))))
        assert (await join).status.code == ErrorCode.NONE
        refused = await node.groups.JoinGroup(joining("b"))
        assert code(refused.status) == "GROUP_MAX_SIZE_REACHED"
        told = await alter(node, "g", [SIZE])
        assert (await settings_of(node, "g"))[SIZE].value == 2_000
        assert [one.name for one in told.before if one.overridden] == [SIZE, RETENTION]


async def _await(call):
    return await call


@run
async def test_a_session_outside_the_groups_own_bounds_is_refused():
    """The bounds of a group lie within the cluster's."""
    async with local_node() as node:
        await alter(node, "g", classic_min_session_timeout_ms=20_000)
        refused = await node.groups.JoinGroup(joining("a"))
        assert code(refused.status) == "INVALID_SESSION_TIMEOUT"
        assert "20000 to 1800000" in refused.status.message


@pytest.mark.parametrize(
    ("name", "value", "error", "says"),
    [
        ("max_size", 5, "INVALID_CONFIG", "no setting 'max.size'"),
        ("classic_max_size", 0, "INVALID_CONFIG", "1 to 2000"),
        ("classic_max_size", 2_001, "INVALID_CONFIG", "1 to 2000"),
        ("classic_max_size", "many", "INVALID_CONFIG", "whole number"),
        ("classic_initial_rebalance_delay_ms", 300_001, "INVALID_CONFIG", "0 to 300000"),
        ("classic_min_session_timeout_ms", 999, "INVALID_CONFIG", "1000 to 1800000"),
    ],
)
def test_what_is_wrong_is_refused_by_name(name, value, error, says):
    """Nothing of it is taken, the right ones beside it neither; a dry run says the same."""

    @run
    async def test():
        async with local_node() as node:
            for dry in (True, False):
                told = await alter(
                    node, "g", validate_only=dry, **{name: value, "offsets_retention_ms": 7}
                )
                assert code(told.status) == error
                assert says in told.status.message
            assert not any(one.overridden for one in (await settings_of(node, "g")).values())

    test()


@run
async def test_settings_of_modern_groups_are_there_once_the_level_knows_such_groups():
    """Before, they are neither listed nor taken; after, they have bounds like all others."""
    async with local_node() as node:
        assert AWAY not in await settings_of(node, "g")
        told = await alter(node, "g", consumer_max_away_ms=5_000)
        assert code(told.status) == "INVALID_CONFIG"
        assert "no setting 'consumer.max.away.ms'" in told.status.message
        for shard in node.shards:
            shard.state.level = 6
        for value in (999, 86_400_001):
            told = await alter(node, "g", consumer_max_away_ms=value)
            assert code(told.status) == "INVALID_CONFIG"
            assert "1000 to 86400000" in told.status.message
        assert not (await alter(node, "g", consumer_max_away_ms=5_000)).status.code
        away = (await settings_of(node, "g"))[AWAY]
        assert (away.value, away.default_value, away.overridden) == (5_000, 600_000, True)


@run
async def test_a_setting_that_is_one_of_some_words_is_told_as_a_word():
    """Its default, too; another word is refused, with those that there are."""
    async with local_node() as node:
        assert POLICY not in await settings_of(node, "g")
        for shard in node.shards:
            shard.state.level = 6
        before = (await settings_of(node, "g"))[POLICY]
        assert (before.text, before.default_text) == ("bidirectional", "bidirectional")
        assert not before.overridden
        for word in ("", "3", "both"):
            told = await alter(node, "g", consumer_migration_policy=word)
            assert code(told.status) == "INVALID_CONFIG"
            assert "disabled, upgrade, downgrade, bidirectional" in told.status.message
        for word in ("disabled", "upgrade", "downgrade", "bidirectional"):
            told = await alter(node, "g", consumer_migration_policy=word, classic_max_size=3)
            assert {one.text for one in told.after if one.name == POLICY} == {word}
            now = (await settings_of(node, "g"))[POLICY]
            assert (now.text, now.default_text, now.overridden) == (word, "bidirectional", True)
        await alter(node, "g", [POLICY])
        assert not (await settings_of(node, "g"))[POLICY].overridden


async def shares(node, members, **rest):
    """Members say what they are told to, and do as they are told; returns who has what at last."""
    for name, topics in members.items():
        said = {"topics": pb.ConsumerGroupHeartbeatRequest.Topics(names=topics), **rest}
        await beat(node, name, 0, session_timeout_ms=10_000, rebalance_timeout_ms=60_000, **said)
    return await settled(node)


async def settled(node):
    """Release what is to be released until everybody holds its target; who has what then."""
    while True:
        request = admin.DescribeGroupsRequest(group_ids=["g"], linearizable=True)
        (group,) = (await node.admin.DescribeGroups(request)).groups
        if group.state == "Stable":
            break
        for member in group.members:
            owned = pb.ConsumerGroupHeartbeatRequest.Owned()
            for grants in member.grants:
                if not grants.revoking:
                    owned.topics.add(topic=grants.topic, partitions=grants.partitions)
            await beat(node, member.member_id, member.member_epoch, owned=owned)
    owners = {
        (grants.topic, number): member.member_id
        for member in group.members
        for grants in member.grants
        for number in grants.partitions
    }
    return group, owners


async def beat(node, member_id, epoch, **fields):
    request = pb.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id=member_id, member_epoch=epoch, **fields
    )
    answer = await node.groups.ConsumerGroupHeartbeat(request)
    assert answer.status.code in (ErrorCode.NONE, ErrorCode.FENCED_MEMBER_EPOCH)


@run
async def test_topics_are_co_located_from_the_setting_to_the_grants():
    """The plan keeps to it, `why` and the description say so, and what cannot be done is told."""
    async with local_node() as node:
        for shard in node.shards:
            shard.state.level = 6
        for name, partitions in (("a", 4), ("b", 6)):
            await node.topics.CreateTopic(
                admin.CreateTopicRequest(name=name, partitions=partitions)
            )
        _, owners = await shares(node, {"x": ["a"], "y": ["a", "b"], "z": ["a", "b"]})
        assert "x" in owners.values()
        told = await alter(node, "g", validate_only=True, consumer_colocate="b,a")
        assert [one.text for one in told.after if one.name == COLOCATE] == ["a,b"]
        assert (await settings_of(node, "g"))[COLOCATE].text == ""
        told = await alter(node, "g", consumer_colocate="b,a")
        assert not told.status.code
        assert [one.text for one in told.before if one.name == COLOCATE] == [""]
        group, owners = await settled(node)
        assert len(owners) == 10
        assert all(owners["a", number] == owners["b", number] for number in range(4))
        assert {*owners.values()} == {"y", "z"}
        (one,) = group.colocated
        assert list(one.topics) == ["a", "b"]
        assert list(one.problems) == [
            "nothing for x, subscribed to a part of it",
            "different numbers of partitions: a 4, b 6",
        ]
        setting = (await settings_of(node, "g"))[COLOCATE]
        assert (setting.text, setting.overridden) == ("a,b", True)
        request = admin.DescribeRebalancesRequest(group_id="g")
        last = (await node.admin.DescribeRebalances(request)).rebalances[0]
        assert (last.trigger, last.reason) == ("settings_changed", "consumer.colocate is a,b")
        assert last.moved_partitions["co-located"] > 0
        assert not (await alter(node, "g", [COLOCATE])).status.code
        group, owners = await settled(node)
        assert not group.colocated
        assert "x" in owners.values()


@run
async def test_partitions_weigh_what_is_set_from_the_setting_to_the_grants():
    """The plan keeps to it, `why` and the description say so, and what has no effect is told."""
    async with local_node() as node:
        for shard in node.shards:
            shard.state.level = 6
        await node.topics.CreateTopic(admin.CreateTopicRequest(name="a", partitions=6))
        said = {"x": ["a"], "y": ["a"]}
        _, owners = await shares(node, said, assignor="weighted")
        assert sorted(Counter(owners.values()).values()) == [3, 3]
        told = await alter(node, "g", validate_only=True, consumer_weights="c=2;a[0-0]=5.00")
        assert [one.text for one in told.after if one.name == WEIGHTS] == ["a[0]=5;c=2"]
        assert (await settings_of(node, "g"))[WEIGHTS].text == ""
        told = await alter(node, "g", consumer_weights="a[6]=9;c=2;a[0-0]=5.00")
        assert not told.status.code
        assert [one.text for one in told.before if one.name == WEIGHTS] == [""]
        group, owners = await settled(node)
        heavy = owners["a", 0]
        assert [key for key, owner in owners.items() if owner == heavy] == [("a", 0)]
        assert [(one.topic, one.text, [*one.problems]) for one in group.weights] == [
            ("a", "a[0]=5;a[6]=9", ["[6] beyond its 6 partitions"]),
            ("c", "c=2", ["nobody reads c, or there is no such topic"]),
        ]
        setting = (await settings_of(node, "g"))[WEIGHTS]
        assert (setting.text, setting.overridden) == ("a[0]=5;a[6]=9;c=2", True)
        request = admin.DescribeRebalancesRequest(group_id="g")
        last = (await node.admin.DescribeRebalances(request)).rebalances[0]
        assert last.trigger == "settings_changed"
        assert last.reason == "consumer.weights is a[0]=5;a[6]=9;c=2"
        assert last.moved_partitions == {"balance": 2}
        for member in group.members:
            await beat(node, member.member_id, member.member_epoch, assignor="uniform")
        group, _ = await settled(node)
        assert group.weights[0].problems[0] == "not read: the assignor is uniform"
        assert not (await alter(node, "g", [WEIGHTS])).status.code
        group, _ = await settled(node)
        assert not group.weights


LONG = ";".join(f"{number:03}{'x' * 94}=2" for number in range(40))
"""A text of the setting of weights, nearly as long as one may be."""


def with_long_texts(node):
    """Give the node 300 groups with such a text, which are more than an answer has; their names."""
    names = [f"g{number}" for number in range(300)]
    for name in names:
        shard = node.core.shard_for(name)
        shard.state.level = 6
        shard.state.groups[name] = Group(name, texts={WEIGHTS: LONG})
    return names


@run
async def test_groups_with_long_texts_are_told_in_several_answers():
    """Each answer begins where the last one ended, and none is too large for a client."""
    async with local_node() as node:
        left = with_long_texts(node)
        answers = 0
        while left:
            request = admin.DescribeGroupConfigsRequest(group_ids=left)
            answer = await node.admin.DescribeGroupConfigs(request)
            assert answer.ByteSize() <= PAGE_BYTES + 2 * LIMITS.weights_max_bytes
            told = [group.group_id for group in answer.groups]
            assert told == left[: len(told)]
            assert all(LONG in [one.text for one in g.settings] for g in answer.groups)
            left = left[len(told) :]
            assert answer.more == bool(left)
            answers += 1
        assert answers == 2


@run
async def test_an_answer_to_many_changes_of_groups_with_long_texts_is_none_too_large():
    """Each group is told what became of it, and the first ones what is set."""
    async with local_node() as node:
        names = with_long_texts(node)
        request = admin.AlterGroupConfigsRequest(validate_only=True)
        for name in names:
            request.groups.add(group_id=name).settings.add(name=SIZE, value="7")
        answer = await node.admin.AlterGroupConfigs(request)
        assert [one.group_id for one in answer.results] == names
        assert {one.status.code for one in answer.results} == {ErrorCode.NONE}
        full = [bool(one.before) for one in answer.results]
        assert full == sorted(full, reverse=True)
        assert full[0]
        assert all(bool(one.before) == bool(one.after) for one in answer.results)
        assert answer.ByteSize() <= 2 * PAGE_BYTES


@run
async def test_a_dry_run_changes_nothing():
    """It tells what would be."""
    async with local_node() as node:
        told = await alter(node, "g", validate_only=True, classic_max_size=7)
        assert [one.value for one in told.after if one.name == SIZE] == [7]
        assert node.core.shard_for("g").state.groups == {}


@run
async def test_ids_and_counts_are_bounded():
    """gp-2.14: an empty id is INVALID_REQUEST; groups and settings of one call have a maximum."""
    async with local_node() as node:
        assert code((await alter(node, "", classic_max_size=7)).status) == "INVALID_REQUEST"
        request = admin.DescribeGroupConfigsRequest(group_ids=[""])
        (group,) = (await node.admin.DescribeGroupConfigs(request)).groups
        assert code(group.status) == "INVALID_REQUEST"
        most = LIMITS.alter_config_max_settings
        for count, error in ((most, "INVALID_CONFIG"), (most + 1, "INVALID_REQUEST")):
            names = [f"n{n}" for n in range(count)]
            assert code((await alter(node, "g", names)).status) == error
        many = [f"g{n}" for n in range(GROUPS_MAX + 1)]
        one = admin.AlterGroupConfigsRequest.Group
        answer = await node.admin.AlterGroupConfigs(
            admin.AlterGroupConfigsRequest(groups=[one(group_id=name) for name in many])
        )
        assert code(answer.status) == "INVALID_REQUEST"
        described = await node.admin.DescribeGroupConfigs(
            admin.DescribeGroupConfigsRequest(group_ids=many)
        )
        assert [code(group.status) for group in described.groups] == ["INVALID_REQUEST"]
        twice = admin.AlterGroupConfigsRequest(groups=[one(group_id="g"), one(group_id="g")])
        assert code((await node.admin.AlterGroupConfigs(twice)).status) == "INVALID_REQUEST"


@run
async def test_another_node_names_the_coordinator():
    """Neither read nor changed elsewhere; what can never be accepted is refused by any node."""
    async with local_node() as node:
        node.logs[node.core.shard_for("g").number].follow()
        told = await alter(node, "g", classic_max_size=7)
        assert code(told.status) == "NOT_COORDINATOR"
        many = [f"n{n}" for n in range(LIMITS.alter_config_max_settings + 1)]
        for removed in (many, ["twice", "twice"]):
            assert code((await alter(node, "g", removed)).status) == "INVALID_REQUEST"
        request = admin.DescribeGroupConfigsRequest(group_ids=["g"])
        (group,) = (await node.admin.DescribeGroupConfigs(request)).groups
        assert code(group.status) == "NOT_COORDINATOR"


# ---- kick


async def formed(node, *names):
    """Members of g in a stable generation; name -> JoinGroupResponse."""
    joins = [node.groups.JoinGroup(joining(name)) for name in names]
    joined = dict(zip(names, await asyncio.gather(*joins), strict=True))
    syncs = [
        node.groups.SyncGroup(
            pb.SyncGroupRequest(group_id="g", member_id=one.member_id, generation=one.generation)
        )
        for one in joined.values()
    ]
    await asyncio.gather(*syncs)
    return joined


@run
async def test_a_kicked_member_is_told_and_may_come_back():
    """Its calls end with UNKNOWN_MEMBER_ID; the round says who did it and why."""
    async with local_node() as node:
        joined = await formed(node, "a", "b")
        victim = joined["b"]
        beat = asyncio.create_task(
            _await(
                node.groups.Heartbeat(
                    pb.HeartbeatRequest(
                        client_nonce="n",
                        call_seq=1,
                        members=[
                            pb.HeartbeatRequest.Member(
                                group_id="g",
                                member_id=victim.member_id,
                                generation=victim.generation,
                            )
                        ],
                    )
                )
            )
        )
        started = []
        shard = node.core.shard_for("g")
        shard.subscribe(
            lambda _s, _i, _e, results: started.extend(e for r in results for e in r.events)
        )
        request = admin.KickMembersRequest(group_id="g", reason="disk is broken")
        request.members.add(member_id=victim.member_id)
        request.members.add(group_instance_id="nobody")
        answer = await node.admin.KickMembers(request)
        assert [code(r.status) for r in answer.results] == ["NONE", "UNKNOWN_MEMBER_ID"]
        assert [code(r.status) for r in (await beat).results] == ["UNKNOWN_MEMBER_ID"]
        removed, began = started[:2]
        assert removed.reason == began.reason == "kicked by operator: disk is broken"
        assert (removed.cause.name, began.trigger.name) == ("KICKED", "MEMBER_KICKED")
        assert began.member_id == victim.member_id
        again = [node.groups.JoinGroup(joining("b", join_nonce="f" * 32))]
        again.append(node.groups.JoinGroup(joining("a", member_id=joined["a"].member_id)))
        assert [r.status.code for r in await asyncio.gather(*again)] == [ErrorCode.NONE] * 2


@run
async def test_kicks_have_bounds():
    """No group, an empty id, too many members, a long reason."""
    async with local_node() as node:

        async def kick(group_id, count=1, reason=""):
            request = admin.KickMembersRequest(group_id=group_id, reason=reason)
            for number in range(count):
                request.members.add(member_id=f"m{number}")
            return await node.admin.KickMembers(request)

        assert code((await kick("g")).status) == "GROUP_ID_NOT_FOUND"
        assert code((await kick("")).status) == "INVALID_GROUP_ID"
        await with_topic(node)
        await node.groups.OffsetCommit(committing(5))
        answer = await kick("g", LIMITS.group_max_members)
        assert code(answer.status) == "NONE"
        assert {code(r.status) for r in answer.results} == {"UNKNOWN_MEMBER_ID"}
        answer = await kick("g", LIMITS.group_max_members + 1)
        assert code(answer.status) == "INVALID_REQUEST"
        assert code((await kick("g", reason="x" * 10_000)).status) == "NONE"


# ---- list


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, {"busy", "was", "simple", "set"}),
        ({"states": [" eMPTY "]}, {"was", "simple", "set"}),
        ({"states": ["empty", "PreparingRebalance"]}, {"busy", "was", "simple", "set"}),
        ({"states": ["no such state"]}, set()),
        ({"types": [" CLASSIC"]}, {"busy", "was", "simple", "set"}),
        ({"types": ["classic", "consumer"]}, {"busy", "was", "simple", "set"}),
        ({"types": ["consumer"]}, set()),
        ({"protocol_types": ["Consumer "]}, {"busy", "was"}),
        ({"protocol_types": [""]}, {"simple", "set"}),
        ({"protocol_types": ["connect"]}, set()),
        ({"states": ["PreparingRebalance"], "types": ["classic"]}, {"busy"}),
        ({"states": ["Empty"], "types": ["simple"]}, set()),
    ],
)
def test_groups_are_listed_by_filters(filters, expected):
    """sc-A01, sc-A02: or within, and between; neither case nor outer spaces count."""

    @run
    async def test():
        async with local_node() as node:
            await with_topic(node)
            await node.groups.OffsetCommit(committing(5, group="simple"))
            await alter(node, "set", classic_max_size=7)
            was = await node.groups.JoinGroup(joining("a", group="was"))
            leaving = pb.LeaveGroupRequest(group_id="was")
            leaving.members.add(member_id=was.member_id)
            await node.groups.LeaveGroup(leaving)
            busy = asyncio.create_task(_await(node.groups.JoinGroup(joining("a", group="busy"))))
            while "busy" not in node.core.shard_for("busy").state.groups:
                await asyncio.sleep(0)
            listed = await node.admin.ListGroups(admin.ListGroupsRequest(**filters))
            assert {group.group_id for group in listed.groups} == expected
            assert {group.type for group in listed.groups} <= {"classic"}
            busy.cancel()

    test()


# ---- losses


def forgetful(nodes, away, learners):
    """As node 0, whose store forgot something, sees the cluster."""
    return [
        NodeView(
            *(n, "", "", "0" * 32, n not in away, "", int(n in (0, *learners))),
            lost=n == 0,
            awaits=away if n == 0 else (),
        )
        for n in range(nodes)
    ]


@pytest.mark.parametrize(
    ("nodes", "away", "learners", "accepted"),
    [
        (3, (), (), False),
        (3, (2,), (), True),
        (3, (), (2,), True),
        (5, (), (4,), False),
        (5, (), (3, 4), True),
        (5, (4,), (), True),
    ],
)
def test_a_loss_that_the_shards_repair_by_themselves_is_not_accepted(
    nodes, away, learners, accepted
):
    """They do where all others are up and a majority of the nodes counts without this one."""

    @run
    async def test():
        async with local_node() as node:
            asked = []

            async def accept():
                asked.append(True)
                return True

            node.nodes, node.accept_loss = lambda: forgetful(nodes, away, learners), accept
            answer = await node.admin.AcceptLoss(admin.AcceptLossRequest(node_id=0))
            assert bool(asked) == accepted
            assert code(answer.status) == ("NONE" if accepted else "INVALID_REQUEST")
            assert accepted or "by themselves" in answer.status.message

    test()


@run
async def test_an_accepted_loss_is_answered_when_it_is_on_the_disk():
    """The operator may end the node then, and it counts all the same when it starts again."""
    store = SimpleNamespace(hard_epoch=6, synced_epoch=6)

    def accept():
        store.hard_epoch = 7
        return True

    node = SimpleNamespace(driver=SimpleNamespace(accept_loss=accept), _store=store)
    answered = asyncio.create_task(Node.accept_loss(node))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not answered.done()
    store.synced_epoch = 7
    async with asyncio.timeout(10):
        assert await answered
