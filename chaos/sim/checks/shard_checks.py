"""Checks one shard's log, votes, leaders and events in every run, whatever fails.

The checker sees every append, cut, vote, apply and turn of every replica, and every answer to a
client. A violation is kept once per kind and subject. The first letter of its kind says what it is:

    H   committed data is lost or diverges
    S   one more crash would do that
    A   somebody who had to be served was not
    L   the shard did not come to rest
    X   something raised

What clients saw is judged by the checkers of chaos/check (group_history.py), under the names of
their invariants, I1 to I17.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from musterd.chaos.history import NodeState
from musterd.chaos.verdict import Violation
from musterd.raft.contract import Role
from musterd.raft.replica.replica import Replica

SUBJECT = ("shard", "group", "topic", "partition")
"""Facts that say what a violation is about; the others say how it came."""

NS = 1e9

VIOLATIONS_MAX = 50
"""Kept of one shard."""

Position = tuple[int, int]
"""Index and term."""


Holders = Callable[[int, int], int]
"""How many nodes would have the entry of this index and term after a power cut now."""


def at_s(one: Violation) -> float:
    """When it was, in virtual seconds."""
    return round((one.at_ns or 0) / NS, 4)


@dataclass(slots=True)
class Counts:
    """Counts of what a run did, so that a run that did nothing cannot pass."""

    elections: int = 0
    crashes: int = 0
    commits: int = 0
    acked: int = 0
    reads: int = 0
    snapshots: int = 0
    cuts: int = 0
    generations: int = 0
    replaced: int = 0
    upgraded: int = 0
    """Groups that became modern ones, and classic ones again."""
    downgraded: int = 0
    deleted: int = 0
    """Groups, by an operator."""
    expired: int = 0
    """Offsets."""
    handed_out: int = 0
    """Member ids."""
    atomic: int = 0
    """Commits, that were applied."""
    beats: int = 0
    """Heartbeats that were answered."""
    altered: int = 0
    """Settings of groups, as an operator was told."""
    kicked: int = 0
    """Members, as an operator was told."""
    reset: int = 0
    """Offsets of a group without members, as an operator was told."""
    grown: int = 0
    """Topics, made or grown, as an operator was told."""
    topics_deleted: int = 0
    topics_made_again: int = 0
    """Of those that were deleted."""
    held_back: int = 0
    """Commits that go forward only and would have gone back."""
    waited_for: int = 0
    """First rounds that were held open because many Joins came."""
    ended_without_topic: int = 0
    """Workers that ended because nobody had made their topic yet."""
    ended_fenced: int = 0
    """Static workers that ended because another one had their instance id."""
    stale_join: int = 0
    """Owners that overlap because a Join counted that was no longer true (stale_joins.py)."""


@dataclass(slots=True)
class _Committed:
    term: int
    command: bytes
    commit_term: int


@dataclass(slots=True)
class _Replica:
    commit_index: int = 0
    role: Role = Role.FOLLOWER
    term: int = 0
    incarnation: int = 0
    applied: dict[int, int] = field(default_factory=dict)
    distrusted: bool = False
    """In quarantine, and no other state has been loaded since."""


class ShardChecker:
    """All checks of one shard over a whole run."""

    def __init__(self, shard: int, nodes: int, steady_s: float | None = None) -> None:
        """`steady_s`: nobody new may be elected after so many virtual seconds."""
        self.shard, self.nodes, self._steady_s = shard, nodes, steady_s
        self.now = 0.0
        self.counts = Counts()
        self.violations: list[Violation] = []
        self._committed: dict[int, _Committed] = {}
        self.committed_index = 0
        """The highest that was ever seen."""
        self._appended: dict[Position, tuple[bytes, Position | None]] = {}
        self._leaders: dict[int, tuple[int, int]] = {}
        self._votes: dict[tuple[int, int], int] = {}
        self._digests: dict[int, bytes] = {}
        self._wrong: set[tuple[int, bytes]] = set()
        """Index and digest of states that differ, by a fault or as a copy of such a one."""
        self._happened: dict[int, tuple[object, ...]] = {}
        self._replicas = [_Replica() for _ in range(nodes)]
        self.differing: dict[int, NodeState] = {}
        """Nodes whose states differ, by a fault (differing_states.py)."""
        self.node_states: list[NodeState] = []
        """Of those that did, and what was found of them."""

    @property
    def now_ns(self) -> int:
        return round(self.now * NS)

    def violated(self, kind: str, **facts: object) -> None:
        """Keep the first violation of each kind and subject."""
        facts["shard"] = self.shard
        about = ", ".join(f"{name} {facts[name]}" for name in SUBJECT if name in facts)
        self.keep(Violation(kind, str(facts), self.now_ns, about))

    def keep(self, one: Violation) -> None:
        """The same, of one that was found later."""
        known = any((v.invariant, v.about) == (one.invariant, one.about) for v in self.violations)
        if not known and len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(one)

    # -- log

    def appended(self, node: int, at: Position, command: bytes, previous: Position | None) -> None:
        """Log matching: index and term name one command and one predecessor."""
        known = self._appended.get(at)
        if known is None:
            self._appended[at] = (command, previous)
            return
        if known[0] != command:
            self.violated("H-log-matching", node=node, at=at)
        if previous is not None:
            if known[1] is None:
                self._appended[at] = (command, previous)
            elif known[1] != previous:
                self.violated("H-log-matching-previous", node=node, at=at)

    def restarted_alone(self, last_index: int, term: int) -> None:
        """The only node of its cluster lost what nobody else saw and nobody was told of.

        It may elect itself again in a term that never reached its disk.
        """
        self._appended = {at: e for at, e in self._appended.items() if at[0] <= last_index}
        self._leaders = {t: who for t, who in self._leaders.items() if t <= term}

    def cut(self, node: int, removed: Iterable[Position], why: str) -> None:
        """A follower never drops from its log's end what is committed."""
        for index, term in removed:
            self.counts.cuts += 1
            known = self._committed.get(index)
            if known is not None and known.term == term:
                self.violated("S-committed-entry-dropped", node=node, index=index, why=why)
                return

    # -- votes

    def voted(self, node: int, term: int, candidate: int) -> None:
        """A vote left a node: at most one a term, over all its lives (thesis section 3.4)."""
        known = self._votes.setdefault((node, term), candidate)
        if known != candidate:
            self.violated("H-voted-twice", node=node, term=term, first=known, second=candidate)

    def begun_again(self) -> None:
        """Every node was initialised anew: what was voted for was a cluster that is no more."""
        self._votes.clear()

    # -- state

    def applied(self, node: int, incarnation: int, index: int, entry: bytes, digest: bytes) -> None:
        """Check that what is applied is committed, and nothing is applied twice."""
        if node in self.differing:
            self._wrong.add((index, digest))
        else:
            self._digests.setdefault(index, digest)
        committed = self._committed.get(index)
        if committed is not None and committed.command[1:] != entry:
            self.violated("H-applied-uncommitted-entry", node=node, index=index)
        mine = self._replicas[node].applied
        if mine.get(index) == incarnation:
            self.violated("H-applied-twice", node=node, index=index)
        mine[index] = incarnation

    def happened(self, node: int, index: int, events: tuple[object, ...]) -> None:
        """Every replica sees the same events at the same index, in the same order.

        Observers and the export read them; the digest covers only the state that they leave.
        """
        if node in self.differing:
            return
        known = self._happened.setdefault(index, events)
        if known != events:
            differ = [pair for pair in zip(known, events, strict=False) if pair[0] != pair[1]]
            first = [str(one)[:200] for one in differ[0]] if differ else []
            self.violated("H-events-diverged", node=node, index=index, first=first)

    def reloaded(self, node: int, applied_index: int, digest: bytes, *, snapshot: bool) -> None:
        """State came from disk or from a snapshot.

        Who is not in quarantine may take a state that differs, and differs then, too.
        """
        self.counts.snapshots += snapshot
        mine, known = self._replicas[node], self._digests.get(applied_index)
        state = self.differing.get(node)
        still = state is not None and applied_index >= state.from_index
        if still and known != digest and not snapshot:
            return
        if known != digest and (applied_index, digest) in self._wrong and not mine.distrusted:
            self.differs(node, applied_index)
            return
        mine.distrusted = False
        if state is not None:
            del self.differing[node]
            self.node_states.append(replace(state, until_ns=self.now_ns, found="repaired"))

    def differs(self, node: int, index: int) -> None:
        """Its state is another than the log says, as of this index."""
        now = self.now_ns
        state = NodeState(node, "diverged", now, now, "running", "", self.shard, from_index=index)
        self.differing[node] = state

    def over(self, node: int, index: int, digest: bytes) -> None:
        """The run ends with this state, which is to be what the log says.

        It is that also where what was stored too much was refused, or went with its group.
        """
        state = self.differing.pop(node, None)
        if state is not None:
            found = "repaired" if self._digests.get(index) == digest else "running"
            self.node_states.append(replace(state, until_ns=self.now_ns, found=found))

    # -- turns

    def turned(self, node: int, incarnation: int, seen: Replica, holders: Holders) -> None:
        """Check one replica after a turn of its node."""
        mine = self._replicas[node]
        if mine.incarnation != incarnation:
            # A restart forgets the commit index; it does not go below what is applied.
            self._replicas[node] = mine = _Replica(incarnation=incarnation, applied=mine.applied)
        if seen.role is Role.LEADER:
            self._check_leader(node, seen, mine)
        if seen.distrusted and node not in self.differing:
            self.violated("H-right-state-in-quarantine", node=node)
        mine.distrusted |= seen.distrusted
        mine.role, mine.term = seen.role, seen.term
        commit = seen.commit_index
        if commit < mine.commit_index:
            self.violated("S-commit-index-went-back", node=node, was=mine.commit_index, now=commit)
        if commit > mine.commit_index:
            self._check_commit(node, seen, mine.commit_index, holders)
        mine.commit_index = max(commit, mine.commit_index)

    def _check_leader(self, node: int, seen: Replica, mine: _Replica) -> None:
        me = (node, mine.incarnation)
        known = self._leaders.setdefault(seen.term, me)
        if known != me:
            self.violated("H-two-leaders-in-a-term", term=seen.term, first=known, second=me)
        if mine.role is Role.LEADER and mine.term == seen.term:
            return
        self.counts.elections += 1
        if self._steady_s is not None and self.now > self._steady_s:
            self.violated("A-leader-disrupted", leader=node, term=seen.term)
        first, last = seen.journal.first_index, seen.journal.last_index
        for index, entry in self._committed.items():
            if entry.commit_term >= seen.term or index < first:
                continue
            if index > last or _entry_at(seen, index)[0] != entry.term:
                self.violated("H-leader-completeness", leader=node, term=seen.term, index=index)
                return

    def _check_commit(self, node: int, seen: Replica, before: int, holders: Holders) -> None:
        first, top = seen.journal.first_index, min(seen.commit_index, seen.journal.last_index)
        for index in range(max(before + 1, first), top + 1):
            term, command = _entry_at(seen, index)
            known = self._committed.get(index)
            if known is None:
                self._committed[index] = _Committed(term, command, seen.term)
                self.committed_index = max(self.committed_index, index)
                self.counts.commits += 1
            elif (known.term, known.command) != (term, command):
                self.violated(
                    "H-commit-divergence", node=node, index=index, was=known.term, now=term
                )
        if seen.role is Role.LEADER and top >= max(first, before + 1):
            count = holders(top, _entry_at(seen, top)[0])
            if count * 2 <= self.nodes:
                self.violated(
                    "S-commit-without-durable-majority", leader=node, index=top, holders=count
                )

    # -- end

    def finished(self, applied: list[int], last_indexes: list[int], leaders: int) -> None:
        """After the world was healed and left alone: indexes, per node."""
        if leaders != 1 or len(set(applied)) != 1 or set(last_indexes) != set(applied):
            self.violated("L-not-converged", applied=applied, last=last_indexes, leaders=leaders)


def _entry_at(replica: Replica, index: int) -> tuple[int, bytes]:
    command, _, term = replica.journal.read(index, 1, 1)[0]
    return term, command
