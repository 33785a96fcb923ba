"""Clients outside of any membership that commit, forward only, and read strictly.

A command's number is the offset that it commits, so the state tells which ones it holds.
"""

from functools import partial

from musterd.chaos.history import Key
from musterd.chaos.sim.actors.members import Members, stored_offset
from musterd.chaos.sim.checks.applied import Applied
from musterd.chaos.sim.engine.world import Node, World
from musterd.coordinator.machine.commands import OffsetCommit, PartitionCommit
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Committed
from musterd.coordinator.machine.shard_state import ShardState
from musterd.coordinator.runtime.answers import Answer, Respond
from musterd.coordinator.runtime.shard import Shard

GROUP, TOPIC, PARTITIONS = "plain", "t", 32
APART_S = 0.006
"""Between two commands that a client sends one after the other."""


class Commands:
    """Numbers commands, gives them to whoever leads, and keeps what was answered."""

    def __init__(self, world: World, members: Members) -> None:
        self._world = world
        self._asked = 0
        self._waiting: dict[int, tuple[int, int]] = {}
        self._applied: list[dict[int, bool]] = [{} for _ in world.checkers]
        """By shard and number of a command in the log: whether a newer one stood before it."""
        self._told: list[dict[int, bool]] = [{} for _ in world.checkers]
        """The same, as each client was told."""
        self._stored: list[dict[int, int]] = [{} for _ in world.checkers]
        """By shard and partition, the highest number in the log, ..."""
        self._acked: list[dict[int, int]] = [{} for _ in world.checkers]
        """... and the highest whose client was told that it is applied."""
        for checker in members.checkers:
            checker.firsts.append(self._note)

    def start(self) -> None:
        """Begin to ask, when a first leader may be there."""
        for shard in range(self._world.scenario.shards):
            self._world.schedule(1.0, self._propose, shard)
            self._world.schedule(1.2, self._read, shard)

    def _note(self, one: Applied) -> None:
        for command in one.entry.commands:
            if isinstance(command, OffsetCommit) and command.group_id == GROUP:
                shard, (_, partition, number, *_) = one.shard.number, command.partitions[0]
                if number in self._applied[shard]:
                    checker = self._world.checkers[shard]
                    checker.violated("H-command-applied-twice", command=number)
                before = self._stored[shard].get(partition, 0)
                self._applied[shard][number] = before > number
                self._stored[shard][partition] = max(number, before)

    def finished(self) -> None:
        """Every command was answered once, unless its process died; every node has those acked."""
        lives = {(node.number, node.incarnation) for node in self._world.nodes}
        forgotten = [c for c, asked in self._waiting.items() if asked in lives]
        if forgotten and not any(c.violations for c in self._world.checkers):
            self._world.checkers[0].violated(
                "L-never-answered", first=forgotten[0], count=len(forgotten)
            )
        for shard, acked in enumerate(self._acked):
            checker, applied = self._world.checkers[shard], self._applied[shard]
            told = self._told[shard]
            lost = [number for number in told if number not in applied]
            for node in self._world.nodes:
                lost += _missing(acked, node.shard(shard).state)
            if lost:
                checker.violated("H-acknowledged-command-lost", first=lost[0], count=len(lost))
            wrong = [n for n, newer in told.items() if applied.get(n, newer) != newer]
            if wrong:
                checker.violated("H-superseded", first=wrong[0], count=len(wrong))

    def _propose(self, shard: int) -> None:
        rng = self._world.rng
        leaders = [n for n in self._world.nodes if n.leads_shard(shard)]
        for number in range(rng.choice((1, 1, 2, 4, 8, 12))):
            node = rng.choice(leaders or self._world.nodes)
            self._world.schedule(number * APART_S, self._propose_one, node, shard)
        if self._world.now < self._world.scenario.chaos_s:
            self._world.schedule(rng.expovariate(1 / 0.06), self._propose, shard)

    def _propose_one(self, node: Node, shard: int) -> None:
        if not node.alive:
            return
        self._asked += 1
        number, partition = self._asked, self._asked % PARTITIONS
        padding = "." * self._world.rng.choice((0, 0, 0, 8, 70))

        def done(answer: Answer) -> None:
            checker = self._world.checkers[shard]
            if self._waiting.pop(number, None) is None:
                checker.violated("H-answered-twice", command=number)
            if isinstance(answer, Committed):
                acked, (told,) = self._acked[shard], answer.partitions
                if told.error is not Error.NONE:
                    checker.violated("H-command-refused", command=number, error=told.error.name)
                self._told[shard][number] = told.superseded
                acked[partition] = max(number, acked.get(partition, 0))
                checker.counts.acked += 1

        self._waiting[number] = (node.number, node.incarnation)
        place = PartitionCommit(TOPIC, partition, number, padding, None)
        command = OffsetCommit(GROUP, "", -1, 0, (place,), forward_only=True)
        life, there = node.incarnation, node.shard(shard)
        node.run_later(life, lambda: _submit(there, command, done))

    def _read(self, shard: int) -> None:
        """ReadIndex: a read sees every command acknowledged before it was asked."""
        checker = self._world.checkers[shard]
        for node in self._world.nodes:
            if not node.leads_shard(shard):
                continue
            acked, read = dict(self._acked[shard]), node.shard(shard)

            def done(ok: bool, node: Node = node, acked: dict[int, int] = acked) -> None:
                if ok:
                    checker.counts.reads += 1
                    missing = _missing(acked, node.shard(shard).state)
                    if missing:
                        checker.violated("H-stale-read", node=node.number, missing=missing[0])

            node.run_later(node.incarnation, partial(read.read, done))
        if self._world.now < self._world.scenario.chaos_s:
            self._world.schedule(self._world.rng.expovariate(1 / 0.05), self._read, shard)


def _submit(shard: Shard, command: OffsetCommit, done: Respond) -> None:
    shard.submit(command, 200, done)


def _missing(acked: dict[int, int], state: ShardState) -> list[int]:
    return [
        number
        for partition, number in acked.items()
        if stored_offset(state, Key(GROUP, TOPIC, partition)) < number
    ]
