"""What a group waits for, and why it rebalanced: from applied state, over real gRPC."""

import asyncio

import pytest

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.api.rpcs.describe_rebalances import is_awaited, told, wait_of
from musterd.coordinator.machine.history import HISTORY_ROUNDS
from tests.coordinator.api.test_group_service import joining, run, with_topic
from tests.coordinator.fakes import id_of
from tests.coordinator.local import local_node, until
from tests.machine.text import WALL_MS
from tests.machine.world import World

WALL_OFFSET_MS = 50_000


def world(*lines):
    """A shard after these commands."""
    made = World()
    for line in lines:
        made.run(line)
    return made


def waits(made):
    """Who is awaited, and the wait, as of now."""
    group = made.state.groups["g"]
    awaited = [m.member_id for m in group.members.values() if is_awaited(group, m)]
    wall_ms = WALL_MS + made.now_ms + WALL_OFFSET_MS
    return awaited, wait_of(group, made.now_ms, wall_ms), wall_ms


STABLE = ("join a", "join b", "fire", "fire", "sync a-1", "sync b-1")


@pytest.mark.parametrize(
    ("lines", "kind", "who", "waited_ms", "remaining_ms"),
    [
        (("join a", "time 200"), "initial_delay", [], 200, 300),
        (("join a", "join b", "fire", "time 700"), "initial_delay", [], 700, 300),
        (("join a", "fire", "time 900"), "sync", ["a-1"], 400, 59_600),
        ((*STABLE, "time 2000", "rejoin a-1", "time 2500"), "join", ["b-1"], 500, 59_500),
        ((*STABLE[:-1], "time 1700"), "sync", ["b-1"], 700, 59_300),
        ((*STABLE[:4], "sync b-1", "time 1700"), "sync", ["a-1"], 700, 59_300),
        ((*STABLE, "time 2000", "rejoin a-1", "time 99999"), "join", ["b-1"], 97_999, 0),
    ],
)
def test_who_is_waited_for_since_when_until_when(lines, kind, who, waited_ms, remaining_ms):
    """Each phase that has a timer: from the phase, the timer and its deadline."""
    awaited, wait, wall_ms = waits(world(*lines))
    assert (wait.kind, awaited, wait.awaited_members) == (kind, who, len(who))
    assert (wait.waited_ms, wait.remaining_ms) == (waited_ms, remaining_ms)
    assert wait.since_wall_ms == wall_ms - waited_ms
    assert wait.until_wall_ms == wall_ms + remaining_ms


def test_where_nothing_is_waited_for_there_is_no_wait():
    """Stable with everybody synced, and Empty."""
    awaited, wait, _ = waits(world(*STABLE))
    assert (awaited, wait) == ([], None)
    awaited, wait, _ = waits(world("commit - t/0=1"))
    assert (awaited, wait) == ([], None)


def test_ids_that_were_handed_out_are_waited_for():
    """gp-P8: they hold up the round; the first eight by name."""
    handed = [f"join p{number} nonce= drawn=d" for number in range(10)]
    awaited, wait, _ = waits(world("join a", "fire", "sync a-1", *handed, "rejoin a-1"))
    assert awaited == []
    assert (wait.pending, list(wait.pending_ids)) == (10, [f"p{n}-d" for n in range(8)])


def test_a_round_of_rules_1_says_until_when_alone():
    """Since when is not known there."""
    made = World(level=1)
    made.run("join a")
    _, wait, wall_ms = waits(made)
    assert (wait.since_wall_ms, wait.waited_ms) == (0, 0)
    assert wait.until_wall_ms == wall_ms + 500


def test_an_open_round_says_how_long_it_has_been():
    """Joining first, then syncing: counted until now."""
    made = world(*STABLE, "time 2000", "rejoin a-1 reason=why-not", "time 2300")
    group = made.state.groups["g"]
    one = told(group, 2, group.rebalances[2], made.now_ms)
    assert (one.ended, one.joining_ms, one.HasField("syncing_ms")) == ("open", 300, False)
    assert (one.culprit.member_id, one.culprit.client_id, one.reason) == ("a-1", "a", "why-not")
    assert [(d.how, d.who.member_id) for d in one.delays] == [("awaited", "b-1")]
    assert one.awaited_members == 1
    for line in ("time 2400", "rejoin b-1", "time 2450"):
        made.run(line)
    one = told(group, 2, group.rebalances[2], made.now_ms)
    assert (one.ended, one.joining_ms, one.syncing_ms) == ("open", 400, 50)
    assert one.awaited_members == 2
    made.run("sync a-1")
    one = told(group, 2, group.rebalances[2], made.now_ms + 99)
    assert (one.ended, one.joining_ms, one.syncing_ms) == ("stable", 400, 50)
    delays = [(delay.how, delay.who.member_id, delay.after_ms) for delay in one.delays]
    assert delays == [("last_to_join", "b-1", 400), ("assignment", "a-1", 50)]


def test_who_was_missing_comes_first_and_by_its_cause():
    """gp-P6: dropped, gone, absent."""
    made = world("join a", "join b", "join c instance=i", "join d", "fire", "fire", "sync a-1")
    for line in ("sync b-1", "sync c-1", "sync d-1", "time 2000", "rejoin a-1"):
        made.run(line)
    for line in ("time 2100", "leave d-1", "fire"):
        made.run(line)
    group = made.state.groups["g"]
    one = told(group, 2, group.rebalances[2], made.now_ms)
    assert [(d.how, d.who.member_id, d.who.group_instance_id, d.after_ms) for d in one.delays] == [
        ("left", "d-1", "", 100),
        ("not_rejoined", "b-1", "", 60_000),
        ("absent", "c-1", "i", 60_000),
        ("last_to_join", "a-1", "", 0),
        ("awaited", "a-1", "", 60_000),
        ("awaited", "c-1", "i", 60_000),
    ]
    assert one.missing_members == 3


def asking(group="g", most=0):
    """A request."""
    return admin.DescribeRebalancesRequest(group_id=group, max_rebalances=most)


@run
async def test_a_groups_rounds_are_described_newest_first():
    """Two members, a round more, one that is open; and who is waited for in DescribeGroups."""
    async with local_node() as node:
        await with_topic(node)
        a, _ = await asyncio.gather(
            node.groups.JoinGroup(joining("a", reason="started")),
            node.groups.JoinGroup(joining("b")),
        )
        leader = "a" if a.leader_id == a.member_id else "b"
        sync = pb.SyncGroupRequest(group_id="g", member_id=id_of(leader), generation=a.generation)
        await node.groups.SyncGroup(sync)
        third = node.groups.JoinGroup(joining("c", reason="scaled out"))
        shard = node.core.shard_for("g")
        await until(lambda: shard.state.groups["g"].round == 2)
        answer = await node.admin.DescribeRebalances(asking())
        assert answer.status.code == ErrorCode.NONE
        assert answer.applied_index > 0
        newest, first = answer.rebalances
        assert (newest.round, newest.trigger, newest.reason) == (2, "member_joined", "scaled out")
        assert (newest.culprit.member_id, newest.culprit.client_id) == (id_of("c"), "c")
        assert (newest.ended, newest.members_before, newest.members_after) == ("open", 2, 3)
        assert (first.round, first.ended, first.initial, first.members_after) == (
            1,
            "stable",
            True,
            2,
        )
        assert first.joining_ms >= 500
        assert first.leader.member_id == id_of(leader)
        (only,) = (await node.admin.DescribeRebalances(asking(most=1))).rebalances
        assert only.round == 2
        request = admin.DescribeGroupsRequest(group_ids=["g"])
        (group,) = (await node.admin.DescribeGroups(request)).groups
        assert {m.client_id for m in group.members if m.awaited} == {"a", "b"}
        assert (group.wait.kind, group.wait.awaited_members) == ("join", 2)
        assert 0 < group.wait.remaining_ms <= 60_000
        assert group.wait.since_wall_ms == pytest.approx(newest.started_wall_ms, abs=1_000)
        third.cancel()


@run
async def test_what_cannot_be_described_is_refused():
    """No such group, no id, a negative number, another coordinator."""
    async with local_node() as node:
        for request, code in (
            (asking("nope"), ErrorCode.GROUP_ID_NOT_FOUND),
            (asking(""), ErrorCode.INVALID_GROUP_ID),
            (asking("g" * 250), ErrorCode.INVALID_GROUP_ID),
            (asking("g", -1), ErrorCode.INVALID_REQUEST),
        ):
            answer = await node.admin.DescribeRebalances(request)
            assert answer.status.code == code
            assert not answer.rebalances
        node.logs[node.core.shard_for("g").number].follow()
        answer = await node.admin.DescribeRebalances(asking())
        assert answer.status.code == ErrorCode.NOT_COORDINATOR
    async with local_node(lead=False) as node:
        assert (await node.admin.DescribeRebalances(asking())).status.code != ErrorCode.NONE


def test_more_rounds_than_are_kept_are_all_that_are_kept():
    """The answer is bounded by the history."""
    made = world("join a", "fire", "sync a-1")
    for number in range(HISTORY_ROUNDS + 3):
        made.run(f"rejoin a-1 meta=m{number}")
    assert len(made.state.groups["g"].rebalances) == HISTORY_ROUNDS
