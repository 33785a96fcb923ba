"""The cluster's level at the wire: what is refused below it, and how it is finalised."""

from dataclasses import replace

import pytest

from muster.v1 import admin_pb2 as pb
from muster.v1 import group_pb2
from musterd.coordinator.api.frame.cluster_view import NodeView
from musterd.coordinator.api.frame.handler import ActiveCall, Failure
from musterd.coordinator.machine.commands import FinalizeLevel, NodeLevel, NoteLevels, ShardLevel
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import LevelRaised
from musterd.coordinator.machine.shard_state import ShardState, evolve_shard_counted
from musterd.coordinator.runtime.level_keeper import LevelKeeper, finalisation
from musterd.coordinator.runtime.routing import shard_of
from musterd.coordinator.runtime.timeouts import LEVEL_PAUSE_MS
from musterd.levels import LAST_UNNAMED, LEVEL, LEVELS
from tests.coordinator.api.test_group_service import run
from tests.coordinator.local import local_node
from tests.coordinator.scripted import Peer


def levels(node, *known):
    """Have the nodes of a local node's cluster know these levels."""
    views = [NodeView(n, "", "", "", True, "", level=level) for n, level in enumerate(known)]
    node.nodes = lambda: views


def test_finalising_needs_every_node_and_is_seen_by_all_who_ask():
    """One that does not know it, or was not heard, is named; twice is as once."""

    @run
    async def test():
        async with local_node() as node:
            finalize, ask = node.admin.FinalizeLevel, pb.FinalizeLevelRequest
            before = await node.admin.DescribeCluster(pb.DescribeClusterRequest())
            assert before.level == LAST_UNNAMED
            assert [later.text for later in before.later_levels] == list(LEVELS[LEVEL])
            levels(node, LEVEL, 0, LEVEL)
            refused = await finalize(ask(level=LEVEL))
            assert refused.status.code == Error.INVALID_REQUEST
            assert refused.status.message.startswith("Node 1 is not connected")
            levels(node, LEVEL, LEVEL, LAST_UNNAMED)
            refused = await finalize(ask(level=LEVEL))
            assert refused.status.message == (
                f"Node 2 knows levels up to 5, not {LEVEL}: install the release on it first."
            )
            assert node.shards[0].state.level == 0
            levels(node, LEVEL, LEVEL, LEVEL)
            for before_it in (LAST_UNNAMED, LEVEL):
                done = await finalize(ask())
                assert (done.status.code, done.level) == (0, LEVEL)
                assert done.level_before == before_it
            assert node.shards[0].state.level == LEVEL
            after = await node.admin.DescribeCluster(pb.DescribeClusterRequest())
            assert (after.level, list(after.later_levels)) == (LEVEL, [])

    test()


def test_a_handler_refuses_what_the_cluster_is_not_at_yet():
    """UNSUPPORTED_VERSION, with what to do; at the level it goes on."""

    @run
    async def test():
        async with local_node() as node:
            call = ActiveCall(node.core, Peer(), None)
            with pytest.raises(Failure) as raised:
                call.needs_level(LEVEL)
            assert raised.value.answer.error is Error.UNSUPPORTED_VERSION
            assert "muster cluster upgrade --finalize" in raised.value.answer.message
            evolve_shard_counted(node.shards[0].state, LevelRaised(LEVEL))
            call.needs_level(LEVEL)

    test()


@pytest.mark.parametrize(
    ("cluster", "is_new", "known", "error"),
    [
        (LEVEL, False, {}, Error.COORDINATOR_LOAD_IN_PROGRESS),
        (0, True, {0: LEVEL, 1: 0, 2: LEVEL}, Error.COORDINATOR_LOAD_IN_PROGRESS),
        (0, True, {0: LEVEL, 1: LAST_UNNAMED, 2: 0}, Error.UNSUPPORTED_VERSION),
        (0, False, {0: LEVEL, 1: LEVEL, 2: LEVEL}, Error.UNSUPPORTED_VERSION),
    ],
)
def test_who_joins_before_its_shard_has_followed_to_the_level_tries_again(
    cluster, is_new, known, error
):
    """Also in a cluster that is new; not in one that waits for an operator, or for a release."""

    @run
    async def test():
        async with local_node(shards=2) as node:
            group_id = next(g for g in ("a", "b", "c", "d") if shard_of(g, 2) == 1)
            shard = node.shards[1]
            shard.node = replace(shard.node, node_levels=lambda: known)
            if cluster:
                evolve_shard_counted(node.shards[0].state, LevelRaised(cluster))
            node.shards[0].state.digest = not is_new
            request = group_pb2.ConsumerGroupHeartbeatRequest(
                group_id=group_id,
                member_id="m",
                session_timeout_ms=45_000,
                rebalance_timeout_ms=60_000,
                topics=group_pb2.ConsumerGroupHeartbeatRequest.Topics(names=["t"]),
            )
            answer = await node.groups.ConsumerGroupHeartbeat(request)
            assert answer.status.code == error
            assert answer.status.retriable is (error is Error.COORDINATOR_LOAD_IN_PROGRESS)
            evolve_shard_counted(shard.state, LevelRaised(LEVEL))
            assert not (await node.groups.ConsumerGroupHeartbeat(request)).status.code

    test()


def test_a_command_of_a_later_level_never_gets_into_the_log_of_a_shard_below_it():
    """The former build would end at it."""

    @run
    async def test():
        async with local_node() as node:
            answers, shard, log = [], node.shards[0], node.logs[0]
            proposed = log.applied_index
            shard.submit(NoteLevels((NodeLevel(0, LEVEL),)), 20, answers.append)
            assert answers[0].error is Error.UNSUPPORTED_VERSION
            assert log.applied_index == proposed

    test()


class Node:
    """What a keeper reads of its node."""

    def __init__(self, *known, auto=False):
        self.known, self.auto = dict(enumerate(known)), auto
        self.state, self.distrusted = ShardState(), False

    def node_levels(self):
        return self.known

    def auto_finalize(self):
        return self.auto

    def registry(self):
        return self.state

    def registry_distrusted(self):
        return self.distrusted


def asked(node, number=0, state=None, at=0):
    return list(LevelKeeper(number, state or node.state, node).turn(at))


def test_a_new_cluster_begins_at_the_highest_level_that_all_its_nodes_know():
    """Not where one was not heard, or knows no later one."""
    assert asked(Node(6, 6, 6)) == [FinalizeLevel(6, tuple(NodeLevel(n, 6) for n in range(3)))]
    assert asked(Node(6, 7, 6))[0].level == 6
    assert asked(Node(6, 0, 6)) == asked(Node(6, 5, 6)) == asked(Node()) == []


def test_a_cluster_whose_nodes_were_all_replaced_waits_for_an_operator():
    """Whatever was applied in shard 0 before, its clock alone, tells it from a new one."""
    node = Node(6, 6, 6)
    node.state.time_ms, node.state.digest = 1, 1
    assert asked(node) == []
    node.auto = True
    assert asked(node)[0].level == 6


def test_from_level_6_on_what_is_noted_counts_and_what_changed_is_noted_first():
    """The command brings no levels then; a node that was put back is noted, too."""
    node = Node(7, 7, 7, auto=True)
    node.state.level, node.state.node_levels = 6, {0: 7, 1: 6, 2: 7}
    assert asked(node) == [NoteLevels((NodeLevel(1, 7),))]
    node.state.node_levels[1] = 7
    assert asked(node) == [FinalizeLevel(7)] == [finalisation(node.state, node.known, 7)]
    node.auto, node.known = False, {0: 7, 1: 6, 2: 7, 3: 7}
    assert asked(node) == [NoteLevels((NodeLevel(1, 6),))]
    node.known = {0: 7, 1: 7, 2: 7, 3: 6}
    assert asked(node) == []  # nobody named node 3 when the level was finalised


def test_after_a_restore_all_levels_are_noted_at_once_before_any_is_finalised():
    """Nothing is noted then; a node that was not heard is waited for."""
    node = Node(7, 7, 0, auto=True)
    node.state.level, node.state.digest = 6, 1
    assert asked(node) == []
    node.known = {0: 7, 1: 7, 2: 6}
    every = tuple(NodeLevel(*one) for one in node.known.items())
    assert asked(node) == [NoteLevels(every)]
    assert finalisation(node.state, node.known, 7) == FinalizeLevel(7, every)


def test_a_shard_follows_shard_0_but_never_a_copy_in_quarantine():
    """Its level would never fall again."""
    node, state = Node(6, 6, 6), ShardState()
    node.state.level = 6
    node.distrusted = True
    assert asked(node, 3, state) == []
    node.distrusted = False
    assert asked(node, 3, state) == [ShardLevel(6)]
    state.level = 6
    assert asked(node, 3, state) == []


def test_a_keeper_asks_once_in_a_while():
    """What is refused, or lost, is not asked for again in each turn."""
    keeper = LevelKeeper(0, ShardState(), Node(6, 6, 6))
    assert len(list(keeper.turn(0))) == 1
    assert list(keeper.turn(LEVEL_PAUSE_MS - 1)) == []
    assert len(list(keeper.turn(LEVEL_PAUSE_MS))) == 1
