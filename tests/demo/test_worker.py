"""A worker against a cluster in memory: the order of claim, write and commit, and who is fenced."""

import asyncio
from contextlib import asynccontextmanager, closing

import msgspec
import pytest

from muster import TopicPartition
from muster.errors import ErrorCode
from muster.testing import Cluster, Refuse
from musterd.demo.corpus import read_corpus
from musterd.demo.events import (
    Acknowledged,
    Attempt,
    Closed,
    Compared,
    Ended,
    Fenced,
    NotCommitted,
    Pace,
    Reading,
    Took,
    WorkerEvent,
    decode_event,
    encode_event,
)
from musterd.demo.ledger import CLAIM, WRITE, Ledger, Owner
from musterd.demo.pace import PPM
from musterd.demo.plan import CLIENT, SERVER
from musterd.demo.worker import Worker, WorkerSettings

PARTITIONS = 4
SECONDS_MAX = 60


@pytest.fixture
def corpus(tmp_path):
    """Forty lines for each partition."""
    source = tmp_path / "input"
    source.mkdir()
    for number in range(PARTITIONS):
        text = "".join(f"line {line} of {number}\n" for line in range(40))
        (source / f"{number}.txt").write_text(text)
    return read_corpus(source, PARTITIONS, tmp_path / "corpus")


@pytest.fixture
def ledger(corpus):
    """Nothing counted."""
    with closing(Ledger.create(corpus.folder.parent / "results.sqlite", PARTITIONS)) as opened:
        yield opened


class Hand:
    """A worker in this process, its commands and its events."""

    def __init__(self, name, cluster, corpus, assignment):
        settings = WorkerSettings(
            name=name,
            bootstrap=cluster.bootstrap,
            group_id="g",
            topic="t",
            ledger="",
            corpus=str(corpus.folder),
            lines=corpus.lines,
            batches=20,
            session_timeout_ms=10_000,
            assignment=assignment,
        )
        self.events = []
        self.commands = asyncio.StreamReader()
        self._ledger = Ledger(corpus.folder.parent / "results.sqlite")
        self.worker = Worker(settings, self._ledger, self.events.append)
        self.task = asyncio.create_task(self.worker.run(self.commands))

    def pace(self, allowed_ppm):
        self.commands.feed_data(msgspec.json.encode(Pace(allowed_ppm)) + b"\n")

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, holds):
        while not holds():
            if self.task.done():
                self.task.result()
                raise AssertionError("the worker ended")
            await asyncio.sleep(0.005)

    async def leave(self):
        if not self.task.done():
            self.commands.feed_eof()
        await self.task

    def close(self):
        self.task.cancel()
        self._ledger.close()


def run(scenario, corpus, nodes=1):
    """Run `scenario(cluster, hire)` in a loop; hired workers end with it."""

    @asynccontextmanager
    async def staff():
        hands = []
        async with Cluster(nodes, topics={"t": PARTITIONS}) as cluster:

            def hire(name, assignment=CLIENT):
                hands.append(Hand(name, cluster, corpus, assignment))
                return hands[-1]

            try:
                yield cluster, hire
            finally:
                for hand in hands:
                    hand.close()
                await asyncio.gather(*(hand.task for hand in hands), return_exceptions=True)

    async def main():
        async with asyncio.timeout(SECONDS_MAX), staff() as (cluster, hire):
            await scenario(cluster, hire)

    asyncio.run(main())


def committed(cluster):
    """Offsets as the cluster has them."""
    group = cluster.groups.get("g")
    stored = {} if group is None else group.offsets
    return {key.partition: value.value.offset for key, value in stored.items()}


def test_everything_is_claimed_counted_written_and_committed(corpus, ledger):
    """And the worker leaves in good order when its commands end."""

    async def scenario(cluster, hire):
        hand = hire("worker-1")
        hand.pace(PPM)
        await hand.until(lambda: ledger.offsets() == dict(enumerate(corpus.lines)))
        await hand.leave()
        assert committed(cluster) == ledger.offsets()
        assert not cluster.groups["g"].members
        (took,) = hand.of(Took)
        assert took.resumed == took.committed == dict.fromkeys(range(PARTITIONS), 0)
        assert isinstance(hand.events[-1], Closed)
        assert hand.of(Ended)[0].lost is False

    run(scenario, corpus)
    assert ledger.totals()["line"] == corpus.total


def test_where_the_coordinator_assigns_what_stays_with_a_worker_goes_on(corpus, ledger):
    """Partitions that another worker gets end alone; each has a token of its own."""

    async def scenario(cluster, hire):
        first = hire("worker-1", SERVER)
        first.pace(PPM // 2)
        half = {number: lines // 2 for number, lines in enumerate(corpus.lines)}
        await first.until(lambda: committed(cluster) == ledger.offsets() == half)
        second = hire("worker-2", SERVER)
        await second.until(lambda: len(second.of(Took)) == 2)
        moved = {number for took in second.of(Took) for number in took.resumed}
        assert {number for ended in first.of(Ended) for number in ended.partitions} == moved
        assert len(first.of(Took)) == PARTITIONS
        for one in (first, second):
            one.pace(PPM)
        await first.until(lambda: ledger.offsets() == dict(enumerate(corpus.lines)))
        claims = [note for note in ledger.notes() if note.kind == CLAIM]
        assert all(note.granted for note in ledger.notes())
        tokens = {number: [n.token for n in claims if n.partition == number] for number in half}
        assert all(len(tokens[number]) == 1 + (number in moved) for number in half)
        assert all(tokens[number] == sorted(set(tokens[number])) for number in half)
        for one in (first, second):
            await one.leave()
        assert committed(cluster) == ledger.offsets()

    run(scenario, corpus)
    assert ledger.totals()["line"] == corpus.total


def test_nothing_is_read_before_it_has_arrived(corpus, ledger):
    """A quarter of the lines, in whole batches."""

    async def scenario(_cluster, hire):
        hand = hire("worker-1")
        hand.pace(PPM // 4)
        await hand.until(lambda: sum(ledger.offsets().values()) >= 32)
        await hand.leave()

    run(scenario, corpus)
    assert all(8 <= offset <= 10 for offset in ledger.offsets().values())


def test_a_claim_comes_before_the_first_line_and_a_write_before_its_commit(corpus, ledger):
    """By the ledger's own journal and the worker's events, per partition."""

    async def scenario(_cluster, hire):
        hand = hire("worker-1")
        hand.pace(PPM)
        await hand.until(lambda: ledger.offsets() == dict(enumerate(corpus.lines)))
        await hand.leave()
        notes = ledger.notes()
        for number in range(PARTITIONS):
            claim = next(n for n in notes if n.kind == CLAIM and n.partition == number)
            reading = next(e for e in hand.of(Reading) if e.partition == number)
            assert claim.at_ns < reading.at_ns
        for attempt in hand.of(Attempt):
            for number, offset in attempt.offsets.items():
                assert any(
                    n.kind == WRITE
                    and (n.partition, n.offset) == (number, offset)
                    and n.at_ns < attempt.at_ns
                    for n in notes
                )

    run(scenario, corpus)


def test_two_workers_share_and_the_next_owner_resumes_from_the_row(corpus, ledger):
    """Nothing twice, nothing missing; what is taken over was committed when it was given up."""

    async def scenario(_cluster, hire):
        first = hire("worker-1")
        first.pace(PPM // 2)
        await first.until(lambda: min(ledger.offsets().values()) >= 18)
        second = hire("worker-2")
        await second.until(lambda: second.of(Took))
        took = second.of(Took)[-1]
        assert len(took.resumed) == 2
        assert took.resumed == took.committed
        assert min(took.resumed.values()) >= 18
        for hand in (first, second):
            hand.pace(PPM)
        await second.until(lambda: ledger.offsets() == dict(enumerate(corpus.lines)))
        for hand in (first, second):
            await hand.leave()

    run(scenario, corpus)
    assert ledger.totals()["line"] == corpus.total
    assert sum(note.lines for note in ledger.notes()) == corpus.total


def test_a_fenced_worker_stops_that_partition_and_goes_on_with_the_others(corpus, ledger):
    """Somebody with a newer token claims one; nothing of it is written afterwards."""

    async def scenario(_cluster, hire):
        hand = hire("worker-1")
        hand.pace(PPM // 4)
        await hand.until(lambda: min(ledger.offsets().values()) >= 8)
        ledger.claim(2, Owner(10**6, "somebody newer"))
        stood = ledger.offsets()[2]
        hand.pace(PPM)
        await hand.until(lambda: sum(ledger.offsets().values()) == 120 + stood)
        (fenced,) = hand.of(Fenced)
        assert fenced.partition == 2
        assert ledger.offsets()[2] == stood
        await hand.leave()

    run(scenario, corpus)


def test_a_refused_claim_is_told_and_its_partition_left_alone(corpus, ledger):
    """The row has a newer token already."""
    ledger.claim(1, Owner(10**6, "somebody newer"))

    async def scenario(_cluster, hire):
        hand = hire("worker-1")
        hand.pace(PPM)
        await hand.until(lambda: sum(ledger.offsets().values()) == 120)
        assert hand.of(Took)[0].refused == [1]
        assert 1 not in hand.of(Took)[0].resumed
        await hand.leave()

    run(scenario, corpus)
    assert ledger.offsets()[1] == 0


def test_after_a_change_of_leader_the_offsets_are_read_before_the_next_commit(corpus, ledger):
    """One record of every partition, in the later term, before the first commit in it."""

    async def scenario(cluster, hire):
        hand = hire("worker-1")
        hand.pace(PPM // 4)
        await hand.until(lambda: sum(committed(cluster).values()) >= 32)
        await cluster.kill(cluster.leader)
        hand.pace(PPM)
        await hand.until(lambda: ledger.offsets() == dict(enumerate(corpus.lines)))
        await hand.leave()
        later = [
            event
            for event in hand.events
            if isinstance(event, Compared | Acknowledged)
            and (event.new_term if isinstance(event, Compared) else event.term) > 1
        ]
        assert isinstance(later[0], Compared)
        assert sorted(later[0].committed) == list(range(PARTITIONS))
        assert later[0].old_term < later[0].new_term <= later[0].read_term
        assert committed(cluster) == ledger.offsets()

    run(scenario, corpus, nodes=3)


def test_what_was_written_but_not_committed_is_committed_by_the_next_owner(corpus, ledger):
    """The last one died between its write and its commit."""

    async def scenario(cluster, hire):
        first = hire("worker-0")
        await first.until(lambda: first.of(Took))
        await first.leave()
        owner = Owner(first.of(Took)[0].generation, first.of(Took)[0].member)
        assert ledger.write(3, owner, expected=0, offset=7, counts={"line": 7})
        second = hire("worker-1")
        await second.until(lambda: second.of(Acknowledged))
        assert second.of(Took)[0].resumed[3] == 7
        assert second.of(Took)[0].committed[3] == 0
        assert committed(cluster) == {3: 7}
        await second.leave()

    run(scenario, corpus)


def test_a_lost_assignment_commits_nothing_more_and_the_next_one_goes_on(corpus, ledger):
    """The coordinator refuses the generation: given up, joined again, resumed from the row."""

    async def scenario(cluster, hire):
        hand = hire("worker-1")
        await hand.until(lambda: hand.of(Took))
        cluster.script("OffsetCommit", Refuse(ErrorCode.ILLEGAL_GENERATION))
        hand.pace(PPM)
        await hand.until(lambda: committed(cluster) == dict(enumerate(corpus.lines)))
        (refused,) = hand.of(NotCommitted)
        assert refused.error == "IllegalGeneration"
        assert hand.of(Ended)[0].lost is True
        first, second = hand.of(Took)
        assert first.generation == refused.generation < second.generation
        assert all(e.generation == second.generation for e in hand.of(Acknowledged))
        await hand.leave()

    run(scenario, corpus)
    assert ledger.totals()["line"] == corpus.total


@pytest.mark.parametrize(
    "event",
    [
        Took(1, 2, "m", 3, 4, {0: 5}, {0: 5}, [7]),
        Reading(1, 2, 3, 4),
        Attempt(1, 2, {0: 1}),
        Acknowledged(1, 2, 3, {0: 1}),
        NotCommitted(1, 2, "IllegalGeneration", {0: 1}),
        Compared(1, 2, 3, 4, 5, 6, {0: 1}),
        Fenced(1, 2, 3, "m"),
        Ended(1, 2, lost=True, partitions=[3]),
        Closed(1, 2, 3),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_is_the_same_after_its_way_through_the_pipe(event: WorkerEvent):
    """One line each."""
    line = encode_event(event)
    assert line.count(b"\n") == 1
    assert decode_event(line) == event


def test_every_kind_of_event_is_covered_above():
    """A new one must be tried, too."""
    assert {kind.__name__ for kind in WorkerEvent.__args__} == {
        "Took",
        "Reading",
        "Attempt",
        "Acknowledged",
        "NotCommitted",
        "Compared",
        "Fenced",
        "Ended",
        "Closed",
    }


def test_a_member_commits_under_the_assignment_it_worked_under(corpus, ledger):
    """Keys of its topic, and nothing of a partition it does not own."""

    async def scenario(cluster, hire):
        hand = hire("worker-1")
        hand.pace(PPM)
        await hand.until(lambda: committed(cluster) == dict(enumerate(corpus.lines)))
        assert set(cluster.groups["g"].offsets) == {TopicPartition("t", n) for n in range(4)}
        (took,) = hand.of(Took)
        assert {event.generation for event in hand.of(Acknowledged)} == {took.generation}
        await hand.leave()

    run(scenario, corpus)
