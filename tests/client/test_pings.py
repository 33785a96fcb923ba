"""What a node says when it is asked whether it is alive, and what that means for parked calls."""

import asyncio

import grpc
import pytest

from muster import timeouts
from muster.net import pings
from muster.net.discovery import Routes
from muster.net.pings import KEYS_MAX, OWN_LAG_S, Pings
from muster.types import Counters
from muster.v1 import errors_pb2, group_pb2

NODE = "a:1"


class Nodes:
    """Answers each question as `answers` says of its groups; None: never."""

    def __init__(self, answers):
        self.asked = []
        self._answers = answers

    def unary(self, _endpoint, _path, _parse, request, _timeout_ms):
        """As `muster.net.nodes.Nodes` has it."""
        question = group_pb2.FindCoordinatorRequest.FromString(request)
        self.asked.append([key.group_id for key in question.keys])
        call = asyncio.get_running_loop().create_future()
        response = group_pb2.FindCoordinatorResponse()
        for group_id in self.asked[-1]:
            result = response.results.add(group_id=group_id)
            term = self._answers(group_id)
            if term is None:
                return call
            if term:
                result.coordinator.endpoint, result.coordinator.term = NODE, term
            else:
                result.pending = True
                result.status.code = errors_pb2.COORDINATOR_NOT_AVAILABLE
        call.set_result(response)
        return call


@pytest.fixture
def asking(monkeypatch):
    """The pings of a client to nodes that answer as told; each test asks by itself."""
    monkeypatch.setattr(timeouts, "PING_MS", 30_000)
    made = []

    def make(answers):
        counters = Counters()
        nodes = Nodes(answers)
        made.append(Pings(nodes, Routes(counters), counters))
        return made[-1], nodes

    return make


async def test_a_node_that_knows_no_leader_of_a_group_is_suspect_for_that_group(asking):
    """It was deposed; of the others it knows who leads, and that is learned."""
    terms = {"led": 3, "left": 0}
    all_pings, _ = asking(terms.get)
    woken = []
    led = all_pings.watch(NODE, "led", lambda: woken.append("led"))
    left = all_pings.watch(NODE, "left", lambda: woken.append("left"))
    await all_pings._pinged[NODE].ping()
    assert (led.silent, left.silent) == (False, True)
    assert all_pings.routes.get("led").term == 3
    assert woken == ["left"]
    terms["left"] = 4
    await all_pings._pinged[NODE].ping()
    assert not left.silent
    await all_pings.close()


async def test_one_call_of_each_shard_looks_for_another_coordinator_of_a_silent_node(asking):
    """What it finds all are told; if hundreds search, a busy process does not read its answers."""
    all_pings, _ = asking(lambda _: 1)
    shards = {"a": 1, "b": 1, "c": 1, "d": 2}
    for group_id, shard in shards.items():
        all_pings.routes.place(group_id, shard, None)
    woken = []
    watches = {g: all_pings.watch(NODE, g, lambda g=g: woken.append(g)) for g in shards}
    pinged = all_pings._pinged[NODE]
    pinged._say(silent=True)
    assert woken == ["a", "d"]
    assert all(watch.silent for watch in watches.values())
    watches.pop("b").close()
    assert woken == ["a", "d"]
    watches.pop("a").close()  # it was answered, or given up
    assert "c" in woken
    woken.clear()
    pinged._say(silent=False)
    assert sorted(woken) == ["c", "d"]
    await all_pings.close()


async def test_what_was_said_of_a_group_ends_with_its_calls(asking):
    """A later call for it is not suspect before a node was asked."""
    all_pings, _ = asking(lambda group_id: 0 if group_id == "left" else 1)
    all_pings.watch(NODE, "led", lambda: None)
    left = all_pings.watch(NODE, "left", lambda: None)
    await all_pings._pinged[NODE].ping()
    assert left.silent
    left.close()
    await all_pings._pinged[NODE].ping()
    assert not all_pings.watch(NODE, "left", lambda: None).silent
    await all_pings.close()


async def test_groups_of_one_shard_are_asked_about_by_one_of_them(asking):
    """What the node says of that one it says of all."""
    terms = {"a": 0, "b": 0, "c": 3}
    all_pings, nodes = asking(terms.get)
    for name, shard in (("a", 1), ("b", 1), ("c", 2)):
        all_pings.routes.place(name, shard, None)
    a, b, c = (all_pings.watch(NODE, name, lambda: None) for name in "abc")
    await all_pings._pinged[NODE].ping()
    assert nodes.asked == [["a", "c"]]
    assert [one.silent for one in (a, b, c)] == [True, True, False]
    a.close()
    await all_pings._pinged[NODE].ping()
    assert sorted(nodes.asked[-1]) == ["b", "c"]
    assert b.silent
    await all_pings.close()


async def test_a_slow_node_is_asked_less_often(asking, monkeypatch):
    """It is left alone four times as long as it took, PING_REST_MS_MAX at most."""
    monkeypatch.setattr(timeouts, "PING_MS", 1)
    monkeypatch.setattr(timeouts, "PING_MS_MAX", 1)
    all_pings, nodes = asking(lambda _: 1)
    all_pings.watch(NODE, "g", lambda: None)
    pinged, pauses = all_pings._pinged[NODE], []
    sleep = asyncio.sleep

    async def noted(seconds):
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(pings.asyncio, "sleep", noted)
    async with asyncio.timeout(20):
        while len(nodes.asked) < 2:
            await sleep(0)
        pinged._took_s = 0.05
        monkeypatch.setattr(pinged, "ping", lambda: sleep(0))
        seen = len(pauses)
        while len(pauses) < seen + 2:
            await sleep(0)
        pinged._took_s = 60.0
        most = timeouts.PING_REST_MS_MAX / 1000
        while pauses[-1] != most:
            await sleep(0)
    assert pauses[0] == 0.001
    assert 0.05 * pings.PATIENCE in pauses
    await all_pings.close()


async def test_each_question_is_for_other_groups_until_all_were_asked_for(asking):
    """At most 50 in one; those that were asked for come last the next time."""
    all_pings, nodes = asking(lambda _: 1)
    names = [f"g{number}" for number in range(KEYS_MAX + 10)]
    for name in names:
        all_pings.watch(NODE, name, lambda: None)
    await all_pings._pinged[NODE].ping()
    await all_pings._pinged[NODE].ping()
    assert nodes.asked == [names[:KEYS_MAX], names[KEYS_MAX:] + names[: KEYS_MAX - 10]]
    await all_pings.close()


async def test_an_answer_that_this_process_was_too_busy_to_read_is_no_silence(asking):
    """The timer that would say so is late itself: the answer has the same time again."""
    all_pings, _ = asking(lambda _: None)
    watch = all_pings.watch(NODE, "g", lambda: None)
    pinged, loop = all_pings._pinged[NODE], asyncio.get_running_loop()
    pinged._unanswered(loop.time() - 2 * OWN_LAG_S)
    assert not watch.silent
    pinged._unanswered(loop.time())
    assert watch.silent
    await all_pings.close()


async def test_a_node_that_was_slow_before_has_longer(asking, monkeypatch):
    """Four times as long as it took, the longest silence at most."""
    all_pings, _ = asking(lambda _: 1)
    all_pings.watch(NODE, "g", lambda: None)
    pinged, loop = all_pings._pinged[NODE], asyncio.get_running_loop()
    due = []
    monkeypatch.setattr(loop, "call_at", lambda at, *_: due.append(at) or _Timer())
    silence_s = timeouts.PING_SILENCE_MS / 1000
    for took_s, wanted_s in (
        (0.0, silence_s),
        (silence_s / pings.PATIENCE * 1.2, 1.2 * silence_s),
        (60.0, timeouts.PING_SILENCE_MS_MAX / 1000),
    ):
        pinged._took_s = took_s
        before_s = loop.time()
        pinged._arm()
        assert before_s + wanted_s - 0.001 <= due[-1] <= loop.time() + wanted_s + 0.001
    assert len(due) == 3
    monkeypatch.undo()
    await all_pings.close()


class _Timer:
    def cancel(self):
        """Nothing runs."""


@pytest.mark.parametrize(
    ("code", "silent"),
    [(grpc.StatusCode.RESOURCE_EXHAUSTED, False), (grpc.StatusCode.UNAVAILABLE, True)],
)
async def test_a_question_that_fails_means_a_silent_node_unless_it_is_refused_for_overload(
    asking, monkeypatch, code, silent
):
    """Who is busy is alive."""
    all_pings, nodes = asking(lambda _: 1)
    watch = all_pings.watch(NODE, "g", lambda: None)

    def fails(*_):
        call = asyncio.get_running_loop().create_future()
        no_metadata = grpc.aio.Metadata()
        call.set_exception(grpc.aio.AioRpcError(code, no_metadata, no_metadata))
        return call

    monkeypatch.setattr(nodes, "unary", fails)
    await all_pings._pinged[NODE].ping()
    assert watch.silent is silent
    await all_pings.close()
