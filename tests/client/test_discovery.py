"""The search for a later coordinator: what is believed, and who is waited for."""

import asyncio
import contextlib
import dataclasses
import itertools

import grpc
import pytest

from muster import TopicPartition, timeouts
from muster.errors import CoordinatorNotAvailable, InvalidGroupId
from muster.group import offsets
from muster.net import backoff, calls, discovery
from muster.net.discovery import Routes
from muster.net.nodes import NODES_MAX
from muster.testing import Hang
from muster.types import Coordinator, Counters
from muster.v1 import errors_pb2, group_pb2
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


def routes_of_two_shards():
    """Groups a and b are in shard 1, c is in shard 2; each list says what its watcher saw."""
    routes, seen = Routes(Counters()), {name: [] for name in "abc"}
    for name, shard in (("a", 1), ("b", 1), ("c", 2)):
        routes.watch(name, lambda name=name: seen[name].append(routes.get(name)))
        routes.place(name, shard, None)
    return routes, seen


OLD, NEW = Coordinator(1, "a:1", 7), Coordinator(2, "b:1", 8)


def test_a_node_that_forwards_is_used_at_the_address_that_was_asked():
    """Which may be a load balancer's; another node is where it says."""
    named = errors_pb2.Coordinator(node_id=2, endpoint="inside:1", term=7, forwards=True)
    assert discovery.coordinator_of(named, "lb:1") == Coordinator(2, "lb:1", 7, forwards=True)
    named.forwards = False
    assert discovery.coordinator_of(named, "lb:1") == Coordinator(2, "inside:1", 7)


def test_of_nodes_that_forward_a_quiet_one_gives_way_to_another_in_its_term():
    """As long as it is the one that is known; others of its shard go there, too."""
    routes = Routes(Counters())
    first, other = (Coordinator(n, f"edge-{n}:1", 7, forwards=True) for n in (1, 2))
    routes.learn("g", first)
    routes.place("g", 3, first)
    routes.place("h", 3, first)
    assert not routes.learn("g", other)  # while the first is not in doubt
    routes.doubt("g", other)
    assert routes.get("g") == first
    routes.doubt("g", first)
    assert routes.get("g") is None
    assert routes.learn("h", other)
    assert routes.get("g") == other


def test_what_is_learned_of_one_group_holds_for_all_of_its_shard():
    """And for no other; a group that is placed later knows it at once, and knows it once."""
    routes, seen = routes_of_two_shards()
    assert routes.learn("a", OLD)
    assert not routes.learn("b", OLD)
    assert seen == {"a": [OLD], "b": [OLD], "c": []}
    assert (routes.get("b"), routes.get("c")) == (OLD, None)
    late = []
    routes.watch("d", lambda: late.append(routes.get("d")))
    routes.place("d", 1, OLD)
    routes.place("d", 1, OLD)
    assert late == [OLD]
    assert routes.known() == dict.fromkeys("abd", OLD)


@pytest.mark.parametrize(
    ("own", "found", "shard", "shares"),
    [
        (None, None, None, True),
        (None, None, OLD, False),
        (None, OLD, None, True),
        (None, OLD, OLD, True),
        (None, NEW, OLD, True),
        (None, OLD, NEW, False),
        (NEW, OLD, OLD, False),
        (OLD, None, None, False),
        (OLD, NEW, NEW, True),
    ],
)
def test_a_group_shares_its_shards_route_where_that_knows_nothing_later(own, found, shard, shares):
    """Of two nodes one is behind; and after a new set-up terms are low, and shards are others.

    `own`: what was known of the group, `found`: what the node says now, `shard`: what was known of
    the shard that it names.
    """
    routes = Routes(Counters())
    routes.place("a", 1, shard)
    if shard is not None:
        routes.learn("a", shard)
    if own is not None:
        routes.learn("g", own)
    routes.place("g", 1, found)
    assert (routes.route("g") is routes.route("a")) is shares
    assert routes.get("g") == (shard if shares else own)
    assert routes.get("a") == shard


def test_a_group_that_is_forgotten_stands_alone_and_its_shard_goes_on_as_it_was():
    """The cluster may have been set up anew: what is learned of the one is not of the others."""
    routes, seen = routes_of_two_shards()
    routes.learn("a", NEW)
    routes.learn("c", NEW)
    routes.forget("a")
    assert (routes.get("a"), routes.get("b")) == (None, NEW)
    early = Coordinator(3, "c:1", 1)
    routes.place("a", 2, early)
    routes.learn("a", early)
    assert (seen["a"][-1], routes.get("b"), routes.get("c")) == (early, NEW, NEW)


def test_a_group_that_is_said_to_be_in_another_shard_leaves_its_own():
    """What that one knows is not of this group any more."""
    routes, _ = routes_of_two_shards()
    routes.learn("a", OLD)
    routes.place("b", 2, NEW)
    routes.learn("b", NEW)
    assert [routes.get(name) for name in "abc"] == [OLD, NEW, NEW]
    assert set(routes.route("a").groups) == {"a"}
    assert set(routes.route("c").groups) == {"b", "c"}


async def test_groups_of_one_shard_have_one_search_and_one_key_in_its_questions(open_cluster):
    """And it goes on as long as one of them wants it."""
    async with open_cluster(3) as (cluster, client):
        names = [f"g{number}" for number in range(20)]
        await asyncio.gather(*(client.committed(name, [T0]) for name in names))
        core = client._core
        asked = len(cluster.seen("FindCoordinator"))
        known = core.caller.routes.get("g0")
        wants = [core.discovery.want(name, known=known, wake=lambda: None) for name in names]
        assert len(core.discovery._searches) == 1

        def keys():
            return [list(one.request.keys) for one in cluster.seen("FindCoordinator")[asked:]]

        await cluster.until(lambda: len(keys()) >= 2)
        assert {len(one) for one in keys()} == {1}
        for want in wants[:-1]:
            want.close()
        before = len(keys())
        await cluster.until(lambda: len(keys()) >= before + 2)
        assert {key.group_id for key in keys()[-1]} == {names[-1]}
        found = asyncio.Event()
        core.caller.routes.watch("g0", found.set)
        cluster.elect(2)
        await asyncio.wait_for(found.wait(), 20)
        assert wants[-1].is_met
        wants[-1].close()
        assert not core.discovery._searches


async def test_groups_that_turn_out_to_share_a_shard_search_on_together():
    """Nobody leads it yet: each was asked about by its name, and then one for all."""
    nodes = Silent(held=False)
    searched = discovery.Discovery(nodes, Routes(Counters()), Counters())
    wants = [searched.want(name, known=None, wake=lambda: None) for name in "abc"]
    assert len(searched._searches) == 3
    await nodes.asked_for(2)
    assert [set(one) for one in nodes.questions[:1]] == [{"a", "b", "c"}]
    await nodes.asked_for(4)
    assert len(searched._searches) == 1
    assert {len(one) for one in nodes.questions[-1:]} == {1}
    for want in wants:
        want.close()
    assert not searched._searches
    await searched.close()


async def test_a_refusal_is_for_the_group_that_was_asked_about_alone():
    """Others of its shard search on, and one of them is asked about next."""
    nodes = Silent(held=False, refused={"a"})
    routes, woken = Routes(Counters()), []
    for name in "ab":
        routes.place(name, 1, None)
    searched = discovery.Discovery(nodes, routes, Counters())
    first = searched.want("a", known=None, wake=lambda: woken.append("a"))
    second = searched.want("b", known=None, wake=lambda: woken.append("b"))
    await nodes.asked_for(2)
    while ["b"] not in nodes.questions:
        await nodes.asked_for(len(nodes.questions) + 1)
    assert isinstance(first.error, InvalidGroupId)
    assert second.error is None
    assert woken == ["a"]
    first.close()
    assert len(searched._searches) == 1
    second.close()
    assert not searched._searches
    await searched.close()


async def test_a_node_that_does_not_answer_is_asked_ever_less_often(monkeypatch):
    """Each question that is open beyond two doubles the time to the next, up to the longest.

    An answer makes the next one due sooner.
    """
    nodes = Silent(held=True)
    searched = discovery.Discovery(nodes, Routes(Counters()), Counters())
    wants = []

    def want():
        wants.append(searched.want(f"g{len(wants)}", known=None, wake=lambda: None))

    for number in range(5):
        want()
        await nodes.asked_for(number + 1)
    gaps = [b - a for a, b in itertools.pairwise(nodes.asked_at)]
    least = [timeouts.FIND_GAP_MS << max(0, number - 1) for number in range(4)]
    assert all(gap_s * 1_000 >= ms - 1 for gap_s, ms in zip(gaps, least, strict=True))
    monkeypatch.setattr(timeouts, "FIND_GAP_MS", 10_000)
    monkeypatch.setattr(timeouts, "FIND_GAP_MS_MAX", 100_000)
    want()
    await asyncio.sleep(0)
    asked = searched._asked["a:1"]

    def due_s():
        return asked.timer.when() - asked.sent_at

    assert (asked.open, due_s()) == (5, pytest.approx(80.0))
    asked.open = 30
    searched._send_when_due("a:1", asked)
    assert due_s() == pytest.approx(100.0)
    asked.open = 5
    for call in nodes.calls[:4]:
        call.set_exception(no_answer())
    async with asyncio.timeout(20):
        while asked.open > 1:
            await asyncio.sleep(0)
    assert due_s() == pytest.approx(10.0)
    for one in wants:
        one.close()
    await searched.close()


def no_answer():
    """What gRPC says of a call that was not answered in time."""
    empty = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, empty, empty)


def test_a_client_remembers_no_more_nodes_than_there_may_be():
    """How the ones that are gone were asked is let go, not how those are that hold a question."""

    async def run():
        nodes = Silent(held=True)
        searched = discovery.Discovery(nodes, Routes(Counters()), Counters())
        asking = asyncio.create_task(searched._ask("held:1", "g", 0))
        await nodes.asked_for(1)
        for number in range(2 * NODES_MAX):
            searched._asked.setdefault(f"gone:{number}", discovery._Asked())
        other = asyncio.create_task(searched._ask("new:1", "g", 0))
        await nodes.asked_for(2)
        assert set(searched._asked) == {"held:1", "new:1"}
        asking.cancel()
        other.cancel()
        await searched.close()

    asyncio.run(run())


async def test_who_searches_on_after_a_group_of_its_shard_gave_up_is_found(open_cluster):
    """A call of one group forgot its coordinator; another call and heartbeats of it search, too.

    They were left in a search that had ended when the first group of the shard was found.
    """
    async with open_cluster(3) as (cluster, client):
        await asyncio.gather(*(client.committed(name, [T0]) for name in "gh"))
        core = client._core
        known = core.caller.routes.get("g")
        h = core.discovery.want("h", known=known, wake=lambda: None)
        g = [core.discovery.want("g", known=known, wake=lambda: None) for _ in range(2)]
        core.discovery.forget("g")
        assert core.caller.routes.get("h") == known
        found = asyncio.Event()
        core.caller.routes.watch("g", found.set)
        await asyncio.wait_for(found.wait(), 20)
        assert all(one.is_met for one in g)
        assert not h.is_met
        both = [asyncio.Event(), asyncio.Event()]
        for name, event in zip("gh", both, strict=True):
            core.caller.routes.watch(name, event.set)
        again = core.discovery.want("g", known=known, wake=lambda: None)
        cluster.elect(2)
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in both)), 20)
        assert h.is_met
        assert again.is_met
        for want in (h, again, *g):
            want.close()
        assert not core.discovery._searches


async def test_a_search_goes_on_for_groups_that_are_not_found_with_the_first():
    """An older node names no shard, so what it says of one group is of that one alone."""
    nodes = Silent(held=False, found={"a": 3})
    routes = Routes(Counters())
    for name in "ab":
        routes.place(name, 1, None)
    nodes.shard = None
    searched = discovery.Discovery(nodes, routes, Counters())
    first = searched.want("a", known=None, wake=lambda: None)
    routes.forget("b")
    second = searched.want("b", known=None, wake=lambda: None)
    while not first.is_met:
        await nodes.asked_for(len(nodes.questions) + 1)
    nodes.found["b"] = 3
    while not second.is_met:
        await nodes.asked_for(len(nodes.questions) + 1)
    first.close()
    second.close()
    assert not searched._searches
    await searched.close()


async def test_nodes_that_know_no_leader_do_not_keep_a_search_to_themselves():
    """Two of five are cut off from the others, and were asked for ever."""
    nodes = CutOff("ab", held=False)
    searched = discovery.Discovery(nodes, Routes(Counters()), Counters())
    want = searched.want("g", known=None, wake=lambda: None)
    while not want.is_met:
        await nodes.asked_for(len(nodes.questions) + 1)
    assert len(nodes.questions) <= 6
    want.close()
    await searched.close()


async def test_the_askers_of_a_search_do_not_all_wait_for_one_quiet_node():
    """Shards elect one by one: two of three nodes answer before the one that is wanted is led.

    Both askers went on to the third, which hangs, and waited for it for two seconds.
    """
    nodes = Hanging("c", after=6)
    searched = discovery.Discovery(nodes, Routes(Counters()), Counters())
    want = searched.want("g", known=Coordinator(3, "c:1", 2), wake=lambda: None)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            while not want.is_met:
                await nodes.asked_for(len(nodes.questions) + 1)
    assert want.is_met
    want.close()
    await searched.close()


class Silent:
    """One node that knows no leader of the one shard it has; `held`: it never answers.

    `found`: groups that it knows a term of; `refused`: those that it takes for no names.
    """

    def __init__(self, *, held, refused=(), found=()):
        self.questions, self.asked_at, self.calls = [], [], []
        self.found, self.shard = dict(found), 0
        self._held, self._refused = held, refused
        self._came = asyncio.Event()

    async def asked_for(self, count):
        """Wait until so many questions have come."""
        async with asyncio.timeout(20):
            while len(self.questions) < count:
                self._came.clear()
                await self._came.wait()

    def order(self, _avoid=""):
        return ["a:1"]

    def others_count(self, _avoid):
        return 1

    def learn(self, _endpoints):
        """There is one."""

    def unary(self, _endpoint, _path, _parse, request, _timeout_ms):
        """As `muster.net.nodes.Nodes` has it."""
        loop = asyncio.get_running_loop()
        asked = [key.group_id for key in group_pb2.FindCoordinatorRequest.FromString(request).keys]
        self.questions.append(asked)
        self.asked_at.append(loop.time())
        self._came.set()
        call = loop.create_future()
        self.calls.append(call)
        response = group_pb2.FindCoordinatorResponse()
        for group_id in asked:
            if group_id in self._refused:
                result = response.results.add(group_id=group_id)
                result.status.code = errors_pb2.INVALID_GROUP_ID
            else:
                result = response.results.add(group_id=group_id, shard=self.shard)
                if term := self.found.get(group_id):
                    result.coordinator.endpoint, result.coordinator.term = "a:1", term
                else:
                    result.pending = True
                    result.status.code = errors_pb2.COORDINATOR_NOT_AVAILABLE
        if not self._held:
            call.set_result(response)
        return call


class CutOff(Silent):
    """Five nodes, some of which know no leader. The answer comes at once."""

    def __init__(self, cut_off, **rest):
        super().__init__(**rest)
        self._cut_off = [f"{name}:1" for name in cut_off]

    def order(self, _avoid=""):
        return [f"{name}:1" for name in "abcde"]

    def others_count(self, _avoid):
        return 5

    def unary(self, endpoint, *rest):
        self.found = {} if endpoint in self._cut_off else {"g": 3}
        return super().unary(endpoint, *rest)


class Hanging(Silent):
    """Three nodes, one of which never answers; the others know a leader `after` so many answers."""

    def __init__(self, hangs, after):
        super().__init__(held=False)
        self._hangs, self._left = f"{hangs}:1", after

    def order(self, _avoid=""):
        return ["a:1", "b:1", "c:1"]

    def others_count(self, _avoid):
        return 2

    def unary(self, endpoint, *rest):
        self._held = endpoint == self._hangs
        self._left -= not self._held
        self.found = {"g": 3} if self._left <= 0 else {}
        return super().unary(endpoint, *rest)


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
        assert any(asked.batch for asked in core.discovery._asked.values())
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
        await asyncio.wait(held.search.tasks, timeout=20)
        assert held.is_met
        assert held.search.ended
        core.discovery.forget("g")
        await asyncio.wait(held.search.tasks, timeout=20)
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


async def test_without_a_leader_the_error_says_who_was_asked_and_what_each_said(open_cluster):
    """A node that answers knows none; one that is gone is named, too."""
    options = {"request_timeout_ms": 1_500}
    async with open_cluster(2, client=options, election_ms=FOR_EVER_MS) as (cluster, client):
        await cluster.kill(1)
        with pytest.raises(CoordinatorNotAvailable) as raised:
            await client.committed("g", [T0])
        assert f"{cluster.endpoint(1)}: UNAVAILABLE" in raised.value.message
        assert f"{cluster.endpoint(2)}: knows no leader" in raised.value.message
