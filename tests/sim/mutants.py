"""Builds with one safety measure taken out: the simulator must catch each, or it proves nothing.

Every mutant is a subclass made here; the shipped code has no switches.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import raft.driver
from raft.codec import Message
from raft.core import PeerNode
from raft.journal import Journal
from raft.replica import Replica
from tests.sim.faults import WEIGHTS
from tests.sim.simulation import SETTINGS, Scenario


class WithoutTruncationGuard(Replica):
    """Hands appends to PySyncObj as they come: it cuts behind prevLogIdx whatever matches."""

    def _keep_matching(self, message: Message) -> None:
        entries = message["entries"]
        self._verified = message["prevLogIdx"] + len(entries)
        message["commit_index"] = self._append_commit(message["commit_index"], self._verified)


class WithoutSnapshotCommitCap(Replica):
    """Believes that a snapshot chunk's commit index holds for its own log."""

    def _snapshot_commit(self, leader_commit: int) -> int:
        return leader_commit


class WithoutMessageHold(Replica):
    """Sends before the disk has what the message promises."""

    def _hold(self, message: Message) -> bool:
        return False


class WithoutDurableCap(Replica):
    """Counts its own log as durable as soon as it is appended."""

    def _durable_cap(self) -> int:
        return self._log.last_index


class ForgetfulJournal(Journal):
    """Keeps the term on disk, but not whom it voted for."""

    def set_hard_state(self, term: int, voted_for: int | None) -> None:
        super().set_hard_state(term, None)
        self._voted_for = voted_for


class WithoutAdmission(Replica):
    """Counts a replaced node as if it remembered what the old one had promised."""

    def _counts(self, peer: PeerNode) -> bool:
        return True

    @property
    def learner(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Mutant:
    """A build, and the world in which it is sought."""

    name: str
    scenario: Scenario
    replica: type[Replica] = Replica
    journal: type[Journal] = Journal

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Drivers made inside use this build."""
        before = raft.driver.Replica, raft.driver.Journal
        raft.driver.Replica, raft.driver.Journal = self.replica, self.journal
        try:
            yield
        finally:
            raft.driver.Replica, raft.driver.Journal = before


# Split votes, late requests, voters that die with their vote on its way and are back at once.
SPLIT_VOTES = Scenario(
    "split-votes",
    nodes=5,
    network="udp",
    settings=replace(
        SETTINGS, election_min_ms=310, election_max_ms=330, bystander_min_ms=2, bystander_max_ms=6
    ),
    weights={"crash": 40, "transfer": 5, "isolation": 2},
    pause_s=0.25,
    restart_s=0.05,
    latency_s=0.03,
    crash_after_vote=0.6,
)
REPLACEMENTS = Scenario(
    "replacements",
    weights={**WEIGHTS, "replace_then_crash": 60},
)

MUTANTS = (
    Mutant("truncation_guard", Scenario("udp3", network="udp"), WithoutTruncationGuard),
    Mutant("snapshot_commit_cap", Scenario("fifo3"), WithoutSnapshotCommitCap),
    Mutant("message_hold", Scenario("fifo3"), WithoutMessageHold),
    Mutant("durable_cap", Scenario("fifo3"), WithoutDurableCap),
    Mutant("vote_durability", SPLIT_VOTES, journal=ForgetfulJournal),
    Mutant("admission", REPLACEMENTS, WithoutAdmission),
)
