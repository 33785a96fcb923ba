"""Metrics of a node's Raft groups: elections, leaders, and the time that proposals take.

`raft` knows nothing of this: roles and terms are looked at some twenty times a second, proposals
are timed around `propose`, applying around the shard.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from musterd.coordinator.metrics.histogram import Histogram
from musterd.raft.contract import (
    Applied,
    Examination,
    NodeId,
    Outcome,
    ReplicatedLog,
    Role,
    ShardId,
    StateBatch,
    StateMachine,
    StateView,
    Unknown,
)

RESULTS: Final = ("committed", "failed", "unknown")

Done = Callable[[Outcome], None]
Propose = Callable[[bytes, Done], None]


class MeasuredJournal(Protocol):
    """The extent of a log: its first and last index, and its bytes on disk."""

    @property
    def first_index(self) -> int: ...

    @property
    def last_index(self) -> int: ...

    @property
    def disk_bytes(self) -> int:
        """About how much it holds on disk."""
        ...


class MeasuredLog(ReplicatedLog, Protocol):
    """A replica with the further properties that metrics read."""

    @property
    def journal(self) -> MeasuredJournal: ...

    @property
    def leader_heard(self) -> bool:
        """Whether it leads with a quorum, or heard from its leader just now."""
        ...

    def matches(self) -> Mapping[NodeId, int]:
        """Peer -> newest index it is known to hold; empty where this replica does not lead."""
        ...


@dataclass(slots=True)
class MeasuredProposals:
    """One shard's proposals: counted by result, timed until applied."""

    clock_s: Callable[[], float]
    pending: int = 0
    results: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RESULTS, 0))
    seconds: Histogram = field(default_factory=Histogram)

    def around(self, propose: Propose) -> Propose:
        """A function that proposes by `propose`, and counts and times what it proposes."""

        def measured(entry: bytes, done: Done) -> None:
            began_s = self.clock_s()
            self.pending += 1

            def ended(outcome: Outcome) -> None:
                self.pending -= 1
                if isinstance(outcome, Applied):
                    self.results["committed"] += 1
                    self.seconds.observe(self.clock_s() - began_s)
                else:
                    self.results["unknown" if isinstance(outcome, Unknown) else "failed"] += 1
                done(outcome)

            propose(entry, ended)

        return measured


class MeasuredMachine:
    """A state machine whose `apply` is timed."""

    def __init__(
        self, machine: StateMachine, seconds: Histogram, clock_s: Callable[[], float]
    ) -> None:
        self._machine = machine
        self._seconds = seconds
        self._clock_s = clock_s

    def apply(self, index: int, term: int, entry: bytes, batch: StateBatch) -> object:
        began_s = self._clock_s()
        result = self._machine.apply(index, term, entry, batch)
        self._seconds.observe(self._clock_s() - began_s)
        return result

    def reload(self, view: StateView) -> Iterator[None] | None:
        return self._machine.reload(view)

    def examine(self) -> Examination:
        return self._machine.examine()

    def role_changed(self, role: Role, term: int) -> None:
        self._machine.role_changed(role, term)


@dataclass(slots=True)
class Seen:
    """A shard's term, leader and elections, as the watcher last saw them."""

    term: int = 0
    leader: NodeId | None = None
    is_candidate: bool = False
    """Whether this node is one in `term`."""
    changes: int = 0
    won: int = 0
    lost: int = 0


class LeaderWatcher:
    """Counts elections and changes of leader by looking at every replica now and then."""

    def __init__(self, logs: Sequence[ReplicatedLog]) -> None:
        self._logs = logs
        self.seen: Mapping[ShardId, Seen] = {log.shard: Seen() for log in logs}

    def turn(self) -> None:
        """Look. Cheap where nothing has moved: one comparison per shard."""
        for log in self._logs:
            seen = self.seen[log.shard]
            if log.term != seen.term or seen.leader is None:
                self._look(log, seen)

    def _look(self, log: ReplicatedLog, seen: Seen) -> None:
        role = log.role
        if seen.is_candidate and (log.term != seen.term or role is not Role.CANDIDATE):
            seen.is_candidate = False
            seen.lost += log.term != seen.term or role is not Role.LEADER
            seen.won += log.term == seen.term and role is Role.LEADER
        if role is Role.LEADER and log.term != seen.term:
            seen.won += 1  # stood and won between two looks
        if log.term != seen.term:
            seen.term, seen.leader = log.term, None
        if role is Role.CANDIDATE:
            seen.is_candidate = True
        if log.leader is not None:
            seen.leader = log.leader
            seen.changes += 1
