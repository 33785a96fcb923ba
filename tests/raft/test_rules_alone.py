"""Rules that seeds hardly ever miss: each has a script, and a Replica without it fails the script.

The simulator found nothing in 250 seeds without commit cap, next index, sticky voters or pre-vote
alone. They stay because the thesis demands them; here is why.
"""

from collections.abc import Callable

import pytest

import musterd.raft.driver
from musterd.raft import codec
from musterd.raft.codec import Message
from musterd.raft.replica.pysyncobj_adapter import PeerNode
from musterd.raft.replica.replica import Replica
from tests.raft.flaws.hand import HEARTBEAT_S, Options
from tests.raft.flaws.hand_replica import SHARD, ReplicaGroup


def _frame(group: ReplicaGroup, src: int, message: Message) -> bytes:
    return codec.encode_frame(group.driver(src).sender(), [(SHARD, message)])


def empty_append_commits_only_what_it_verified() -> None:
    """Thesis Figure 3.1, AppendEntries 5: the commit index stops at the last entry that matched."""
    g = ReplicaGroup(Options())
    g.elect(0)
    g.replicate(0, [1, 2])
    g.isolate(0)
    g.propose(0, 3)
    g.elect(1, [2])
    g.propose(1, 5)
    g.replicate(1, [2])
    own, commit = g.end(0), g.commit_index(0)
    assert own == (5, 1)
    heartbeat = {
        "type": "append_entries",
        "term": g.term(1),
        "seq": 1,
        "commit_index": g.commit_index(1),
        "prevLogIdx": 2,
        "prevLogTerm": 1,
        "entries": [],
    }
    g.hand_over(1, 0, _frame(g, 1, heartbeat))
    assert g.term(0) == g.term(1)
    assert g.end(0) == own, "nothing was cut"
    assert g.commit_index(0) == commit == 2


def late_ack_sends_nothing_twice() -> None:
    """An ack of the first of two messages does not have the second sent again."""
    g = ReplicaGroup(Options(batch_bytes=8))
    g.elect(0)
    g.replicate(0, [1, 2])
    g.propose(0, 2)
    assert len(g.appends(0, 1)) == 2
    g.deliver(0, 1)
    g.deliver(1, 0, 1)
    g.tick(0, HEARTBEAT_S)
    assert not g.appends(0, 1)


def voter_that_hears_its_leader_ignores_candidates() -> None:
    """Thesis section 4.2.3: a request of a newer term deposes nobody who is heard."""
    g = ReplicaGroup(Options())
    g.elect(0)
    for _ in range(10):
        g.replicate(0, [1, 2], 1)
    request = {
        "type": "request_vote",
        "term": g.term(0) + 5,
        "last_log_index": 100,
        "last_log_term": 100,
    }
    before = g.term(1)
    for voter in (0, 1):
        g.hand_over(2, voter, _frame(g, 2, request))
    assert g.leads(0)
    assert g.term(1) == before
    g.now += 1.0  # nothing was heard for a while: now it listens
    g.hand_over(2, 1, _frame(g, 2, request))
    assert g.term(1) == before + 5


def isolated_node_never_raises_its_term() -> None:
    """Thesis section 9.6: without a majority's pre-votes there is no election."""
    g = ReplicaGroup(Options())
    g.elect(0)
    g.replicate(0, [1, 2])
    before = g.term(2)
    for _ in range(100):  # its connections stand, but nothing arrives
        g.tick(2, 0.1)
        for other in (0, 1):
            g.drop(2, other)
    assert g.term(2) == before


def clock_that_moves_within_a_tick_starts_no_election() -> None:
    """PySyncObj reads the clock again after the decision was made that it is not time yet."""
    g = ReplicaGroup(Options())
    g.elect(0)
    g.replicate(0, [1, 2])
    replica, before = g.replica(1), g.term(1)
    reads = 0

    def clock() -> float:
        nonlocal reads
        reads += 1
        return 1.0 + g.now + (0.0 if reads == 1 else 5.0)

    replica._election_deadline = 1.0 + g.now + 0.5
    replica._clock = clock
    musterd.raft.driver.pysyncobj_pin.use_clock(clock)
    replica._tick()
    assert reads > 1
    assert g.term(1) == before


class WithoutCommitCap(Replica):
    """Commits whatever the leader says it committed."""

    def _append_commit(self, leader_commit: int, verified: int) -> int:
        return leader_commit


class PullsNextIndexBack(Replica):
    """Lets an ack set next index to the place it acknowledges, as SyncObj does."""

    def _on_reply(self, peer: PeerNode, message: Message) -> None:
        super()._on_reply(peer, message)
        if self.leads and message["success"]:
            self._next[peer] = message["next_node_idx"]
            self._progress[peer].clear()
            self._send_wanted = True


class NeverSticky(Replica):
    """Listens to every candidate."""

    def _sticky(self) -> bool:
        return False


class StandsAtOnce(Replica):
    """Asks for no pre-vote."""

    def _may_elect(self, now: float) -> bool:
        return True


class ShowsItsDeadline(Replica):
    """Leaves the deadline in sight during the base's tick."""

    def _tick_unled(self) -> None:
        if self._election_deadline < self._clock() and not self._may_elect(self._clock()):
            return
        self._base_tick()


RULES: list[tuple[Callable[[], None], type[Replica]]] = [
    (empty_append_commits_only_what_it_verified, WithoutCommitCap),
    (late_ack_sends_nothing_twice, PullsNextIndexBack),
    (voter_that_hears_its_leader_ignores_candidates, NeverSticky),
    (isolated_node_never_raises_its_term, StandsAtOnce),
    (clock_that_moves_within_a_tick_starts_no_election, ShowsItsDeadline),
]


@pytest.mark.parametrize(("script", "_build"), RULES, ids=[r[0].__name__ for r in RULES])
def test_the_rule_holds(script: Callable[[], None], _build: type[Replica]) -> None:
    """The shipped Replica keeps it."""
    script()


@pytest.mark.parametrize(("script", "build"), RULES, ids=[r[0].__name__ for r in RULES])
def test_without_the_rule_the_script_fails(
    script: Callable[[], None], build: type[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Replica without it does not."""
    monkeypatch.setattr(musterd.raft.driver, "Replica", build)
    with pytest.raises(AssertionError):
        script()
