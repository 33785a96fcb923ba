"""One heartbeat call per client and coordinator; news is pushed; nobody is forgotten or flooded."""

import asyncio
import itertools
import logging

import grpc
import pytest

from muster import TopicPartition, timeouts
from muster.errors import ErrorCode
from muster.group import heartbeats
from muster.group.heartbeats import CALLS_AHEAD, MemberHeartbeat, _Beat
from muster.testing import Abort, Cluster, Hang, Refuse
from muster.types import Coordinator
from muster.v1 import errors_pb2, group_pb2
from tests.client.listeners import Calls
from tests.client.questions import asked_so_far

T0 = TopicPartition("t", 0)
LONG_MS = 3_600_000


def groups_of(call):
    """The group ids of a heartbeat call."""
    return sorted(member.group_id for member in call.request.members)


async def test_one_call_carries_all_members_of_a_client(open_cluster):
    """Five groups, one call: a rising call_seq under one nonce, and the last one has all five."""
    async with open_cluster(1, interval_ms=LONG_MS) as (cluster, client):
        names = [f"g{i}" for i in range(5)]
        groups = [client.group(name, ["t"]) for name in names]
        await asyncio.gather(*(group.next_assignment() for group in groups))
        await cluster.until(lambda: groups_of(cluster.seen("Heartbeat")[-1]) == names)
        beats = [call.request for call in cluster.seen("Heartbeat")]
        assert len({beat.client_nonce for beat in beats}) == 1
        assert [b.call_seq for b in beats] == sorted({b.call_seq for b in beats})
        # The newer call released the older ones: one is held.
        await cluster.until(lambda: cluster.open_calls["Heartbeat"] == 1)


async def test_calls_that_name_many_members_are_made_less_often(open_cluster, monkeypatch):
    """Members of a fleet come one by one, and each call names all that are there already."""
    async with open_cluster(1, interval_ms=LONG_MS) as (cluster, client):
        call_if_due, calls = _Beat._call_if_due, []

        def noted(self):
            before = self._current
            call_if_due(self)
            if self._current is not before:
                calls.append((self._current.started_at, len(self._current.members)))

        monkeypatch.setattr(_Beat, "_call_if_due", noted)
        for number in range(60):
            await client.group(f"g{number}", ["t"]).next_assignment()
        await cluster.until(lambda: calls[-1][1] == 60)
        most_ms, each_ms = timeouts.HEARTBEAT_GAP_MS_MAX, timeouts.HEARTBEAT_GAP_EACH_MS
        gaps_s = [min(most_ms, each_ms * members) / 1_000 for _, members in calls]
        for first, last in itertools.combinations(range(len(calls)), 2):
            least_s = sum(gaps_s[first:last]) - CALLS_AHEAD * gaps_s[last - 1]
            assert calls[last][0] - calls[first][0] >= least_s - 0.000_001


async def test_what_follows_from_a_change_is_in_a_call_at_once_however_many_members_there_are(
    open_cluster, monkeypatch
):
    """After a quiet time: a member that was told, and one that is granted what was released."""
    async with open_cluster(1, interval_ms=LONG_MS) as (_, client):
        await client.group("g", ["t"]).next_assignment()
        monkeypatch.setattr(timeouts, "HEARTBEAT_GAP_MS_MAX", 3_600_000)
        monkeypatch.setattr(timeouts, "HEARTBEAT_GAP_EACH_MS", 3_600_000)
        ((beat,),) = (some.values() for some in client._core.heartbeats._beats.values())
        beat._spent_until = 0.0
        waits_s = []
        for _ in range(CALLS_AHEAD + 1):
            beat._start_at = 0.0
            beat._set_aside()
            beat._call_if_due()
            waits_s.append(beat._start_at - asyncio.get_running_loop().time())
        assert max(waits_s[:CALLS_AHEAD]) <= timeouts.HEARTBEAT_GAP_MS / 1_000
        assert waits_s[CALLS_AHEAD] > beat._interval_ms / 6_000


async def test_a_call_that_is_to_be_answered_at_once_is_followed_by_others_as_soon_as_ever(
    open_cluster, monkeypatch
):
    """A member that woke from sleep, or whose connection broke, may not work before it is heard."""
    async with open_cluster(1, interval_ms=LONG_MS) as (_, client):
        await client.group("g", ["t"]).next_assignment()
        monkeypatch.setattr(timeouts, "HEARTBEAT_GAP_MS_MAX", 3_600_000)
        monkeypatch.setattr(timeouts, "HEARTBEAT_GAP_EACH_MS", 3_600_000)
        ((beat,),) = (some.values() for some in client._core.heartbeats._beats.values())
        loop = asyncio.get_running_loop()
        third_s = beat._interval_ms / 3_000
        for doubted, least_s, most_s in ((False, 0.5 * third_s, third_s), (True, 0, 0.1)):
            monkeypatch.setattr(MemberHeartbeat, "is_doubted", doubted)
            beat._start_at = 0.0
            beat._spent_until = loop.time() + CALLS_AHEAD * (beat._interval_ms // 3) / 1_000
            beat._set_aside()
            before_s = loop.time()
            beat._call_if_due()
            assert before_s + least_s <= beat._start_at <= loop.time() + most_s


async def test_a_member_hears_of_a_rebalance_without_waiting_for_the_interval(open_cluster):
    """Heartbeats are held for an hour here; a second member still gets its half."""
    async with open_cluster(1, interval_ms=LONG_MS) as (_, client):
        first, second = client.group("g", ["t"]), client.group("g", ["t"])
        assert len((await first.next_assignment()).partitions) == 4
        both = await asyncio.gather(first.next_assignment(), second.next_assignment())
        assert sorted(p for a in both for p in a.partitions) == [
            TopicPartition("t", i) for i in range(4)
        ]
        assert {a.generation for a in both} == {2}


async def test_a_member_that_was_told_does_not_make_the_client_spin(open_cluster):
    """Its user takes long to give up: the next calls are held for the others, without it."""
    async with open_cluster(1, interval_ms=LONG_MS) as (cluster, client):
        release = asyncio.Event()

        async def slow(*_):
            await release.wait()

        told = client.group("told", ["t"], listener=Calls(revoked=slow))
        other = client.group("other", ["t"])
        await told.next_assignment()
        await other.next_assignment()
        rival = client.group("told", ["t"])
        joining = asyncio.create_task(rival.next_assignment())
        await cluster.until(lambda: told.state == "Releasing")
        before = len(cluster.seen("Heartbeat"))
        third = client.group("third", ["t"])
        await third.next_assignment()
        await cluster.until(lambda: groups_of(cluster.seen("Heartbeat")[-1]) == ["other", "third"])
        assert len(cluster.seen("Heartbeat")) - before <= 3
        release.set()
        await joining


async def test_an_answer_that_a_newer_call_crosses_is_heard(open_cluster, monkeypatch):
    """The node has told the member, and does not tell it again before the interval is over."""
    answer, crossed = Cluster._answer_heartbeat, []

    async def crossing(cluster, node, request, superseded, deadline):
        if crossed:
            return await answer(cluster, node, request, superseded, deadline)
        crossed.append(request)
        await superseded.wait()
        removed = errors_pb2.Status(code=int(ErrorCode.UNKNOWN_MEMBER_ID))
        return cluster._refused(group_pb2.HeartbeatResponse, "Heartbeat", request, removed)

    monkeypatch.setattr(Cluster, "_answer_heartbeat", crossing)
    async with open_cluster(1, interval_ms=LONG_MS) as (cluster, client):
        group = client.group("g", ["t"])
        before = await group.next_assignment()
        await cluster.until(lambda: len(crossed) == 1)
        await client.group("other", ["t"]).next_assignment()
        after = await asyncio.wait_for(group.next_assignment(), 20)
        assert after.member_id != before.member_id


async def test_members_above_a_calls_maximum_go_into_another_call(open_cluster, monkeypatch):
    """Each call has a nonce of its own; the node refuses one that names more than it takes."""
    monkeypatch.setattr(heartbeats, "MEMBERS_MAX", 3)
    monkeypatch.setattr("muster.testing.cluster.HEARTBEAT_MEMBERS_MAX", 3)
    async with open_cluster(1, interval_ms=LONG_MS) as (cluster, client):
        for number in range(7):
            await client.group(f"g{number}", ["t"]).next_assignment()
        await cluster.until(lambda: cluster.open_calls["Heartbeat"] == 3)
        newest = {call.request.client_nonce: groups_of(call) for call in cluster.seen("Heartbeat")}
        assert sorted(newest.values()) == [["g0", "g1", "g2"], ["g3", "g4", "g5"], ["g6"]]


async def test_heartbeats_follow_the_coordinator(open_cluster):
    """After a kill they go to the next coordinator; nobody's membership changes."""
    async with open_cluster(3, interval_ms=LONG_MS) as (cluster, client):
        groups = [client.group(f"g{i}", ["t"]) for i in range(3)]
        given = await asyncio.gather(*(group.next_assignment() for group in groups))
        await cluster.kill(1)
        await cluster.until(
            lambda: (
                cluster.calls[-1].method == "Heartbeat"
                and cluster.calls[-1].node_id == cluster.leader
                and len(cluster.calls[-1].request.members) == 3
            )
        )
        assert [group.assignment for group in groups] == given
        assert all(group.generation == 1 for group in cluster.groups.values())


async def test_after_a_broken_connection_one_call_asks_for_an_answer_at_once(open_cluster):
    """The next coordinator says at once that it has heard the member; then it holds calls again."""
    async with open_cluster(3, interval_ms=LONG_MS) as (cluster, client):
        await client.group("g", ["t"]).next_assignment()
        await cluster.until(lambda: cluster.seen("Heartbeat"))
        assert not any(call.request.at_once for call in cluster.seen("Heartbeat"))
        await cluster.kill(1)

        def held_elsewhere():
            calls = [c for c in cluster.seen("Heartbeat") if c.node_id == cluster.leader != 1]
            return bool(calls) and not calls[-1].request.at_once

        await cluster.until(held_elsewhere)
        asked = [c for c in cluster.seen("Heartbeat") if c.request.at_once]
        assert [call.node_id for call in asked] == [cluster.leader]


async def test_a_stopped_coordinator_is_noticed_by_heartbeats_alone(open_cluster):
    """SIGSTOP with nothing else in flight: the held call is overdue, another node is asked."""
    async with open_cluster(3, interval_ms=100) as (cluster, client):
        group = client.group("g", ["t"])
        await group.next_assignment()
        cluster.hang(1)
        await cluster.until(lambda: any(c.node_id != 1 for c in cluster.seen("Heartbeat")))
        assert client.counters.unanswered >= 1
        cluster.resume(1)


async def test_a_busy_node_that_holds_calls_for_longer_is_not_suspected_again_and_again(
    open_cluster, monkeypatch
):
    """It says for how long, also to the call that came too early; another membership knows it."""
    monkeypatch.setattr(timeouts, "HEARTBEAT_INTERVAL_MS", 100)
    late = 0

    async def count_pauses():
        nonlocal late
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + 0.05
            await asyncio.sleep(0.05)
            late += loop.time() > due + 0.1

    async with open_cluster(1, interval_ms=1_000) as (cluster, client):
        pauses = asyncio.create_task(count_pauses())
        for calls in (4, 7):
            async with client.group("g", ["t"]) as group:
                await group.next_assignment()
                await cluster.until(lambda n=calls: len(cluster.seen("Heartbeat")) >= n)
                assert group._member_heartbeat.acknowledged_at is not None
        pauses.cancel()
        assert client.counters.unanswered <= max(2, 1 + late)  # more only where this stood still


async def test_a_demoted_coordinators_hint_moves_the_members(open_cluster, monkeypatch):
    """NOT_COORDINATOR per member, with a hint: no question is asked."""
    monkeypatch.setattr(timeouts, "SUSPECT_MS", 30_000)  # a slow machine is no quiet node
    async with open_cluster(2, interval_ms=LONG_MS) as (cluster, client):
        group = client.group("g", ["t"])
        await group.next_assignment()
        asked = await asked_so_far(client, cluster)
        cluster.elect(2)
        await cluster.until(lambda: any(c.node_id == 2 for c in cluster.seen("Heartbeat")))
        assert await asked_so_far(client, cluster) == asked
        assert group.assignment is not None


async def test_trouble_of_a_heartbeat_is_not_trouble_of_the_member(open_cluster):
    """Overload, loading, a broken call, an unknown number: the member keeps what it owns."""
    async with open_cluster(1, interval_ms=50) as (cluster, client):
        group = client.group("g", ["t"])
        given = await group.next_assignment()
        cluster.script(
            "Heartbeat",
            Abort(grpc.StatusCode.RESOURCE_EXHAUSTED),
            Refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            Abort(grpc.StatusCode.UNAVAILABLE),
            Abort(grpc.StatusCode.UNKNOWN),
            Refuse(4711),
        )
        before = len(cluster.seen("Heartbeat"))
        await cluster.until(lambda: len(cluster.seen("Heartbeat")) >= before + 7)
        assert group.assignment is given


async def test_a_living_client_beats_the_session(open_cluster):
    """Silence ends a member; a client that heartbeats is never silent, also across lost answers."""
    async with open_cluster(1, interval_ms=100) as (cluster, client):
        group = client.group("g", ["t"], session_timeout_ms=3_000)
        given = await group.next_assignment()
        cluster.script("Heartbeat", Hang())
        before = len(cluster.seen("Heartbeat"))
        await cluster.until(lambda: len(cluster.seen("Heartbeat")) >= before + 36)
        assert group.assignment is given


async def test_leaving_ends_the_heartbeats(open_cluster):
    """After close nothing is held for the member any more."""
    async with open_cluster(1, interval_ms=LONG_MS) as (cluster, client):
        async with client.group("g", ["t"]) as group:
            await group.next_assignment()
            await cluster.until(lambda: cluster.open_calls["Heartbeat"] == 1)
        await cluster.until(lambda: cluster.open_calls["Heartbeat"] == 0)
        assert not cluster.groups["g"].members


async def test_a_held_call_is_answered_when_its_members_have_left(open_cluster, monkeypatch):
    """It is not cancelled: gRPC keeps some of each call that is, here and at the node."""
    cancelled = []
    answer = Cluster._answer_heartbeat

    async def watched(*arguments):
        try:
            return await answer(*arguments)
        except asyncio.CancelledError:
            cancelled.append(arguments)
            raise

    monkeypatch.setattr(Cluster, "_answer_heartbeat", watched)
    async with open_cluster(1, interval_ms=LONG_MS) as (cluster, client):
        async with client.group("g", ["t"]) as group:
            await group.next_assignment()
            await cluster.until(lambda: cluster.open_calls["Heartbeat"] == 1)
        await cluster.until(lambda: cluster.open_calls["Heartbeat"] == 0)
    assert not cancelled


async def test_a_member_that_only_beats_is_heard_again_where_terms_became_lower(open_cluster):
    """As after a cluster was set up anew: it searched for a later term for ever."""
    async with open_cluster(3) as (cluster, client):
        group = client.group("g", ["t"], session_timeout_ms=1_000)
        async with group:
            await group.next_assignment()
            routes = client._core.caller.routes
            routes.learn("g", Coordinator(2, cluster.endpoint(2), 99))
            heard = client.counters.not_coordinator
            await cluster.until(lambda: client.counters.not_coordinator > heard)
            await cluster.until(lambda: routes.get("g") == Coordinator(1, cluster.endpoint(1), 1))


class Lines(logging.Handler):
    """What the SDK logs of heartbeats; whoever waits for a line gets it."""

    def __init__(self):
        super().__init__()
        self.said = asyncio.Queue()

    def emit(self, record):
        if "heartbeat" in record.msg:
            self.said.put_nowait((record.levelname, record.getMessage()))


@pytest.fixture
def heartbeat_lines():
    """Of the SDK's log."""
    lines, log = Lines(), logging.getLogger("muster")
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(lines)
    yield lines.said
    log.removeHandler(lines)
    log.setLevel(level)


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (Abort(grpc.StatusCode.UNAVAILABLE, "on strike"), "UNAVAILABLE on strike"),
        (Refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "loads"), "COORDINATOR_LOAD_IN_PROGRESS"),
        (Refuse(ErrorCode.INVALID_REQUEST, "too many"), "INVALID_REQUEST too many"),
        (Hang(), "no answer"),
    ],
)
async def test_heartbeats_that_fail_for_a_third_of_the_session_are_said_once_with_why(
    open_cluster, heartbeat_lines, step, why
):
    """One line for all groups of the client, none before; each is named when it is heard again."""
    async with open_cluster(1, interval_ms=100) as (cluster, client):
        groups = [client.group(f"g{i}", ["t"], session_timeout_ms=6_000) for i in range(5)]
        await asyncio.gather(*(group.next_assignment() for group in groups))
        # They are heard together: by one call that was answered, since another one follows it.
        await cluster.until(
            lambda: [len(groups_of(call)) for call in cluster.seen("Heartbeat")[-2:]] == [5, 5]
        )
        cluster.script("Heartbeat", *[step] * 1_000)
        level, line = await heartbeat_lines.get()
        assert level == "WARNING"
        assert line.startswith("groups g")
        assert " and 2 more: no heartbeat was answered for 2." in line
        assert " of a session of 6.0 s" in line
        assert f"{cluster.endpoint(1)}: {why}" in line
        cluster._scripts["Heartbeat"].clear()
        again = 0
        while again < len(groups):
            level, line = await heartbeat_lines.get()
            assert level == "INFO"
            names, _, said = line.partition(": ")
            assert said == "heartbeats are answered again"
            listed, _, more = names.partition(" and ")
            again += len(listed.split(",")) + int(more.partition(" ")[0] or 0)
        assert again == len(groups)
        assert heartbeat_lines.empty()


async def test_a_heartbeat_that_is_held_for_long_is_no_failure(open_cluster, heartbeat_lines):
    """Nothing was answered for longer than a session, and nothing has failed."""
    async with open_cluster(1, interval_ms=LONG_MS) as (cluster, client):
        group = client.group("g", ["t"], session_timeout_ms=300)
        await group.next_assignment()
        await cluster.until(lambda: cluster.open_calls["Heartbeat"] == 1)
        session = group._member_heartbeat.session
        session._heard = session._heard._replace(at_s=session._heard.at_s - 10)
        other = client.group("h", ["t"])  # releases the call that is held
        await other.next_assignment()
        await cluster.until(lambda: groups_of(cluster.seen("Heartbeat")[-1]) == ["g", "h"])
        assert heartbeat_lines.empty()
