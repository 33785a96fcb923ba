"""A small run as its evidence would tell it, sound in every point; tests break one each."""

from musterd.demo.events import Acknowledged, Attempt, Closed, Compared, Ended, Reading, Took
from musterd.demo.evidence import (
    Audit,
    Evidence,
    History,
    NodeKill,
    NodeRestart,
    Round,
    WorkerAdded,
    WorkerKill,
)
from musterd.demo.ledger import CLAIM, NOBODY, WRITE, Note
from musterd.demo.watch import GroupView

MS = 1_000_000
LINES = (10, 10)


class Story:
    """Two workers and two partitions; worker-1 is killed, worker-3 comes."""

    def __init__(self):
        self.now = 0
        self.events = []
        self.notes = []
        self.rows = {0: (0, NOBODY, 0), 1: (0, NOBODY, 0)}
        self.committed = {0: 0, 1: 0}

    def tick(self):
        self.now += MS
        return self.now

    def take(self, worker, token, term, *partitions):
        member = f"{worker}-x"
        started = self.tick()
        for number in partitions:
            former_token, former, offset = self.rows[number]
            self.notes.append(
                Note(
                    *(len(self.notes) + 1, self.tick(), CLAIM, True, number, offset, 0),
                    *(token, member, former_token, former),
                )
            )
            self.rows[number] = token, member, offset
        resumed = {number: self.rows[number][2] for number in partitions}
        committed = {number: self.committed[number] for number in partitions}
        event = Took(self.tick(), token, member, started, term, resumed, committed, [])
        self.events.append((worker, event))

    def count(self, worker, number, end):
        token, member, offset = self.rows[number]
        self.events.append((worker, Reading(self.tick(), number, offset, end)))
        self.notes.append(
            Note(
                *(len(self.notes) + 1, self.tick(), WRITE, True, number, end, end - offset),
                *(token, member, token, member),
            )
        )
        self.rows[number] = token, member, end

    def commit(self, worker, term, number):
        token, _, offset = self.rows[number]
        self.events.append((worker, Attempt(self.tick(), token, {number: offset})))
        self.events.append((worker, Acknowledged(self.tick(), token, term, {number: offset})))
        self.committed[number] = offset

    def compare(self, worker, old, new, *partitions):
        token = self.rows[partitions[0]][0]
        committed = {number: self.committed[number] for number in partitions}
        started = self.tick()
        event = Compared(self.tick(), token, old, new, started, new, committed)
        self.events.append((worker, event))


def sound() -> Evidence:
    """Everything as it should be."""
    story = Story()
    story.take("worker-1", 1, 1, 0)
    story.take("worker-2", 1, 1, 1)
    began_ns = story.tick()
    for worker, number in (("worker-1", 0), ("worker-2", 1)):
        story.count(worker, number, 3)
        story.commit(worker, 1, number)
    kill = NodeKill(
        25.0,
        story.tick(),
        2,
        GroupView(2, 1, 5, "Stable", 1, 2),
        -9,
        GroupView(0, 2, 5, "Stable", 1, 2),
    )
    for worker, number in (("worker-1", 0), ("worker-2", 1)):
        story.count(worker, number, 5)
        story.compare(worker, 1, 2, number)
        story.commit(worker, 2, number)
    worker_kill = WorkerKill(55.0, story.tick(), "worker-1", "worker-1-x", (0,), -9, True)
    story.events.append(("worker-1", Reading(story.tick(), 0, 5, 7)))
    story.take("worker-2", 2, 2, 0, 1)
    story.count("worker-2", 0, 7)
    story.commit("worker-2", 2, 0)
    added = WorkerAdded(70.0, story.tick(), "worker-3", True)
    story.events.append(("worker-2", Ended(story.tick(), 2, False, [])))
    story.take("worker-2", 3, 2, 0)
    story.take("worker-3", 3, 2, 1)
    for worker, number in (("worker-2", 0), ("worker-3", 1)):
        story.count(worker, number, 10)
        story.commit(worker, 2, number)
        story.events.append((worker, Closed(story.tick(), 5, 5)))
    return Evidence(
        lines=LINES,
        batch=(2, 2),
        workers=2,
        began_ns=began_ns,
        finished=True,
        expected_digest="d",
        found_digest="d",
        tokens=20,
        events=story.events,
        notes=story.notes,
        audit=Audit(samples=3),
        final={0: 10, 1: 10},
        stored={0: 10, 1: 10},
        node_kill=kill,
        node_restart=NodeRestart(40.0, 2, True),
        worker_kill=worker_kill,
        worker_added=added,
        exits={"worker-1": -9, "worker-2": 0, "worker-3": 0},
        verify=(0, "3 nodes"),
        history=history(story),
        leftovers=[],
    )


def history(story) -> History:
    """What a replay would say of the story."""
    causes = (
        ("member_joined", "worker-1-x", 0, 2),
        ("session_expiry", "worker-1-x", 2, 1),
        ("member_joined", "worker-3-x", 1, 2),
    )
    rounds = tuple(
        Round(number + 1, "published", trigger, member, "why", 10, before, after, number or None)
        for number, (trigger, member, before, after) in enumerate(causes)
    )
    return History(
        engine="spark",
        exit_code=0,
        message="",
        sound=True,
        counts={"rebalances": 3, "commits": 7},
        digests_up_to=90,
        last_commit=80,
        committed=dict(story.committed),
        rounds=rounds,
        owners=frozenset((n.partition, n.token, n.member) for n in story.notes),
    )
