"""muster.Election against the cluster in memory."""

import asyncio
import contextlib

import pytest

import muster
from muster.election.election_state import VALUE_BYTES_MAX
from muster.errors import (
    ErrorCode,
    GroupClosed,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidConfig,
)
from muster.group import membership_calls
from muster.group.consumer_protocol import encode_subscription
from muster.net import sleep_clock
from muster.testing import Refuse
from muster.v1 import group_pb2

TERMS_MAX = 3


async def value_of(election, value):
    """Wait until this one leads, as `election` is told."""
    async for leader in election.watch():
        if (leader and leader.value) == value:
            return leader
    return None


async def test_one_leads_and_the_others_know_who(open_cluster):
    """The first one; candidates that come and go cost it nothing, though generations rise."""
    async with open_cluster(1) as (cluster, client):
        first = client.election("e", "http://one")
        term = await first.lead()
        assert term.is_held
        assert first.leadership is term
        async with client.election("e", "http://two") as second:
            waiting = asyncio.create_task(second.lead())
            seen = await value_of(second, "http://one")
            assert (seen.token, seen) == (term.token, first.leader)
            assert not waiting.done()
            waiting.cancel()
        async with client.election("e") as watcher:
            assert (await value_of(watcher, "http://one")).token == term.token
        assert cluster.groups["e"].generation > term.token
        assert await first.lead() is term
        term.check()
        await first.close()
        assert term.lost.is_set()
        assert term.reason == "closed by the application"
        with pytest.raises(IllegalGeneration, match="closed by the application"):
            term.check()
        with pytest.raises(GroupClosed):
            await first.lead()


async def test_whoever_leaves_is_followed_at_once_under_a_higher_token(open_cluster):
    """Ten terms among three; no token twice, each higher."""
    async with open_cluster(1) as (_, client):
        tokens = []
        waiting = {}

        def stand():
            election = client.election("e")
            waiting[asyncio.create_task(election.lead())] = election

        for _ in range(3):
            stand()
        for _ in range(10):
            (done,), _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            tokens.append((await done).token)
            await waiting.pop(done).close()
            stand()
        assert tokens == sorted(set(tokens))
        for task, election in waiting.items():
            task.cancel()
            await election.close()


async def test_work_is_cancelled_when_the_leadership_ends_and_ends_before_the_next_begins(
    open_cluster,
):
    """In good order: what the old leader cleans up is done before anybody else leads."""
    async with open_cluster(1) as (_, client):
        order, begun = [], {"a": asyncio.Event(), "b": asyncio.Event()}

        async def work(name):
            order.append(f"{name} begins")
            begun[name].set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)
                order.append(f"{name} ends")

        async def serve(name, election):
            async for term in election:
                assert await term.run(work(name)) is False

        elections = {name: client.election("e", name) for name in "ab"}
        tasks = [asyncio.create_task(serve("a", elections["a"]))]
        await begun["a"].wait()
        tasks.append(asyncio.create_task(serve("b", elections["b"])))
        await value_of(elections["b"], "a")
        await elections["a"].close()
        await begun["b"].wait()
        await elections["b"].close()
        await asyncio.gather(*tasks)
        assert order == ["a begins", "a ends", "b begins", "b ends"]


async def test_run_tells_how_it_ended(open_cluster):
    """True by itself; what the work raises is raised; not even started where it is over."""
    async with open_cluster(1) as (_, client), client.election("e") as election:
        term = await election.lead()
        ran = []

        async def work(error=None):
            ran.append(term.token)
            if error:
                raise error

        assert await term.run(work()) is True
        with pytest.raises(LookupError):
            await term.run(work(LookupError()))
        assert election.leadership is term
        await election.resign()
        assert await term.run(work()) is False
        assert len(ran) == 2


async def test_who_resigns_is_followed_by_another_candidate_and_may_stand_again(open_cluster):
    """Also from inside the work; without another candidate nobody leads."""
    async with open_cluster(1) as (cluster, client):
        first, second = client.election("e", "1"), client.election("e", "2")
        term = await first.lead()
        await first.resign()
        assert first.leader is None
        assert first.leadership is None
        again = await first.lead()
        reasons = [call.request.reason for call in cluster.seen("JoinGroup")]
        assert reasons[:2] == ["first join", "a candidate resigned"]
        assert again.token > term.token
        waiting = asyncio.create_task(second.lead())
        await value_of(second, "1")

        async def work():
            await first.resign()
            assert first.leader.value == "2"

        assert await again.run(work()) is True
        assert again.reason == "resigned"
        assert (await waiting).token > again.token
        standing = asyncio.create_task(first.lead())
        await second.close()
        assert (await standing).token > (await waiting).token
        await first.close()


async def test_who_only_watches_never_leads(open_cluster):
    """And sees each leader, and that there is none."""
    async with open_cluster(1) as (_, client), client.election("e") as watcher:
        seen = watcher.watch()
        assert await anext(seen) is None
        one = client.election("e", "1")
        term = await one.lead()
        assert await anext(seen) == one.leader
        assert watcher.leader.token == term.token
        await one.close()
        assert await anext(seen) is None
        assert watcher.leadership is None


async def test_a_leader_that_hears_nothing_stops_before_its_session_can_be_over(open_cluster):
    """The lease counts from when the last acknowledged call was sent."""
    session_ms = 4_000
    async with open_cluster(1, interval_ms=100) as (cluster, client):
        election = client.election("e", session_timeout_ms=session_ms)
        term = await election.lead()
        for _ in range(5):
            beats = len(cluster.seen("Heartbeat"))
            await cluster.until(lambda n=beats: len(cluster.seen("Heartbeat")) > n)
        group = cluster.groups["e"]
        member = group.members[election.leader.member_id]
        cluster.hang(1)
        await term.lost.wait()
        assert election.lease_end <= sleep_clock.steady_s()
        assert (
            election.lease_end - sleep_clock.slept_s() < member.heard_at + session_ms / 1000
        )  # what `is_held` goes by
        assert term.reason == "the lease ran out: nothing was acknowledged"
        assert not term.is_held
        # It was only cut off: it leads again, and the new term is another one.
        cluster.resume(1)
        assert (await election.lead()).token > term.token
        await election.close()


async def test_a_held_lease_is_renewed_by_heartbeats(open_cluster):
    """For far longer than a session, which is longer than a machine stands still."""
    session_s = 1.5
    async with open_cluster(1, interval_ms=50) as (_, client):
        election = client.election("e", session_timeout_ms=int(session_s * 1000))
        for _ in range(TERMS_MAX):  # a machine that stands still for a lease ends one
            term = await election.lead()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(term.lost.wait(), 2.5 * session_s)
            if term.is_held:
                break
        assert 0 < term.remaining_s <= 0.9 * session_s
        await election.close()


async def test_after_a_broken_connection_the_lease_is_the_servers_grace(open_cluster):
    """The coordinator shortens the session of who broke off; so does the leader."""
    async with open_cluster(1, interval_ms=50) as (cluster, client):
        election = client.election("e", session_timeout_ms=60_000)
        term = await election.lead()
        assert term.remaining_s > 50
        started = asyncio.get_running_loop().time()
        await cluster.kill(1)
        await term.lost.wait()
        assert 1.5 < election.lease_end - started < 4
        await cluster.restart(1)
        assert (await election.lead()).token > term.token
        await election.close()


async def test_a_failover_is_no_election(open_cluster):
    """The coordinator's node dies; the leader goes on under its token."""
    async with open_cluster(3, interval_ms=100) as (cluster, client):
        election = client.election("e")
        term = await election.lead()
        await cluster.kill(cluster.leader)
        beats = len(cluster.seen("Heartbeat"))
        await cluster.until(lambda: len(cluster.seen("Heartbeat")) > beats + 3)
        assert term.is_held
        assert election.leadership is term
        assert cluster.groups["e"].generation == term.token
        await election.close()


async def test_a_fenced_leader_stops_at_once_and_stands_again(open_cluster):
    """Its session was ended: the work is cancelled, the next term has a higher token."""
    async with open_cluster(1) as (cluster, client):
        election = client.election("e")
        terms = []
        async for term in election:
            terms.append(term)
            if len(terms) == 3:
                break
            cluster.remove_member("e", election.leader.member_id)
            assert await term.run(asyncio.sleep(60)) is False
            assert term.reason == "lost: the session is over"
        tokens = [term.token for term in terms]
        assert tokens == sorted(set(tokens))
        await election.close()


async def test_what_makes_standing_useless_is_raised(open_cluster):
    """By `lead`; and by the next one, too."""
    async with open_cluster(1) as (cluster, client):
        cluster.script("JoinGroup", Refuse(ErrorCode.INVALID_SESSION_TIMEOUT, "too short"))
        election = client.election("e", session_timeout_ms=1)
        for _ in range(2):
            with pytest.raises(muster.MusterError, match="too short"):
                await election.lead()
        await election.close()


async def test_a_stranger_in_the_election_is_refused(open_cluster):
    """Another program with this protocol type, or group leader of another kind."""
    async with open_cluster(1) as (cluster, client):
        election = client.election("e")
        stranger = group_pb2.JoinGroupResponse(
            generation=1, protocol_name="cooperative-sticky", leader_id="m", member_id="m"
        )
        stranger.members.add(member_id="m", metadata=encode_subscription(["t"]))
        cluster.script("JoinGroup", stranger)
        with pytest.raises(InconsistentGroupProtocol, match="member 'm'"):
            await election.lead()
        await election.close()


async def test_bounds_of_what_a_candidate_says(open_cluster):
    """4096 bytes of UTF-8; an id as for any group."""
    async with open_cluster(1) as (_, client):
        most = "é" * (VALUE_BYTES_MAX // 2)
        async with client.election("e", most) as election:
            await election.lead()
            assert election.leader.value == most
        with pytest.raises(InvalidConfig, match="4096 bytes"):
            client.election("e", most + "x")
        with pytest.raises(InvalidConfig, match="group_id"):
            client.election("")


async def test_the_client_closes_what_is_open(open_cluster):
    """The leadership ends in good order, though nobody closed the election."""
    async with open_cluster(1) as (cluster, client):
        election = client.election("e")
        term = await election.lead()
        await client.close()
        assert term.lost.is_set()
        assert not cluster.groups["e"].members


async def test_a_join_that_waited_for_long_is_followed_by_a_sync(open_cluster, monkeypatch):
    """A lease counts from the call that brought it: of a Join that was parked it may be over."""
    monkeypatch.setattr(membership_calls, "_since_ms", lambda _: 9_000)
    async with open_cluster(1) as (cluster, client):
        await client.election("e", "http://one").lead()
        async with client.election("e") as second:
            await value_of(second, "http://one")
            synced = {call.request.member_id for call in cluster.seen("SyncGroup")}
            assert synced == set(cluster.groups["e"].members)
            assert len(synced) == 2


async def test_a_round_that_takes_long_is_cut_short_before_the_lease_is_over(open_cluster):
    """A candidate that never joins costs the leader no term: it may take a third of a session."""
    async with open_cluster(1, interval_ms=100) as (cluster, client):
        election = client.election("e", session_timeout_ms=3_000)
        await election.lead()
        joins = [call.request for call in cluster.seen("JoinGroup")]
        assert {r.rebalance_timeout_ms for r in joins} == {1_000}
        assert {r.protocol_type for r in joins} == {"election"}
        await election.close()
