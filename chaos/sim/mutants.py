"""Builds with one safety measure taken out: the simulator must catch each, or it proves nothing.

Every mutant is a subclass made here; the shipped code has no switches.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import Any

import coordinator.shard
import raft.driver
from chaos.sim.faults import FIRST_START_WEIGHTS, WEIGHTS
from chaos.sim.simulation import SETTINGS, Scenario
from coordinator.liveness import Liveness
from coordinator.machine import decide_commit, decide_removal, shard_state
from coordinator.machine.commands import OffsetCommit, OffsetDelete
from coordinator.machine.decision import Decision
from coordinator.machine.shard_state import ShardState
from coordinator.machine.state import Group
from raft.codec import Message
from raft.core import PeerNode
from raft.journal import Journal
from raft.peers import PeerBook
from raft.replica import Replica


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


class WithoutIntroduction(PeerBook):
    """Counts from the start, whoever has or has not heard of it."""

    @property
    def introduced(self) -> bool:
        return True

    @introduced.setter
    def introduced(self, _: bool) -> None:
        return


class WithoutReadRound(Replica):
    """Takes its own word for it that it still leads."""

    def read_index(self, done: Callable[[bool], None]) -> None:
        done(self.ready)


class Impatient(Liveness):
    """A new leader gives the members a tenth of their sessions to find it."""

    def promote(self, groups: Iterable[Group], time_ms: int) -> None:
        super().promote(groups, time_ms)
        for key, session in self._sessions.items():
            self._ends.arm(key, self._clock_ms + session.timeout_ms // 10)


_decide = import_module("coordinator.machine.decide")  # the package has a function of that name
_decide_offset_delete = _decide.decide_offset_delete


class Hasty(decide_removal._Due):
    """Counts from the commit alone, also where the group had members until just now."""

    def __init__(self, group: Group, wall_ms: int, retention_ms: int) -> None:
        super().__init__(dataclasses.replace(group, emptied_wall_ms=0), wall_ms, retention_ms)


def _no_floor(_state: ShardState, _events: object) -> tuple[()]:
    """Without the floor: a group that comes back counts from 1."""
    return ()


def _say_deleted(group: Group | None, command: OffsetDelete) -> Decision:
    """Says that the offsets are gone, and leaves every other one where it is."""
    events, reply = _decide_offset_delete(group, command)
    return Decision(events[1::2], reply)


_refuse, _commit = decide_commit._refuse, decide_commit._commit


def _any_generation(group: Group | None, command: OffsetCommit) -> Decision | None:
    """Without the fence: whoever is a member may commit."""
    if group is not None and command.generation >= 0:
        command = dataclasses.replace(command, generation=group.generation)
    return _refuse(group, command)


def _any_order(group: Group | None, command: OffsetCommit, *rest: Any) -> Any:
    """Without commit_seq: whatever comes last stands."""
    return _commit(group, dataclasses.replace(command, commit_seq=0), *rest)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A build, and the world in which it is sought.

    `patches`: (module, name in it, what takes its place).
    """

    name: str
    scenario: Scenario
    patches: tuple[tuple[ModuleType, str, Any], ...]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Nodes that start inside run this build."""
        before = [(module, name, getattr(module, name)) for module, name, _ in self.patches]
        for module, name, value in self.patches:
            setattr(module, name, value)
        try:
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)


def _replica(build: type[Replica]) -> tuple[tuple[ModuleType, str, Any], ...]:
    return ((raft.driver, "Replica", build),)


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

FIRST_START = Scenario(
    "first-start", weights=FIRST_START_WEIGHTS, chaos_s=12.0, pause_s=0.3, late_start_s=4.0
)
"""One node is provisioned and not started until seconds later; others lose their disks."""

LOST_LINKS = Scenario("lost-links", weights={"reconnect": 90, "pause": 5, "stall": 5}, pause_s=0.1)
"""A leader that both followers lose at once is deposed before it notices."""

GROUPS_SETTINGS = replace(
    SETTINGS,
    log_disk_bytes=8000,
    log_trim_bytes=1000,
    log_memory_bytes=3000,
    window_bytes=2000,
    message_bytes=600,
    control_bytes=700,
    frame_bytes=2000,
    chunk_bytes=600,
    snapshot_log_bytes=30000,
)
"""As small for entries of the coordinator, which are some hundred bytes long."""
GROUPS = tuple(
    Scenario(
        f"groups-{net}",
        network=net,
        shards=shards,
        members=6,
        chaos_s=10.0,
        settings=GROUPS_SETTINGS,
    )
    for net, shards in (("fifo", 1), ("late", 2), ("udp", 1))
)
# Members come and go, and old requests come again.
CHURN = replace(GROUPS[0], name="groups-churn", members=8, repeats=0.7, pause_s=1.0)

STATICS = replace(CHURN, name="groups-statics", statics=True)

REMOVALS = replace(
    STATICS, name="groups-removals", members=4, removals=True, chaos_s=14.0, repeats=0.4
)
"""Groups that are empty for a while, are deleted or expire, and come back."""

KILLS = replace(
    GROUPS[0],
    name="groups-kills",
    members=6,
    weights={"crash": 1},
    pause_s=1e9,
    patience=4.0,
    kills=True,
    chaos_s=24.0,
)
"""Nothing fails but the leader, at a chosen point of a round."""

MUTANTS = (
    Mutant("truncation_guard", Scenario("udp3", network="udp"), _replica(WithoutTruncationGuard)),
    Mutant("snapshot_commit_cap", Scenario("fifo3"), _replica(WithoutSnapshotCommitCap)),
    Mutant("message_hold", Scenario("fifo3"), _replica(WithoutMessageHold)),
    Mutant("durable_cap", Scenario("fifo3"), _replica(WithoutDurableCap)),
    Mutant("vote_durability", SPLIT_VOTES, ((raft.driver, "Journal", ForgetfulJournal),)),
    Mutant("admission", REPLACEMENTS, _replica(WithoutAdmission)),
    Mutant("introduction", FIRST_START, ((raft.driver, "PeerBook", WithoutIntroduction),)),
    Mutant("read_round", LOST_LINKS, _replica(WithoutReadRound)),
    Mutant("generation_fence", CHURN, ((decide_commit, "_refuse", _any_generation),)),
    Mutant("commit_seq", CHURN, ((decide_commit, "_commit", _any_order),)),
    Mutant("generation_floor", REMOVALS, ((shard_state, "_raise_floor_counted", _no_floor),)),
    Mutant("deletion", REMOVALS, ((_decide, "decide_offset_delete", _say_deleted),)),
    Mutant("retention", REMOVALS, ((decide_removal, "_Due", Hasty),)),
    Mutant("session_start", KILLS, ((coordinator.shard, "Liveness", Impatient),)),
)
