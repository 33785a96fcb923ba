"""Who deletes groups and offsets in a run, again and again; mostly they are in use."""

from collections.abc import Callable

from musterd.chaos.history import Key, Outcome
from musterd.chaos.sim.actors.members import PARTITIONS, TOPIC, Member, Members
from musterd.chaos.sim.engine.world import World
from musterd.coordinator.machine.commands import Command, DeleteGroup, OffsetDelete, TopicPartition
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Done, OffsetsDeleted, Refused
from musterd.coordinator.runtime.answers import Answer


def start(world: World, members: Members) -> None:
    """One for each group that members are born into."""
    for shard in range(world.scenario.shards):
        for number in range(2):
            Deleter(members, shard, f"g{number}-{shard}", "operator", "").look()


class Deleter(Member):
    """A client that repeats a deletion until it is answered, and then waits for a while."""

    def look(self) -> None:
        self._attempt += 1
        self._later(0.8 + 0.4 * self._rng.random(), self._attempt, self._delete)

    _attempts = 0

    def _delete(self) -> None:
        whole = self._rng.random() < 0.6
        places = tuple(TopicPartition(TOPIC, partition) for partition in range(PARTITIONS))
        command: Command = DeleteGroup(self._group) if whole else OffsetDelete(self._group, places)
        began = self._begin()
        self._attempts = 0

        def then(answer: Answer) -> None:
            for partition, number in enumerate(began):
                refused = Outcome.FAIL if self._attempts == 1 else Outcome.UNKNOWN
                gone = _is_gone(answer, partition)
                self._checker.history.log.end(number, Outcome.OK if gone else refused)
            self.look()

        self._call(command, then)

    def _begin(self) -> list[int]:
        history = self._checker.history
        keys = [Key(self._group, TOPIC, partition) for partition in range(PARTITIONS)]
        return [history.log.invoke(self._name, "delete", key, value=-1) for key in keys]

    def _call(self, command: Command, then: Callable[[Answer], None], size: int = 1_000) -> None:
        self._attempts += 1
        if self._attempts == 2:
            self._begin()  # it may take effect a second time, at any time
        super()._call(command, then, size)


def _is_gone(answer: Answer, partition: int) -> bool:
    """Deleted by this call, or by an earlier attempt of it, or nobody ever made it."""
    if isinstance(answer, OffsetsDeleted):
        return any(r.partition == partition and r.error is Error.NONE for r in answer.partitions)
    missing = isinstance(answer, Refused) and answer.error is Error.GROUP_ID_NOT_FOUND
    return missing or isinstance(answer, Done)
