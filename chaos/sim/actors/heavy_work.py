"""What a node's work costs in virtual time, and clients that ask for much of it at once.

Shipped code takes no virtual time by itself. In a world with `partition_s` a node's loop is held up
for that long by each partition that an entry names: once where it is applied, once more where it
was encoded. Whatever else is due meanwhile (frames, timers, calls) comes afterwards, as on a real
loop.
"""

from functools import partial
from typing import Final

from musterd.chaos.sim.actors.members import TOPIC, Member, Members
from musterd.chaos.sim.checks.applied import Applied
from musterd.chaos.sim.engine.world import World
from musterd.coordinator.machine.commands import OffsetCommit, PartitionCommit
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Committed
from musterd.coordinator.runtime.answers import Answer
from musterd.coordinator.runtime.proposer import work_of
from musterd.raft.contract import Role

CLIENTS: Final = 24
AT_ONCE: Final = 1_000
"""Partitions of a commit: as many as a client may commit at once."""

BYTES: Final = 30 * AT_ONCE
"""Of such a commit at most."""

BURST_S: Final = (1.0, 3.0)
"""After its answer a client waits so long. All begin together."""


def _hold_up(world: World, one: Applied) -> None:
    partitions = sum(map(work_of, one.entry.commands))
    times = 2 if one.shard.log.role is Role.LEADER else 1
    world.nodes[one.node].work(times * partitions * world.scenario.partition_s)


def start(world: World, members: Members) -> None:
    """The clients of each shard."""
    for shard in range(world.scenario.shards):
        members.checkers[shard].watches.append(partial(_hold_up, world))
        for number in range(CLIENTS):
            client = LargeCommits(members, shard, f"large{number}-{shard}", f"l{number}", "")
            world.schedule(3.0, client.commit)


class LargeCommits(Member):
    """A client outside of any membership, one commit after the other."""

    def commit(self) -> None:
        self._commit_seq += 1
        sequence = self._commit_seq
        partitions = tuple(
            PartitionCommit(TOPIC, partition, sequence, "", None) for partition in range(AT_ONCE)
        )
        command = OffsetCommit(self._group, "", -1, 0, partitions)
        self._call(command, self._stored, size=BYTES)

    def _stored(self, answer: Answer) -> None:
        if not isinstance(answer, Committed):
            raise TypeError(f"an answer out of place: {answer}")
        if all(result.error is Error.NONE for result in answer.partitions):
            self._checker.shard.counts.acked += 1
            self._world.count("large_commit")
        least, most = BURST_S
        self._attempt += 1
        self._later(least + (most - least) * self._rng.random(), self._attempt, self.commit)
