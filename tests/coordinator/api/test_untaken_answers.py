"""A client that never reads its answers, over real sockets: bounded and ended, beside others."""

import asyncio

import grpc
import pytest

from muster.v1 import group_pb2 as pb
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.handler import handler
from musterd.coordinator.api.limits import call_acceptor, untaken_answers
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.api.limits.untaken_answers import ANSWER_BYTES, CONNECTION_BYTES_MAX
from tests.coordinator.api.test_call_acceptor import Case, Groups
from tests.coordinator.nonreading_client import NonReadingClient

FETCH = "/muster.v1.GroupCoordinator/OffsetFetch"
CALLS = 350
LARGE = 2**20
EXHAUSTED, UNAVAILABLE = 8, 14


class Large(Groups):
    """A fetch is answered with 1 MiB, a commit at once."""

    def __init__(self, admission):
        super().__init__(admission)
        self.fetches = 0
        self.let_go.set()

    @handler(Kind.ORDINARY, bounds.NONE, reads=True)
    async def OffsetFetch(self, request, call):  # noqa: N802 - the generated name
        """As a group with very many offsets."""
        self.fetches += 1
        await asyncio.sleep(0)
        return pb.OffsetFetchResponse(
            partitions=[pb.OffsetFetchResponse.Partition(metadata="m" * LARGE)]
        )


class Bounded(Case):
    """Its handlers answer at length."""

    servicer = Large

    async def __aenter__(self):
        await super().__aenter__()
        self.admission.limits[Kind.ORDINARY] = 2 * CALLS
        return self

    @property
    def untaken(self):
        return self.acceptor.untaken


def run(test):
    """Run a coroutine to its end."""
    asyncio.run(asyncio.wait_for(test, 60))


async def _seen(condition):
    """As `Case.until`; in vain it is a failed assertion."""
    end_s = asyncio.get_running_loop().time() + 8
    while not condition():
        assert asyncio.get_running_loop().time() < end_s
        await asyncio.sleep(0.005)


@pytest.fixture
def soon(monkeypatch):
    """Answers have 300 ms to be taken."""
    monkeypatch.setattr(untaken_answers, "UNTAKEN_MS_MAX", 300)
    monkeypatch.setattr(call_acceptor, "UNTAKEN_LOOK_MS", 20)


def test_for_a_client_that_never_reads_one_answer_is_made_and_no_more():
    """Of 350 answers of 1 MiB; before it has read that one a few calls wait, unread, and no others.

    gRPC's own loop takes calls beside the call acceptor: those were answered, and kept a core busy.
    """

    async def test():
        async with Bounded() as case, NonReadingClient() as client:
            await client.connect("127.0.0.1", case.port)
            for _ in range(CALLS):
                await client.ask(FETCH, pb.OffsetFetchRequest())
            waiting = call_acceptor.READS_WAITING_MAX + 1
            await _seen(lambda: len(client.statuses) == CALLS - 1 - waiting)
            assert set(client.statuses.values()) == {EXHAUSTED}
            assert len(case.untaken) == case.groups.fetches == 1
            assert LARGE < case.untaken.bytes < LARGE + 2 * ANSWER_BYTES
            late = await client.ask(FETCH, pb.OffsetFetchRequest())
            await case.until(lambda: late in client.statuses)
            assert client.statuses[late] == EXHAUSTED
            assert case.groups.fetches == 1

    run(test())


def test_a_call_whose_answer_is_not_taken_is_ended(soon):
    """The client sees it reset, nothing of it is kept, and the connection may be used again."""

    async def test():
        async with Bounded() as case, NonReadingClient() as client:
            await client.connect("127.0.0.1", case.port)
            for _ in range(2):
                asked = await client.ask(FETCH, pb.OffsetFetchRequest())
                await _seen(lambda asked=asked: asked in client.resets)
                assert len(case.untaken) == case.untaken.bytes == 0
            assert case.groups.fetches == case.untaken.ended_total == 2
            assert client.data_bytes == 0
            running = [t for t in asyncio.all_tasks() if "HandleExceptions" in t.get_name()]
            assert not running

    run(test())


def test_reads_that_wait_behind_an_answer_that_is_not_taken_end_with_it(soon):
    """Each would be answered, and not taken, one after the other for minutes."""

    async def test():
        async with Bounded() as case, NonReadingClient() as client:
            await client.connect("127.0.0.1", case.port)
            asked = [await client.ask(FETCH, pb.OffsetFetchRequest()) for _ in range(20)]
            await _seen(lambda: set(asked) <= client.ended)
            assert sum(status == EXHAUSTED for status in client.statuses.values()) == 19
            assert case.groups.fetches == 1

    run(test())


def test_who_reads_is_served_beside_one_who_does_not():
    """On another connection, with answers as large; and each is counted until it is taken."""

    async def test():
        async with Bounded() as case, NonReadingClient() as client:
            await client.connect("127.0.0.1", case.port)
            for _ in range(CALLS):
                await client.ask(FETCH, pb.OffsetFetchRequest())
            for _ in range(20):
                answer = await case.stub.OffsetFetch(pb.OffsetFetchRequest())
                assert len(answer.partitions[0].metadata) == LARGE
            await case.until(lambda: len(case.untaken) <= CONNECTION_BYTES_MAX // LARGE)

    run(test())


def test_a_connection_that_is_gone_keeps_nothing():
    """Whatever it had not taken."""

    async def test():
        async with Bounded() as case:
            async with NonReadingClient() as client:
                await client.connect("127.0.0.1", case.port)
                await client.ask(FETCH, pb.OffsetFetchRequest())
                await case.until(lambda: len(case.untaken) == 1)
            await case.until(lambda: len(case.untaken) == 0)
            assert case.untaken.bytes == 0

    run(test())


def test_a_refusal_is_no_answer_that_waits():
    """It goes out beside the flow control, and is not counted."""

    async def test():
        async with Bounded() as case:
            with pytest.raises(grpc.aio.AioRpcError):
                await case.stub.LeaveGroup(pb.LeaveGroupRequest())
            assert len(case.untaken) == 0

    run(test())


def test_a_connection_that_takes_nothing_keeps_so_much_and_is_refused_more():
    """Whatever it calls: the answers of Syncs are long, too. Others are not refused."""
    answers = untaken_answers.UntakenAnswers(lambda: 0.0, lambda _: None)
    kept = [answers.keep(b"x" * LARGE, "deaf", object()) is not None for _ in range(8)]
    most = CONNECTION_BYTES_MAX // LARGE
    assert kept == [True] * most + [False] * (8 - most)
    assert answers.refuses("deaf")
    assert not answers.refuses("other")


def test_who_takes_answers_is_served_whatever_others_leave_waiting():
    """Sixteen connections that read nothing have filled the node; a 17th has nothing waiting."""
    now, ended = [0.0], []
    answers = untaken_answers.UntakenAnswers(lambda: now[0], ended.append)
    deaf = [f"deaf-{number}" for number in range(16)]
    kept = dropped = 0
    for tick in range(2_000):
        now[0] += 0.01
        for peer in deaf:
            for size in (LARGE, 65_536, 0):
                answers.keep(b"x" * size, peer, object())
        answer = answers.keep(b"x" * 1_024, "reader", object())
        kept, dropped = kept + (answer is not None), dropped + (answer is None)
        if answer is not None:
            answers.let_go(answer)
        if not tick % 10:
            answers.look()
    assert (kept, dropped) == (2_000, 0)
    assert answers.bytes <= untaken_answers.NODE_BYTES_MAX + 17 * untaken_answers.SPARED_BYTES_MAX
