"""An assignor of the user's own runs beside the member's loop, and not for as long as it likes."""

import asyncio
import threading
import time

import pytest

from muster import TopicPartition, timeouts

HANG_S = 20
"""A thread that waits for longer has waited in vain: the test fails, the thread ends."""


def all_to_the_first(members, counts):
    """Everything to one member."""
    keys = [TopicPartition(topic, p) for topic, n in counts.items() for p in range(n)]
    return {min(member.member_id for member in members): keys}


async def _until(condition):
    end_s = time.monotonic() + HANG_S / 2
    while not condition():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.005)


async def test_heartbeats_go_on_while_an_assignor_works(open_cluster):
    """An assignor that takes longer than a session costs nobody the session."""
    async with open_cluster(interval_ms=50) as (cluster, client):
        threads = []

        def slow(members, counts):
            threads.append(threading.current_thread())
            if threads == [threading.main_thread()]:
                return all_to_the_first(members, counts)
            before, end_s = len(cluster.seen("Heartbeat")), time.monotonic() + HANG_S
            while len(cluster.seen("Heartbeat")) < before + 3:
                assert time.monotonic() < end_s, "no heartbeat came"
                time.sleep(0.005)
            return all_to_the_first(members, counts)

        async with client.group("g", ["t"], assignor=slow) as group:
            assert len((await group.next_assignment()).partitions) == 4
        assert len(cluster.seen("JoinGroup")) == 1
        assert threads != [threading.main_thread()]


async def test_a_member_whose_assignor_takes_too_long_says_so_and_joins_again(
    open_cluster, monkeypatch
):
    """The round after it finds the assignor well again."""
    monkeypatch.setattr(timeouts, "ASSIGNOR_MS", 50)
    async with open_cluster() as (cluster, client):
        go_on, calls = threading.Event(), []

        def hangs_once(members, counts):
            calls.append(members)
            if len(calls) == 1:
                assert go_on.wait(HANG_S)
            return all_to_the_first(members, counts)

        async with client.group("g", ["t"], assignor=hangs_once) as group:
            waiting = asyncio.create_task(group.next_assignment())
            await _until(lambda: len(cluster.seen("JoinGroup")) == 2)
            assert cluster.seen("JoinGroup")[1].request.reason == (
                "assignor 'hangs_once' took longer than 50 ms"
            )
            go_on.set()
            assert len((await waiting).partitions) == 4
        assert len(cluster.seen("SyncGroup")) == 1


async def test_an_assignor_that_never_ends_has_one_thread(open_cluster, monkeypatch):
    """However often the member joins again; and it does not hold up the end of the group."""
    monkeypatch.setattr(timeouts, "ASSIGNOR_MS", 20)
    async with open_cluster() as (cluster, client):
        go_on, calls = threading.Event(), []

        def hangs(members, counts):
            calls.append(members)
            assert go_on.wait(HANG_S)
            return all_to_the_first(members, counts)

        async with client.group("g", ["t"], assignor=hangs) as group:
            waiting = asyncio.create_task(group.next_assignment())
            await _until(lambda: len(cluster.seen("JoinGroup")) == 4)
            assert len(calls) == 1
            assert "has not ended yet" in cluster.seen("JoinGroup")[3].request.reason
            waiting.cancel()
        assert threading.active_count() > 1
        (thread,) = [t for t in threading.enumerate() if t.name == "muster assignor"]
        assert thread.daemon
        go_on.set()
        await asyncio.to_thread(thread.join, HANG_S)


async def test_what_an_assignor_raises_in_its_thread_ends_the_membership(open_cluster):
    """As before: the error names the assignor and what it raised."""
    async with open_cluster() as (_, client):

        def fails(members, counts):
            raise LookupError("no table")

        async with client.group("g", ["t"], assignor=fails) as group:
            with pytest.raises(Exception, match="fails: LookupError: no table"):
                await group.next_assignment()


async def test_a_member_that_is_closed_while_its_assignor_works_leaves(open_cluster):
    """What the thread says afterwards is heard by nobody."""
    async with open_cluster() as (cluster, client):
        begun, go_on = threading.Event(), threading.Event()

        def hangs(members, counts):
            begun.set()
            assert go_on.wait(HANG_S)
            return all_to_the_first(members, counts)

        group = client.group("g", ["t"], assignor=hangs)
        waiting = asyncio.create_task(group.next_assignment())
        await _until(begun.is_set)
        (thread,) = [t for t in threading.enumerate() if t.name == "muster assignor"]
        await group.close()
        go_on.set()
        await asyncio.to_thread(thread.join, HANG_S)
        await asyncio.wait([waiting])
        assert waiting.exception() is not None
        assert len(cluster.seen("LeaveGroup")) == 1
        assert not cluster.seen("SyncGroup")
