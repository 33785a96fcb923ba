"""Builds whose coordinator lacks a rule: sessions, timers, parked calls, acknowledgements."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from musterd.chaos.mutants.build import Builds, gives
from musterd.coordinator.api.frame.coordination import Coordination, Unserved
from musterd.coordinator.api.frame.handler import ActiveCall
from musterd.coordinator.api.frame.paging import OffsetsAnswer, OffsetsQuery
from musterd.coordinator.api.rpcs.offset_fetch import OffsetReads
from musterd.coordinator.machine import shard_state
from musterd.coordinator.machine.commands import GroupCommand, JoinGroup, OffsetCommit
from musterd.coordinator.machine.decide import commit
from musterd.coordinator.machine.decide.requests import joining_id
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Committed, PartitionResult, Refused
from musterd.coordinator.machine.shard_state import ShardState, refuse_for_deletions
from musterd.coordinator.machine.state import Group, Offset
from musterd.coordinator.node import assembly
from musterd.coordinator.runtime import (
    command_router,
    leadership,
    sessions,
    shard,
    shard_time,
    topic_deletion,
)
from musterd.coordinator.runtime.answers import Loading, NotHere
from musterd.coordinator.runtime.calls import Call
from musterd.coordinator.runtime.command_router import CommandRouter, GroupRequest, _waits_again
from musterd.coordinator.runtime.leadership import Leadership, LedShard
from musterd.coordinator.runtime.sessions import MemberKey, Sessions
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.shard_time import ShardTime
from musterd.coordinator.runtime.topic_registry import TopicRegistry
from musterd.coordinator.runtime.waiters import Barrier

BUILDS = Builds()


@BUILDS.replaces("ack_before_commit", leadership)
class HastyRouter(CommandRouter):
    """Says that a commit is stored as soon as it is asked for."""

    def offer(self, call: Call, size: int) -> None:
        super().offer(call, size)
        command = call.command
        if isinstance(command, OffsetCommit) and not call.ended:
            done = [
                PartitionResult(p.topic, p.partition, Error.NONE, "", superseded=False)
                for p in command.partitions
            ]
            call.answer(Committed(tuple(done)))


@BUILDS.replaces("parked_join", leadership)
class ForgetfulRouter(CommandRouter):
    """Loses the repeated Join of a member that had joined under the leader before."""

    def take(self, call: Call, command: GroupRequest, size: int) -> None:
        coordinator = self._coordinator
        group = coordinator.state.groups.get(command.group_id)
        if isinstance(command, JoinGroup) and not coordinator.proposer.busy(command.group_id):
            parked = coordinator.waiters._groups.get(command.group_id, {})  # type: ignore[attr-defined]
            is_parked = (joining_id(command), Barrier.JOIN) in parked
            if _waits_again(group, command) and not is_parked:
                return
        super().take(call, command, size)


@BUILDS.replaces("session_start", leadership)
class Impatient(Sessions):
    """A new leader gives the members a tenth of their sessions to find it."""

    def __init__(self, groups: Iterable[Group], time_ms: int) -> None:
        super().__init__(groups, time_ms)
        for key, session in self._sessions.items():
            self._ends.arm(key, self._clock_ms + session.timeout_ms // 10)


class Running(Sessions):
    """Runs without a quorum, too."""

    def turn(self, time_ms: int, **rest: Any) -> None:
        super().turn(time_ms, **rest | {"heard": True, "herd": False})


@BUILDS.replaces("deposed_expiry", shard)
class Lingering(Leadership):
    """Keeps its deadlines while others lead, and runs them without a quorum, too."""

    _left: ClassVar[WeakKeyDictionary[LedShard, tuple[int, dict[MemberKey, int]]]] = (
        WeakKeyDictionary()
    )
    """Of each shard: when this node was deposed, and what was left of its members' sessions."""

    def __init__(self, shard: LedShard) -> None:
        super().__init__(shard)
        sessions = self.sessions = Running(self.state.groups.values(), self.state.time_ms)
        deposed_ms, left = self._left.get(shard, (0, {}))
        away_ms = self.time_ms - deposed_ms
        for key, left_ms in left.items():
            if key in sessions._sessions:
                sessions._ends.arm(key, sessions._clock_ms + left_ms - away_ms)

    def release(self, let_go: Callable[[Call], None]) -> None:
        sessions = self.sessions
        left = {key: sessions._ends.get(key) for key in sessions._sessions}
        clock_ms = sessions._clock_ms
        left_ms = {key: end_ms - clock_ms for key, end_ms in left.items() if end_ms is not None}
        self._left[self._shard] = (sessions._time_ms, left_ms)
        super().release(let_go)


@BUILDS.replaces("shard_time_restart", leadership)
class Restarted(ShardTime):
    """A new leader counts shard time from 0."""

    __slots__ = ()

    def __init__(self, applied_time_ms: int = 0) -> None:
        del applied_time_ms
        super().__init__(0)


class Believing(Coordination):
    """Asks no quorum, and waits for nothing."""

    async def confirmed(self, shard: Shard, *, settled: bool = False) -> NotHere | Loading | None:
        return shard.elsewhere() if shard.coordinator_state.elsewhere else None

    async def readable(self, shards: Iterable[Shard], **how: bool) -> Unserved:
        await super().readable(shards, **how)
        return lambda shard: shard.elsewhere() if shard.coordinator_state.elsewhere else None


_read = OffsetReads._read


@BUILDS.replaces("read_of_many", OffsetReads, "_read")
async def _believes(
    self: OffsetReads,
    queries: Sequence[OffsetsQuery],
    answers: Sequence[OffsetsAnswer],
    call: ActiveCall,
    *,
    stable: bool,
) -> None:
    """Answers a fetch of many groups by what it has, unless it has heard of another leader."""
    core = call.core
    if len(queries) > 1:
        call.core = Believing(**{one.name: getattr(core, one.name) for one in fields(core)})
    await _read(self, queries, answers, call, stable=stable)


def _thawed_anew(self: Group) -> dict[tuple[str, int], Offset]:
    """Make offsets at rest anew, as for a reader: who changes them changes nothing."""
    return self.stored if isinstance(self.stored, dict) else self.stored.unpacked()


BUILDS.add(
    "forgetful_rest",
    "A commit to offsets that are at rest changes them for itself alone.",
    (Group, "thawed", _thawed_anew),
)


def _refuse_removals_alone(state: ShardState, command: GroupCommand) -> Refused | None:
    """The shipped one, but of no commit."""
    return None if isinstance(command, OffsetCommit) else refuse_for_deletions(state, command)


BUILDS.add(
    "late_commits",
    "Stores commits whose partitions were found before a topic was deleted.",
    (shard_state, "refuse_for_deletions", _refuse_removals_alone),
    (command_router, "_is_late", gives(False)),
)

BUILDS.add_all(
    ("former_topic", "A generation that was given a topic's predecessor commits to the new one.",
     commit, "_refuse_older", gives(None)),
    ("nameless_topic", "Members are not told that a topic of theirs was made again.",
     TopicRegistry, "creation_versions", gives({})),
    ("early_name", "A topic may be made again before every shard has dropped its offsets.",
     Shard, "has_dropped", gives(True)),
    ("kept_offsets", "A shard says that it has dropped the offsets of a topic, and keeps them.",
     topic_deletion.TopicDeletion, "_of", gives(())),
    ("sleepless_clock",
     "Measures its quorum by a clock that stands still while the machine sleeps.",
     assembly, "CLOCK", time.monotonic),
    ("shard_time_cap", "Shard time jumps over what the node slept through.",
     shard_time, "SHARD_TIME_STEP_MS_MAX", 10**9),
    ("extra_round", "A session ends without a proof that all the member sent was read.",
     sessions, "ROUNDS_TO_PROVE", 0),
)  # fmt: skip
