"""The search for a later coordinator: what is believed, and who is waited for."""

import asyncio
import dataclasses

import pytest

from muster import TopicPartition, backoff, calls, discovery, offsets
from muster.discovery import Routes
from muster.testing import Hang
from muster.types import Coordinator, Counters
from tests.client.questions import asked_so_far

T0 = TopicPartition("t", 0)
FOR_EVER_MS = 3_600_000


def test_a_client_remembers_the_groups_that_it_used_last(monkeypatch):
    """Not every group it ever asked about; those in use and those waited on are never let go."""
    monkeypatch.setattr(discovery, "ROUTES_MAX", 100)
    routes = Routes(Counters())
    here = Coordinator(1, "a:1", 7)
    routes.learn("waited on", here)
    unwatch = routes.watch("waited on", lambda: None)
    routes.learn("used", here)
    for number in range(1_000):
        routes.learn(f"g{number}", here)
        assert routes.get("used") == here
        assert len(routes.known()) <= 100
    assert routes.get("waited on") == here
    assert routes.get("g999") == here
    assert routes.get("g0") is None
    unwatch()
    for number in range(200):
        routes.learn(f"h{number}", here)
    assert routes.get("waited on") is None


@pytest.mark.parametrize(
    ("found", "believed"),
    [
        (Coordinator(2, "b:1", 8), True),
        (Coordinator(1, "a:1", 8), True),
        (Coordinator(1, "a:2", 7), True),
        (Coordinator(1, "a:1", 7), False),
        (Coordinator(2, "b:1", 6), False),
        (Coordinator(2, "b:1", 7), False),
        (Coordinator(2, "", 9), False),
    ],
)
def test_only_a_later_coordinator_is_believed(found, believed):
    """Of term 7 at a:1: a later term, or another address of the same node; nothing older or empty.

    Another node in the same term cannot lead it: such a hint led to one that never answered.
    """
    routes, woken = Routes(Counters()), []
    routes.learn("g", Coordinator(1, "a:1", 7))
    unwatch = routes.watch("g", lambda: woken.append(routes.get("g")))
    assert routes.learn("g", found) is believed
    assert routes.get("g") == (found if believed else Coordinator(1, "a:1", 7))
    assert woken == ([found] if believed else [])
    unwatch()
    routes.learn("g", Coordinator(3, "c:1", 99))
    assert len(woken) == believed
    routes.forget("g")
    assert routes.learn("g", Coordinator(1, "a:1", 1))


async def test_a_search_makes_no_pause_while_nodes_hold_its_questions(open_cluster, monkeypatch):
    """So a commit that joins a search which a Join began waits out no pause of that one."""
    async with open_cluster(3) as (cluster, client):
        await client.committed("g", [T0])
        core = client._core
        known = core.caller.routes.get("g")
        pauses = []

        class Noted:
            def delay_ms(self, failures, jitter):
                pauses.append(failures)
                return 1

        monkeypatch.setattr(backoff, "CALL", Noted())
        asked = len(cluster.seen("FindCoordinator"))
        search = core.discovery.want("g", known=known, wake=lambda: None)
        await cluster.until(lambda: len(cluster.seen("FindCoordinator")) >= asked + 4)
        search.close()
        assert pauses == []
        assert not core.discovery._searches


async def test_a_client_that_is_closed_while_a_search_begins_asks_nobody_any_more(open_cluster):
    """What was to be sent in the next turn of the loop found its channel closed: a defect, said so.

    The fixture refuses a test in whose background a task has failed.
    """
    async with open_cluster(3) as (cluster, client):
        await client.committed("g", [T0])
        asked = len(cluster.seen("FindCoordinator"))
        core = client._core
        searching = core.discovery.want("other", known=None, wake=lambda: None)
        await asyncio.sleep(0)
        assert core.discovery._batches
        searching.close()
        await client.close()
        assert len(cluster.seen("FindCoordinator")) == asked


async def test_a_coordinator_that_one_call_gave_up_is_found_again_for_another(open_cluster):
    """A call that searches for a later one is not left waiting for a term that never comes."""
    async with open_cluster(3) as (_, client):
        await client.committed("g", [T0])
        core = client._core
        routes = core.caller.routes
        known = routes.get("g")
        searching = core.discovery.want("g", known=known, wake=lambda: None)
        found = asyncio.Event()
        unwatch = routes.watch("g", found.set)
        core.discovery.forget("g")
        assert routes.get("g") is None
        await asyncio.wait_for(found.wait(), 20)
        assert routes.get("g") == known
        unwatch()
        searching.close()
        assert not core.discovery._searches


async def test_a_search_that_has_ended_begins_anew_for_whoever_comes_next(open_cluster):
    """Somebody may still hold the old one, which asks nobody any more: a group was silent so."""
    async with open_cluster(3) as (_, client):
        await client.committed("g", [T0])
        core = client._core
        routes, wake = core.caller.routes, lambda: None
        known = routes.get("g")
        held = core.discovery.want("g", known=known, wake=wake)
        core.discovery.forget("g")
        await asyncio.wait(core.discovery._searches["g"].tasks, timeout=20)
        assert held.is_met
        assert core.discovery._searches["g"].ended
        core.discovery.forget("g")
        await asyncio.wait(core.discovery._searches["g"].tasks, timeout=20)
        assert routes.get("g") == known
        routes.forget("g")
        found = asyncio.Event()
        unwatch = routes.watch("g", found.set)
        comes = core.discovery.want("g", known=None, wake=wake)
        await asyncio.wait_for(found.wait(), 20)
        assert routes.get("g") == known
        unwatch()
        held.close()
        comes.close()
        assert not core.discovery._searches


async def test_a_call_goes_on_searching_after_another_gave_up(open_cluster, patient_fetches):
    """The silent node was found again, and waited for; a later one that comes must be found."""
    options = {"request_timeout_ms": FOR_EVER_MS}
    async with open_cluster(3, client=options) as (cluster, client):
        await client.committed("g", [T0])
        core = client._core
        cluster.script("OffsetFetch", Hang())
        asked = await asked_so_far(client, cluster)
        fetch = asyncio.create_task(client.committed("g", [T0]))
        await cluster.until(lambda: len(cluster.seen("FindCoordinator")) > asked)
        found = asyncio.Event()
        unwatch = core.caller.routes.watch("g", found.set)
        held = list(core.discovery._asking)
        core.discovery.forget("g")
        await asyncio.wait_for(found.wait(), 20)
        unwatch()
        await asyncio.wait(held)  # or the new leader would be the answer of one of these
        cluster.elect(2)
        assert (await fetch).term == 2


@pytest.fixture
def patient_fetches(monkeypatch):
    """An attempt of OffsetFetch that nobody cancels lasts for ever."""
    for module in (calls, offsets):
        method = dataclasses.replace(calls.FETCH, attempt_ms=FOR_EVER_MS)
        monkeypatch.setattr(module, "FETCH", method)


async def test_the_attempt_that_lost_is_cancelled(open_cluster, patient_fetches):
    """The successor answered: the open call at the silent node ends on its side too."""
    options = {"request_timeout_ms": FOR_EVER_MS}
    async with open_cluster(3, client=options) as (cluster, client):
        await client.committed("g", [T0])
        cluster.script("OffsetFetch", Hang())
        fetch = asyncio.create_task(client.committed("g", [T0]))
        await cluster.until(lambda: cluster.open_calls["OffsetFetch"] == 1)
        cluster.elect(2)
        assert (await fetch).term == 2
        await cluster.until(lambda: cluster.open_calls["OffsetFetch"] == 0)


async def test_a_call_that_the_user_gives_up_is_cancelled(open_cluster, patient_fetches):
    """The server sees it end."""
    options = {"request_timeout_ms": FOR_EVER_MS}
    async with open_cluster(1, client=options) as (cluster, client):
        cluster.script("OffsetFetch", Hang())
        fetch = asyncio.create_task(client.committed("g", [T0]))
        await cluster.until(lambda: cluster.open_calls["OffsetFetch"] == 1)
        fetch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetch
        await cluster.until(lambda: cluster.open_calls["OffsetFetch"] == 0)


async def test_a_second_commit_waits_for_the_first(open_cluster):
    """While one has no answer, no other goes out for this member; reads do."""
    async with open_cluster(1) as (cluster, client), client.group("g", ["t"]) as group:
        await group.next_assignment()
        cluster.script("OffsetCommit", Hang())
        first = asyncio.create_task(group.commit({T0: 1}))
        await cluster.until(lambda: cluster.open_calls["OffsetCommit"] == 1)
        second = asyncio.create_task(group.commit({T0: 2}))
        for _ in range(3):
            await group.committed([T0])
        assert len(cluster.seen("OffsetCommit")) == 1
        first.cancel()
        assert (await second).commit_seq == 2
