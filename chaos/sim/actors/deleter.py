"""Who deletes groups and offsets in a run, again and again; mostly they are in use."""

from musterd.chaos.sim.actors.members import PARTITIONS, TOPIC, Member, Members
from musterd.chaos.sim.checks.deletion_checks import Key
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
        """Some time later."""
        self._attempt += 1
        self._later(0.8 + 0.4 * self._rng.random(), self._attempt, self._delete)

    def _delete(self) -> None:
        keys = [(self._group, partition) for partition in range(PARTITIONS)]
        whole = self._rng.random() < 0.6
        places = tuple(TopicPartition(TOPIC, partition) for _, partition in keys)
        command: Command = DeleteGroup(self._group) if whole else OffsetDelete(self._group, places)
        promises = self._checker.promises
        asked = promises.delete_asked(keys)

        def then(answer: Answer) -> None:
            promises.delete_answered(asked, lambda key: _is_gone(answer, key))
            self.look()

        self._call(command, then)


def _is_gone(answer: Answer, key: Key) -> bool:
    """Deleted by this call, or by an earlier attempt of it, or nobody ever made it."""
    if isinstance(answer, OffsetsDeleted):
        return any(r.partition == key[1] and r.error is Error.NONE for r in answer.partitions)
    missing = isinstance(answer, Refused) and answer.error is Error.GROUP_ID_NOT_FOUND
    return missing or isinstance(answer, Done)
