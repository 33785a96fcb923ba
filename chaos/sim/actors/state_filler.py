"""Clients that fill the state up to its limits, and delete their groups once nothing fits.

What does not grow the state has to pass meanwhile: deletions, and commits over offsets that are
there. And the state exceeds its limit by no more than growth.py allows.
"""

from functools import partial
from typing import Final

from musterd.chaos.sim.actors.members import TOPIC, Member, Members
from musterd.chaos.sim.checks.applied import Applied
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.engine.world import World
from musterd.coordinator.machine.commands import DeleteGroup, OffsetCommit, PartitionCommit
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Committed, Done, Refused
from musterd.coordinator.runtime.answers import Answer
from musterd.coordinator.runtime.growth import GOES_ON_SHARE, StateLimits

LIMITS: Final = StateLimits(group=30_000, shard=50_000, node=10**9)
"""A group meets its own limit, two of them together the shard's."""

SLACK_BYTES: Final = 10_000
"""Commits that take another member's id, and larger numbers: 300 bytes for each offset at most."""

FILLERS: Final = 3
AT_ONCE: Final = 10
METADATA: Final = "m" * 200
REFUSALS: Final = 4
"""After so many a client deletes its group."""


def _weigh(checker: ShardChecker, one: Applied) -> None:
    held = one.shard.state.bytes
    if held > int(LIMITS.shard * GOES_ON_SHARE) + SLACK_BYTES:
        checker.violated("A-state-above-limit", node=one.node, index=one.index, bytes=held)


def start(world: World, members: Members) -> None:
    """The clients of each shard."""
    for shard in range(world.scenario.shards):
        checker = members.checkers[shard]
        checker.watches.append(partial(_weigh, checker.shard))
        for number in range(FILLERS):
            filler = Filler(members, shard, f"filler{number}-{shard}", f"f{number}", "")
            world.schedule(1.0 + 0.2 * number, filler.fill)


class Filler(Member):
    """Commits to more and more partitions, and looks now and then whether the first still works."""

    _next = _refusals = 0

    def fill(self) -> None:
        """The next partitions, and the first one once more."""
        self._commit_seq += 1
        places = [0, *range(self._next + 1, self._next + AT_ONCE)]
        partitions = tuple(
            PartitionCommit(TOPIC, place, self._commit_seq, METADATA, None) for place in places
        )
        self._call(OffsetCommit(self._group, "", -1, 0, partitions), self._stored)

    def _stored(self, answer: Answer) -> None:
        if isinstance(answer, Committed):
            first, *others = (result.error for result in answer.partitions)
            if first is not Error.NONE:
                # Its offset is there since the first commit, so this one adds nothing.
                self._checker.shard.violated("A-refused-without-growth", group=self._group)
            grown = all(error is Error.NONE for error in others)
        elif isinstance(answer, Refused) and answer.error is Error.POLICY_VIOLATION:
            grown = False
            if self._next:
                self._checker.shard.violated("A-refused-without-growth", group=self._group)
        else:
            raise TypeError(f"an answer out of place: {answer}")
        self._next += AT_ONCE * grown
        self._refusals += not grown
        self._attempt += 1
        if grown:
            self._checker.shard.counts.acked += 1
        else:
            self._world.count("state_full")
        then = self._delete if self._refusals >= REFUSALS else self.fill
        self._later(0.03 + 0.1 * self._rng.random(), self._attempt, then)

    def _delete(self) -> None:
        self._next = self._refusals = 0
        self._call(DeleteGroup(self._group), self._deleted)

    def _deleted(self, answer: Answer) -> None:
        gone = isinstance(answer, Refused) and answer.error is Error.GROUP_ID_NOT_FOUND
        if not gone and not isinstance(answer, Done):
            self._checker.shard.violated("A-deletion-refused", group=self._group)
        self._attempt += 1
        self._later(0.2 * self._rng.random(), self._attempt, self.fill)
