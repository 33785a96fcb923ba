"""Calls reach the coordinator, whoever that is, and mean the same however often they go out."""

import asyncio

import grpc
import pytest

from muster import Client, TopicPartition, timeouts
from muster.errors import (
    CallFailed,
    CoordinatorNotAvailable,
    ErrorCode,
    GroupAuthorizationFailed,
    InvalidGroupId,
    InvalidRequest,
    RequestTimedOut,
    UnsupportedVersion,
)
from muster.net.discovery import Routes
from muster.testing import Abort, Hang, LoseAnswer, Refuse
from muster.testing import cluster as cluster_module
from muster.types import Coordinator, Counters, OffsetAndMetadata
from tests.client.questions import asked_so_far

T0 = TopicPartition("t", 0)


def sent(cluster, method="OffsetCommit"):
    """The distinct byte strings that arrived."""
    return {call.request.SerializeToString() for call in cluster.seen(method)}


async def test_a_call_follows_the_leader_after_a_kill(open_cluster):
    """Kill the coordinator: the next commit is acknowledged by its successor, in a later term."""
    async with open_cluster(3) as (cluster, client), client.group("g", ["t"]) as group:
        await group.next_assignment()
        first = await group.commit({T0: 1})
        await cluster.kill(cluster.leader)
        second = await group.commit({T0: 2})
        assert second.acknowledged == {T0: 2}
        assert second.term > first.term
        assert (await group.committed([T0])).offset(T0) == 2
        assert client.counters.connections_lost >= 1
        assert client.counters.coordinator_changes == 1
        # What the search needed is gone with it.
        assert not client._core.discovery._searches
        assert len(client._core.caller.routes._watchers) == 1  # the member's heartbeats


async def test_a_commit_whose_answer_is_lost_is_sent_again_byte_for_byte(open_cluster):
    """Applied, then the answer is lost: the retry elsewhere has the same bytes, and counts."""
    async with open_cluster(3) as (cluster, client), client.group("g", ["t"]) as group:
        await group.next_assignment()
        cluster.script("OffsetCommit", LoseAnswer())
        commit = asyncio.create_task(group.commit({T0: 7}))
        await cluster.until(lambda: T0 in cluster.groups["g"].offsets)
        await cluster.kill(cluster.leader)
        result = await commit
        assert result.acknowledged == {T0: 7}
        assert len(cluster.seen("OffsetCommit")) == 2
        assert len(sent(cluster)) == 1


async def test_a_silent_coordinator_is_overtaken_and_the_loser_cancelled(open_cluster):
    """SIGSTOP: another node is asked beside the open attempt; the first answer wins."""
    async with open_cluster(3) as (cluster, client), client.group("g", ["t"]) as group:
        await group.next_assignment()
        stopped = cluster.leader
        cluster.script("OffsetCommit", Hang())
        commit = asyncio.create_task(group.commit({T0: 1}))
        await cluster.until(lambda: len(cluster.seen("OffsetCommit")) == 1)
        cluster.hang(stopped)
        result = await commit
        assert result.acknowledged == {T0: 1}
        assert len(sent(cluster)) == 1
        assert client.counters.unanswered >= 1
        await cluster.until(lambda: cluster.open_calls["OffsetCommit"] == 0)
        cluster.resume(stopped)


async def test_the_first_answer_wins_also_when_it_is_the_old_coordinators(open_cluster):
    """A coordinator that still leads is asked again; nobody else is found, its answer counts."""
    async with open_cluster(3) as (cluster, client), client.group("g", ["t"]) as group:
        await group.next_assignment()
        cluster.script("OffsetCommit", Hang())
        # A heartbeat in flight keeps the route; the commit's first attempt ends by its deadline.
        result = await group.commit({T0: 3})
        assert result.acknowledged == {T0: 3}
        assert client.counters.deadlines == 1
        assert len(sent(cluster)) == 1
        assert client.counters.coordinator_changes == 0


async def test_a_hint_saves_the_question(open_cluster, monkeypatch):
    """NOT_COORDINATOR names the new one: the call goes there without FindCoordinator."""
    monkeypatch.setattr(timeouts, "SUSPECT_MS", 30_000)  # a slow machine is no quiet node
    async with open_cluster(3) as (cluster, client), client.group("g", ["t"]) as group:
        await client.committed("other", [T0])
        asked = await asked_so_far(client, cluster)
        cluster.elect(2)
        await client.committed("other", [T0])
        assert [c.node_id for c in cluster.seen("OffsetFetch")][-2:] == [1, 2]
        assert await asked_so_far(client, cluster) == asked
        assert client.counters.not_coordinator == 1
        assert group.state == "Unjoined"


def test_only_the_node_itself_unmakes_it_the_leader_of_a_term():
    """A term has one leader: another node's word changes nothing, the named node's own does."""
    routes = Routes(Counters())
    wrong, right = Coordinator(1, "h:1", 6), Coordinator(2, "h:2", 6)
    woken = []
    routes.watch("g", lambda: woken.append(routes.get("g")))
    assert routes.learn("g", wrong)
    assert not routes.learn("g", right)
    assert not routes.learn("g", right, denied=Coordinator(1, "h:1", 5))
    assert not routes.learn("g", Coordinator(2, "h:2", 5), denied=wrong)
    assert routes.get("g") == wrong
    assert routes.learn("g", right, denied=wrong)
    assert woken == [wrong, right]


@pytest.mark.parametrize("failures", [0, 3])
async def test_a_wrong_route_is_corrected_by_the_node_that_it_names(open_cluster, failures):
    """The client believes that a node leads in the current term; its denial names the leader.

    Whatever went wrong before: only hints in a row are limited.
    """
    async with open_cluster(3) as (cluster, client):
        await client.committed("g", [T0])
        right = client.coordinator("g")
        others = [node for node in (1, 2, 3) if node != right.node_id]
        wrong = Coordinator(others[0], cluster.endpoint(others[0]), right.term)
        client._opened().caller.routes.forget("g")
        client._opened().caller.routes.learn("g", wrong)
        busy = Abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls")
        cluster.script("OffsetFetch", *[busy] * failures)
        assert (await client.committed("g", [T0])).term == right.term
        assert client.coordinator("g") == right


async def test_not_coordinator_without_a_hint_asks_around(open_cluster):
    """The node knows no successor yet: another one is asked for a later term."""
    async with open_cluster(3, election_ms=200) as (cluster, client):
        await client.committed("g", [T0])
        cluster.script("OffsetFetch", Refuse(ErrorCode.NOT_COORDINATOR))
        fetch = asyncio.create_task(client.committed("g", [T0]))
        await cluster.until(lambda: any(k.known_term for k in _last_keys(cluster)))
        cluster.elect(3)
        assert (await fetch).term == 2


def _last_keys(cluster):
    return cluster.seen("FindCoordinator")[-1].request.keys


@pytest.mark.parametrize(
    "step",
    [
        Refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        Refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE),
        Refuse(ErrorCode.NOT_COORDINATOR),
        Refuse(ErrorCode.REQUEST_TIMED_OUT),
        Abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls"),
        Abort(grpc.StatusCode.UNAVAILABLE),
        Abort(grpc.StatusCode.UNKNOWN),
        Abort(grpc.StatusCode.INTERNAL),
        Abort(grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
    ids=lambda step: str(step.code.name if isinstance(step, Abort) else ErrorCode(step.code).name),
)
async def test_what_passes_is_waited_out_with_the_same_bytes(open_cluster, step):
    """Twice in a row, then the answer: the user sees nothing but the acknowledgement."""
    async with open_cluster(1) as (cluster, client), client.group("g", ["t"]) as group:
        await group.next_assignment()
        cluster.script("OffsetCommit", step, step)
        result = await group.commit({T0: 1})
        assert result.acknowledged == {T0: 1}
        assert len(cluster.seen("OffsetCommit")) == 3
        assert len(sent(cluster)) == 1


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, UnsupportedVersion),
        (grpc.StatusCode.UNAUTHENTICATED, GroupAuthorizationFailed),
        (grpc.StatusCode.PERMISSION_DENIED, GroupAuthorizationFailed),
        (grpc.StatusCode.INVALID_ARGUMENT, CallFailed),
    ],
)
async def test_what_does_not_pass_is_raised_at_once(open_cluster, code, error):
    """One attempt, then the exception with the server's words."""
    async with open_cluster(1) as (cluster, client):
        cluster.script("OffsetFetch", Abort(code, "because"))
        with pytest.raises(error, match="because"):
            await client.committed("g", [T0])
        assert len(cluster.seen("OffsetFetch")) == 1


async def test_a_message_that_the_server_finds_too_large_is_not_sent_again(open_cluster):
    """GRPC says RESOURCE_EXHAUSTED for that too, but waiting does not mend it."""
    async with open_cluster(1) as (cluster, client):
        details = "Received message larger than max (9 vs. 4)"
        cluster.script("OffsetFetch", Abort(grpc.StatusCode.RESOURCE_EXHAUSTED, details))
        with pytest.raises(InvalidRequest, match="larger than max"):
            await client.committed("g", [T0])


async def test_a_request_beyond_the_limit_is_not_sent(open_cluster):
    """More than 1.5 MiB: refused here, with the size."""
    async with open_cluster(1, topics={"t": 1000}) as (cluster, client):
        huge = {TopicPartition("t", p): OffsetAndMetadata(1, "x" * 1600) for p in range(1000)}
        with pytest.raises(InvalidRequest, match="bytes"):
            await client.commit_offsets("g", huge)
        assert not cluster.seen("OffsetCommit")


async def test_no_answer_in_time_is_request_timed_out(open_cluster):
    """The result is not known, says the error, and that it may be tried again."""
    async with (
        open_cluster(1, client={"request_timeout_ms": 700}) as (cluster, client),
        client.group("g", ["t"]) as group,
    ):
        await group.next_assignment()
        cluster.script("OffsetCommit", Hang(), Hang(), Hang())
        with pytest.raises(RequestTimedOut) as caught:
            await group.commit({T0: 1})
        assert caught.value.retriable
        assert caught.value.code == 7
        assert client.counters.commits_failed == 1


async def test_nobody_there_is_coordinator_not_available(open_cluster):
    """No node answers: the error says so after the call's time."""
    async with open_cluster(2, client={"request_timeout_ms": 500}) as (cluster, client):
        await cluster.kill(1)
        await cluster.kill(2)
        with pytest.raises(CoordinatorNotAvailable):
            await client.committed("g", [T0])


async def test_a_cluster_of_one_is_waited_for_while_it_restarts(open_cluster):
    """The only node comes back at its address: the call that was open is answered."""
    async with open_cluster(1) as (cluster, client):
        await client.committed("g", [T0])
        await cluster.kill(1)
        fetch = asyncio.create_task(client.committed("g", [T0]))
        await asyncio.sleep(0)
        await cluster.restart(1)
        assert (await fetch).offset(T0) is None


async def test_a_refused_group_id_is_raised_at_once(open_cluster):
    """FindCoordinator itself refuses: searching on is of no use."""
    async with open_cluster(2) as (cluster, client):
        cluster.script("FindCoordinator", *[Refuse(ErrorCode.INVALID_GROUP_ID, "no such id")] * 2)
        with pytest.raises(InvalidGroupId, match="no such id"):
            await client.committed("g", [T0])
        assert not cluster.seen("OffsetFetch")


async def test_many_groups_of_one_client_share_their_questions(open_cluster):
    """A coordinator dies under 30 groups of a shard: one of them is asked for, for all."""
    async with open_cluster(3) as (cluster, client):
        names = [f"g{i}" for i in range(30)]
        await asyncio.gather(*(client.committed(name, [T0]) for name in names))
        asked = await asked_so_far(client, cluster)
        await cluster.kill(cluster.leader)
        answers = await asyncio.gather(*(client.committed(name, [T0]) for name in names))
        assert {answer.term for answer in answers} == {2}
        questions = cluster.seen("FindCoordinator")[asked:]
        assert len(questions) <= 10
        assert {len(call.request.keys) for call in questions} == {1}


async def test_questions_go_to_other_nodes_than_the_one_that_is_gone(open_cluster):
    """Known term beside the id, and never first the node that went quiet."""
    async with open_cluster(3) as (cluster, client):
        await client.committed("g", [T0])
        asked = await asked_so_far(client, cluster)
        cluster.hang(1)
        await client.committed("g", [T0])
        questions = cluster.seen("FindCoordinator")[asked:]
        assert {call.node_id for call in questions} <= {2, 3}
        assert {key.known_term for call in questions for key in call.request.keys} == {1}
        cluster.resume(1)


async def test_nodes_that_nobody_named_are_learned(open_cluster):
    """The user gives one address of three; after that one dies the client goes on."""
    async with open_cluster(3) as (cluster, client):
        async with Client(cluster.endpoint(1)) as other:
            await other.committed("g", [T0])
            await cluster.kill(1)
            assert (await other.committed("g", [T0])).term == 2
        assert client.coordinators() == {}


async def test_a_join_at_a_node_that_the_client_lets_go_is_sent_again(open_cluster, monkeypatch):
    """The node list lacked it: the members whose Joins were parked there failed for good."""
    monkeypatch.setattr(timeouts, "COMMIT_ATTEMPT_MS", 100)
    async with open_cluster(3) as (cluster, client):
        cluster.script("JoinGroup", Hang())
        async with client.group("g", ["t"]) as group:
            joined = asyncio.create_task(group.next_assignment())
            await cluster.until(lambda: len(cluster.seen("JoinGroup")) == 1)
            client._core.nodes._drop(cluster.endpoint(cluster.leader))
            assert (await joined).generation == 1


async def test_a_node_that_is_connected_stays_though_a_list_lacks_it(open_cluster):
    """A node that has just started names itself and those that it has heard of."""
    async with open_cluster(3) as (cluster, client):
        nodes = client._core.nodes
        every = {cluster.endpoint(number) for number in (1, 2, 3)}
        nodes.learn(every)
        await connected(nodes, every)
        nodes.learn([cluster.endpoint(1)])
        assert set(nodes.endpoints()) == every
        await cluster.kill(3)
        left = every - {cluster.endpoint(3)}
        await connected(nodes, left)
        nodes.learn([cluster.endpoint(1)])
        assert set(nodes.endpoints()) == left


async def test_a_process_may_have_more_members_than_a_connection_has_calls(
    open_cluster, monkeypatch
):
    """The round of their group waits for the Join of each: it must not wait in the client."""
    options = (*cluster_module._SERVER_OPTIONS, ("grpc.max_concurrent_streams", 8))
    monkeypatch.setattr("muster.testing.cluster._SERVER_OPTIONS", options)
    monkeypatch.setattr("muster.net.nodes.PATIENT_CALLS_MAX", 6)
    async with open_cluster(1, client={"streams": False}, initial_delay_ms=1_000) as (
        cluster,
        client,
    ):
        members = [client.group("g", ["t"]) for _ in range(20)]
        stable = [asyncio.create_task(member.next_assignment()) for member in members]
        _, unstable = await asyncio.wait(stable, timeout=20)
        assert not unstable, f"{len(unstable)} of 20 have no assignment"
        nodes = client._core.nodes
        assert len(nodes._more[cluster.endpoint(1)]) == 3
        await client.close()
        assert not nodes._patient
        assert not nodes._more


async def connected(nodes, endpoints):
    """Wait until connections to these stand, and no others."""
    async with asyncio.timeout(20):
        while nodes._ready() != endpoints:
            states = {e: channel.get_state() for e, channel in nodes._channels.items()}
            changes = [nodes._channels[e].wait_for_state_change(was) for e, was in states.items()]
            tasks = [asyncio.create_task(change) for change in changes]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
