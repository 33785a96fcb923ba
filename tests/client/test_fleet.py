"""Many members of one process start at once, and wait for others without asking around."""

import asyncio

import grpc
import pytest

from muster import timeouts
from muster.errors import UnknownTopicOrPartition
from muster.net import backoff, calls
from muster.testing import Abort, Hang
from muster.types import Coordinator

PARKED_MS = 1_500
"""Longer than a call may be quiet that is not parked."""


@pytest.fixture
def slow_machine(monkeypatch):
    """What a busy machine answers late is not lost: no question is asked twice for that."""
    for name in ("FIND_ATTEMPT_MS", "PING_SILENCE_MS", "PING_SILENCE_MS_MAX"):
        monkeypatch.setattr(timeouts, name, 30_000)


def questions(cluster):
    """Who coordinates what; nobody is asked whether it is alive in the tests that use this."""
    return cluster.seen("FindCoordinator")


@pytest.mark.usefixtures("slow_machine")
async def test_a_parked_join_is_not_suspected(open_cluster):
    """What the coordinator holds on purpose is not silence: no other node is asked beside it."""
    async with open_cluster(3, initial_delay_ms=PARKED_MS) as (_, client):
        began_s = asyncio.get_running_loop().time()
        groups = [client.group(f"g{number}", ["t"]) for number in range(20)]
        first = await asyncio.gather(*(group.next_assignment() for group in groups))
        assert {len(assignment.partitions) for assignment in first} == {4}
        assert client.counters.unanswered == 0
        assert client.counters.find_coordinator <= 2
        # All of them together ask their coordinator.
        took_ms = (asyncio.get_running_loop().time() - began_s) * 1_000
        assert 1 <= client.counters.pings <= took_ms / timeouts.PING_MS


@pytest.mark.usefixtures("slow_machine")
async def test_a_call_of_a_modern_member_that_waits_unread_is_made_once(open_cluster):
    """While a fleet starts a node leaves it unread for seconds: repeated it would wait anew."""
    async with open_cluster(3) as (cluster, client):
        cluster.script("ConsumerGroupHeartbeat", Hang())
        joining = asyncio.create_task(
            client.group("g", ["t"], assignment="server").next_assignment()
        )
        # The node is asked whether it is alive instead, for longer than it takes to be suspect.
        await cluster.until(
            lambda: client.counters.pings > 2 * timeouts.SUSPECT_MS / timeouts.PING_MS
        )
        assert len(cluster.seen("ConsumerGroupHeartbeat")) == 1
        assert client.counters.unanswered == 0
        joining.cancel()


async def test_a_parked_join_at_a_node_that_falls_silent_goes_to_the_next_one(open_cluster):
    """SIGSTOP: the question whether it is alive stays unanswered, and another node is found."""
    async with open_cluster(3, initial_delay_ms=PARKED_MS) as (cluster, client):
        group = client.group("g", ["t"])
        joining = asyncio.create_task(group.next_assignment())
        await cluster.until(lambda: bool(cluster.seen("JoinGroup")))
        while client._core.discovery._asking:  # or one of these would bring the successor
            await asyncio.wait(list(client._core.discovery._asking))
        stopped = cluster.leader
        cluster.hang(stopped)
        await joining
        assert cluster.seen("JoinGroup")[-1].node_id != stopped
        assert client.counters.unanswered == 1
        cluster.resume(stopped)


async def test_a_node_too_busy_to_say_that_it_is_alive_is(open_cluster):
    """It refuses the question for overload, as servers before may: nobody else is asked."""
    async with open_cluster(3, initial_delay_ms=PARKED_MS) as (cluster, client):
        await client.committed("g", [])
        asked = client.counters.find_coordinator
        cluster.script(
            "FindCoordinator", *[Abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls")] * 100
        )
        await client.group("g", ["t"]).next_assignment()
        assert client.counters.pings
        assert client.counters.unanswered == 0
        assert client.counters.find_coordinator == asked


async def test_the_search_ends_when_a_silent_node_speaks_again(open_cluster, monkeypatch):
    """A busy node was late once: the others are not asked for as long as the Join is parked."""
    monkeypatch.setattr(timeouts, "FIND_ATTEMPT_MS", 400)
    async with open_cluster(3, initial_delay_ms=3_000) as (cluster, client):
        await client.committed("g", [])
        discovery = client._core.discovery
        cluster.script("FindCoordinator", Hang())
        joining = asyncio.create_task(client.group("g", ["t"]).next_assignment())
        await cluster.until(lambda: client.counters.unanswered >= 1)
        assert discovery._searches
        await cluster.until(lambda: client.counters.pings >= 3)
        assert not discovery._searches
        await joining
        assert len(cluster.seen("JoinGroup")) == 1


@pytest.mark.usefixtures("slow_machine")
async def test_members_of_one_client_look_for_their_topics_and_coordinators_together(
    open_cluster, monkeypatch
):
    """One call for the topics, and one to each of two nodes for all coordinators; whoever comes
    later asks for its group alone.
    """
    monkeypatch.setattr(timeouts, "SUSPECT_MS", 30_000)  # a slow machine is no quiet node
    monkeypatch.setattr(timeouts, "PING_MS", 30_000)
    async with open_cluster(3, topics={"t": 4, "u": 4}) as (cluster, client):
        names = [f"g{number}" for number in range(200)]
        groups = [client.group(name, ["t", "u"]) for name in names]
        await asyncio.gather(*(group.next_assignment() for group in groups))
        asked = [sorted(call.request.names) for call in cluster.seen("DescribeTopics")]
        assert asked == [["t", "u"]]
        assert 1 <= len(questions(cluster)) <= 2
        assert {len(call.request.keys) for call in questions(cluster)} == {len(names)}
        await client.group("later", ["u"]).next_assignment()
        assert len(cluster.seen("DescribeTopics")) == 1


@pytest.mark.usefixtures("slow_machine")
async def test_groups_that_search_one_after_the_other_share_their_questions(
    open_cluster, monkeypatch
):
    """Not only those of one turn of the loop: the next question to a node waits for more groups."""
    monkeypatch.setattr(timeouts, "SUSPECT_MS", 30_000)  # a slow machine is no quiet node
    async with open_cluster(1) as (cluster, client):
        loop, fetches = asyncio.get_running_loop(), []
        began = loop.time()
        for number in range(200):
            fetches.append(asyncio.create_task(client.committed(f"g{number}", [])))
            for _ in range(3):
                await asyncio.sleep(0)
        await asyncio.gather(*fetches)
        most = 2 + (loop.time() - began) * 1_000 / timeouts.FIND_GAP_MS
        assert len(questions(cluster)) <= most
        asked = {key.group_id for call in questions(cluster) for key in call.request.keys}
        assert len(asked) == 200


async def test_a_topic_that_does_not_exist_is_told_to_who_named_it_alone(open_cluster):
    """Names of many members go out together; each is answered for its own."""
    async with open_cluster(1) as (cluster, client):
        registry = client._core.registry
        good, bad, both = await asyncio.gather(
            registry.require(["t"], 5_000),
            registry.require(["missing"], 5_000),
            registry.require(["t", "missing"], 5_000),
            return_exceptions=True,
        )
        assert good is None
        assert isinstance(bad, UnknownTopicOrPartition)
        assert "missing" in str(bad)
        assert isinstance(both, UnknownTopicOrPartition)
        assert len(cluster.seen("DescribeTopics")) == 1
        cluster.topics["missing"] = 1
        await registry.require(["missing"], 5_000)
        assert [list(call.request.names) for call in cluster.seen("DescribeTopics")][1:] == [
            ["missing"]
        ]


async def test_a_herd_comes_back_spread_over_time_and_each_group_as_a_whole():
    """The same wait for all members of a group, in whichever process; another for other groups."""
    for failures, longest in ((1, 300), (3, 1_200), (30, 3_000)):
        waits = [backoff.shed_delay_ms(f"g{number}", failures) for number in range(1_000)]
        assert waits == [backoff.shed_delay_ms(f"g{number}", failures) for number in range(1_000)]
        tenths = [wait * 10 // (longest + 1) for wait in waits]
        assert min(waits) >= longest / 3
        assert max(waits) <= longest
        assert min(tenths.count(tenth) for tenth in range(4, 10)) > 100


async def test_joins_that_a_busy_coordinator_refuses_are_made_again_there(open_cluster):
    """Refused for overload some times, a group's members join in the end, and ask nobody else."""
    async with open_cluster(3) as (cluster, client):
        await client.committed("g", [])
        asked = client.counters.find_coordinator
        busy = Abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls")
        cluster.script("JoinGroup", *[busy] * 3)
        assignment = await client.group("g", ["t"]).next_assignment()
        assert assignment.generation == 1
        assert client.counters.overloaded == 3
        assert client.counters.find_coordinator == asked


async def test_a_member_does_not_fail_while_its_cluster_is_only_busy(open_cluster, monkeypatch):
    """Nodes that are there refuse for longer than a Join waits: the member begins afterwards."""
    monkeypatch.setattr(timeouts, "START_MS", 300)
    options = {"request_timeout_ms": 200}
    async with open_cluster(1, client=options) as (cluster, client):
        busy = Abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls")
        cluster.script("DescribeTopics", *[busy] * 12)
        assert (await client.group("g", ["t"]).next_assignment()).generation == 1
        assert len(cluster.seen("DescribeTopics")) >= 13


async def test_who_stops_waiting_for_a_topic_takes_the_answer_from_nobody(open_cluster):
    """A member that is closed while its topic is looked up: the others' call goes on."""
    async with open_cluster(1) as (cluster, client):
        registry = client._core.registry
        leaves = asyncio.create_task(registry.require(["t"], 5_000))
        stays = asyncio.create_task(registry.require(["t"], 5_000))
        await asyncio.sleep(0)
        leaves.cancel()
        await stays
        with pytest.raises(asyncio.CancelledError):
            await leaves
        assert len(cluster.seen("DescribeTopics")) == 1


async def test_a_herd_passes_to_a_later_coordinator_spread_over_time_and_each_group_as_a_whole(
    open_cluster,
):
    """A group's members wait equally long, in whichever process; the more calls, the longer."""
    async with open_cluster(1) as (_, client):
        caller, later = client._core.caller, Coordinator(2, "b:1", 7)

        def spread_ms(group_id):
            return calls._GroupCall(caller, group_id, calls.JOIN, b"", 1_000, None)._spread_ms(
                later
            )

        names = [f"g{number}" for number in range(200)]
        few = [spread_ms(name) for name in names]
        assert few == [spread_ms(name) for name in names]
        assert timeouts.JOIN_SPREAD_MS / 2 < max(few) <= timeouts.JOIN_SPREAD_MS
        watches = [client._core.pings.watch("b:1", name, lambda: None) for name in names]
        many = [spread_ms(name) for name in names]
        most = calls.JOIN_SPREAD_MS_EACH * len(watches)
        assert most / 2 < max(many) <= most <= timeouts.JOIN_SPREAD_MS_MAX
        for watch in watches:
            watch.close()


async def test_a_join_that_goes_to_a_later_coordinator_ends_at_the_earlier_one(
    open_cluster, monkeypatch
):
    """What it would answer is NOT_COORDINATOR at best, and in a herd that is work for it."""
    async with open_cluster(3, initial_delay_ms=PARKED_MS) as (cluster, client):
        made, unary = [], client._core.nodes.unary

        def noted(endpoint, path, *arguments):
            call = unary(endpoint, path, *arguments)
            if path == calls.JOIN.path:
                made.append(call)
            return call

        monkeypatch.setattr(client._core.nodes, "unary", noted)
        joining = asyncio.create_task(client.group("g", ["t"]).next_assignment())
        await cluster.until(lambda: bool(cluster.seen("JoinGroup")))
        stopped = cluster.leader
        cluster.hang(stopped)
        await cluster.until(lambda: len(made) == 2)
        await cluster.until(made[0].cancelled)
        assert not made[1].done()
        await joining
        cluster.resume(stopped)
