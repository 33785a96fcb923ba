"""Builds whose coordinator lacks a rule: sessions, timers, parked calls, acknowledgements."""

import time
from collections.abc import Iterable
from dataclasses import fields

from muster.v1.group_pb2 import OffsetFetchRequest, OffsetFetchResponse
from musterd.chaos.mutants.build import Builds
from musterd.coordinator.api import group_service
from musterd.coordinator.api.handler import Coordination
from musterd.coordinator.api.offset_fetch import OffsetFetch
from musterd.coordinator.machine.commands import JoinGroup, OffsetCommit
from musterd.coordinator.machine.decide.requests import joining_id
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Committed, PartitionResult
from musterd.coordinator.machine.state import Group
from musterd.coordinator.node import assembly
from musterd.coordinator.runtime import sessions, shard, shard_time
from musterd.coordinator.runtime.answers import Loading, NotHere
from musterd.coordinator.runtime.calls import Call
from musterd.coordinator.runtime.command_router import CommandRouter, GroupRequest, _waits_again
from musterd.coordinator.runtime.coordinator_state import CoordinatorState
from musterd.coordinator.runtime.sessions import MemberKey, Sessions
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.shard_time import ShardTime
from musterd.coordinator.runtime.waiters import Barrier

BUILDS = Builds()


@BUILDS.replaces("ack_before_commit", shard)
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


@BUILDS.replaces("parked_join", shard)
class ForgetfulRouter(CommandRouter):
    """Loses the repeated Join of a member that had joined under the leader before."""

    def take(self, call: Call, command: GroupRequest, size: int) -> None:
        shard = self._shard
        group = shard.state.groups.get(command.group_id)
        if isinstance(command, JoinGroup) and not shard.proposer.busy(command.group_id):
            seats = shard.waiters._groups.get(command.group_id, {})  # type: ignore[attr-defined]
            is_parked = (joining_id(command), Barrier.JOIN) in seats
            if _waits_again(group, command) and not is_parked:
                return
        super().take(call, command, size)


@BUILDS.replaces("session_start", shard)
class Impatient(Sessions):
    """A new leader gives the members a tenth of their sessions to find it."""

    def promote(self, groups: Iterable[Group], time_ms: int) -> None:
        super().promote(groups, time_ms)
        for key, session in self._sessions.items():
            self._ends.arm(key, self._clock_ms + session.timeout_ms // 10)


@BUILDS.replaces("deposed_expiry", shard)
class Lingering(Sessions):
    """Keeps its deadlines while others lead, and runs them without a quorum, too."""

    def __init__(self) -> None:
        super().__init__()
        self._left_ms: dict[MemberKey, int] = {}
        self._left_at_ms = 0

    def demote(self) -> None:
        for key in self._sessions:
            end_ms = self._ends.get(key)
            if end_ms is not None:
                self._left_ms[key] = end_ms - self._clock_ms
                self._left_at_ms = self._time_ms
        super().demote()

    def promote(self, groups: Iterable[Group], time_ms: int) -> None:
        super().promote(groups, time_ms)
        away_ms = time_ms - self._left_at_ms
        for key, left_ms in self._left_ms.items():
            if key in self._sessions:
                self._ends.arm(key, self._clock_ms + left_ms - away_ms)
        self._left_ms.clear()

    def turn(self, time_ms: int, *, lag_ms: int, loop_round: int, heard: bool, herd: bool) -> None:
        super().turn(time_ms, lag_ms=lag_ms, loop_round=loop_round, heard=True, herd=False)


@BUILDS.replaces("shard_time_restart", shard)
class Restarted(ShardTime):
    """A new leader counts shard time from 0."""

    __slots__ = ()

    def restart(self, applied_time_ms: int) -> None:
        super().restart(0)


class Believing(Coordination):
    """Asks no quorum, and waits for nothing."""

    async def confirmed(self, shard: Shard, *, settled: bool = False) -> NotHere | Loading | None:
        del settled
        return shard.elsewhere() if shard.coordinator_state is CoordinatorState.ELSEWHERE else None


@BUILDS.replaces("read_of_many", group_service)
class BelievingFetching(OffsetFetch):
    """Answers a fetch of many groups by what it has, unless it has heard of another leader."""

    async def fetch(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        core = self._core
        if len(request.groups) > 1:
            self._core = Believing(**{one.name: getattr(core, one.name) for one in fields(core)})
        return await super().fetch(request)


BUILDS.add(
    "sleepless_clock",
    "Measures its quorum by a clock that stands still while the machine sleeps.",
    (assembly, "CLOCK", time.monotonic),
)
BUILDS.add(
    "shard_time_cap",
    "Shard time jumps over what the node slept through.",
    (shard_time, "SHARD_TIME_STEP_MS_MAX", 10**9),
)
BUILDS.add(
    "extra_round",
    "A session ends without a proof that all the member sent was read.",
    (sessions, "ROUNDS_TO_PROVE", 0),
)
