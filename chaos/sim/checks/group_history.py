"""Writes a run's calls and its groups' logs down for the checkers of chaos/check.

It is the history that the processes of a real run leave, in memory and on virtual time, and with
what only a simulator knows: every generation, every removal and every expiry as the log has them,
which owners a group overlooks for a Join that came late a second time (stale_joins.py), and which
commits without a number the log has more often than anybody sent them: late copies, which count.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from musterd.chaos.check import CHECKERS, check_all
from musterd.chaos.history import (
    Checkpoint,
    Generation,
    Key,
    Outcome,
    Ownership,
    Removal,
    Replayed,
    Round,
    StaleJoin,
)
from musterd.chaos.history_files import MemoryRecorder
from musterd.chaos.sim.checks.applied import Applied
from musterd.chaos.sim.checks.shard_checks import NS, ShardChecker
from musterd.chaos.sim.checks.stale_joins import StaleJoins
from musterd.chaos.sim.engine.world import Node
from musterd.chaos.verdict import Violation
from musterd.coordinator.machine.commands import OffsetCommit
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    ConsumerJoined,
    ConsumerRejoined,
    ConsumerRemoved,
    Ending,
    Event,
    GenerationFormed,
    GroupDeleted,
    GroupDowngraded,
    GroupUpgraded,
    MemberJoined,
    MemberRemoved,
    MemberReplaced,
    OffsetRemoved,
)
from musterd.coordinator.machine.evolve_history import rounds_of
from musterd.coordinator.machine.replies import Committed
from musterd.coordinator.machine.shard_state import ShardState

JUDGED = CHECKERS.keys() - {"I7", "I12"}
"""What simulated runs look at: they have no store outside of muster, and nothing has a watch."""


def recorder(now_s: Callable[[], float]) -> MemoryRecorder:
    """Return a recorder for a whole run, on its virtual time."""
    return MemoryRecorder(lambda: round(now_s() * NS))


def judge(
    log: MemoryRecorder, looked_at: Counter[str], *, is_read: bool = True
) -> Iterator[Violation]:
    """Yield the violations that the checkers of real runs find in this one, and count their looks.

    Where not everything was read at the end, nobody asks for it (inv-I1, keys that were not read).
    """
    ended_ns = log.now_ns()
    log.fact("began_ns", 0)
    for verdict in check_all(log.history()):
        looked_at[verdict.invariant] += verdict.looked_at
        for one in verdict.violations:
            if one.invariant == "I1" and one.at_ns is None and not is_read:
                continue
            yield replace(one, at_ns=ended_ns if one.at_ns is None else one.at_ns)


@dataclass(frozen=True, slots=True)
class Holding:
    """One partition in the hands of one process."""

    number: int
    """The recorder's."""
    member_id: str
    generation: int
    """In which it was given."""


@dataclass(slots=True)
class GroupHistory:
    """Records what clients saw and logs say of the groups of one shard."""

    shard: ShardChecker
    log: MemoryRecorder
    stale: StaleJoins = field(default_factory=StaleJoins)
    attempted: dict[Key, int] = field(default_factory=dict)
    """The greatest value that anybody tried to commit."""
    _unnumbered: Counter[tuple[Key, int]] = field(default_factory=Counter)
    """Of commits outside group management: how often each was sent, and is not in the log yet."""
    _held: dict[Key, dict[str, Holding]] = field(default_factory=dict)
    """By process."""
    _removed: dict[tuple[str, str], int] = field(default_factory=dict)
    _instances: dict[tuple[str, str], str] = field(default_factory=dict)

    # ---- what clients say

    def began(self, client: str, kind: str, key: Key, value: int, **known: object) -> int:
        """A write is sent; returns the number by which it is ended."""
        self.attempted[key] = max(value, self.attempted.get(key, 0))
        if kind == "reset":
            self._unnumbered[key, value] += 1
        return self.log.invoke(client, kind, key, value=value, **known)

    def reads(self, client: str, keys: list[Key]) -> dict[Key, int]:
        """A strict read begins; returns a number for each key."""
        return {key: self.log.invoke(client, "read", key) for key in keys}

    def found(self, began: Mapping[Key, int], offsets: Mapping[Key, int | None]) -> None:
        """Record the answer to a read; None: nothing is stored. Keys may be missing."""
        for key, value in offsets.items():
            self.log.end(began[key], Outcome.OK, value=-1 if value is None else value)

    def take(self, key: Key, member_id: str, generation: int, who: str, token: int) -> None:
        """A process is told that it owns a partition."""
        instance = self._instances.get((key.group, member_id), "")
        number = self.log.owns(who, key, member_id, generation, instance, token)
        mine = Holding(number, member_id, generation)
        held = self._held.setdefault(key, {})
        for process, other in held.items():
            if process != who and not (self._is_removed(key, other) or self._is_removed(key, mine)):
                earlier, later = sorted((mine, other), key=lambda one: one.generation)
                self._excuse(key, earlier, later)
        held[who] = mine

    def _is_removed(self, key: Key, one: Holding) -> bool:
        return (key.group, one.member_id) in self._removed

    def _excuse(self, key: Key, earlier: Holding, later: Holding) -> None:
        span = earlier.generation, later.generation
        if self.stale.excuse(key.group, earlier.member_id, *span):
            self.shard.counts.stale_join += 1
            self.log.record(StaleJoin(key, earlier.member_id, later.generation))

    def revoking(self, key: Key, who: str) -> None:
        self.log.revoking(self._held[key][who].number)

    def drop(self, key: Key, who: str, how: str) -> None:
        """It has let go of it. Dropping what it does not own changes nothing."""
        one = self._held.get(key, {}).pop(who, None)
        if one is not None:
            self.log.released(one.number, how)

    def died(self, who: str) -> None:
        self.log.died(who)
        for held in self._held.values():
            held.pop(who, None)

    def told(self, group: str, generation: int, owner: str, who: str, keys: list[Key]) -> None:
        """A member is told of its generation, and of all that it owns in it."""
        at_ns, mine = self.log.now_ns(), tuple(keys)
        self.log.record(
            Generation(group, generation, (owner,), at_ns, who, whole=False, assigned=mine)
        )

    def unowned(self, keys: list[Key]) -> list[Key]:
        """Partitions that nobody owns, or more than one does."""
        return [key for key in keys if len(self._held.get(key, {})) != 1]

    # ---- what nodes say

    def has(self, node: int, index: int, digest: bytes, *, life: int = 0) -> None:
        """A node's state at an index, unless a fault has changed it (differing_states.py).

        `life`: that which began with this state, read from its disk; 0: it was applied or sent.
        """
        if node in self.shard.differing:
            return
        mine = self.shard.shard, index, digest.hex()
        self.log.record(Checkpoint(node, *mine))
        if life:
            self.log.record(Replayed(f"life {life} of node-{node}", *mine))

    def tells(self, node: int, state: ShardState) -> None:
        """Record the rounds of groups as a node would tell of them."""
        for group in state.groups.values():
            for _, one in rounds_of(group):
                if one.generation:
                    cause = one.trigger.name.lower()
                    self.log.record(Round(group.group_id, one.generation, cause, f"node-{node}"))

    def answered(self, node: Node, group: str, member_id: str, status: Error) -> None:
        """A node answers a heartbeat: its quorum is whom it heard, and who heard it, and when.

        An answer that lay in the socket of a stopped process is heard when that goes on; whoever
        gave it has heard nothing since.
        """
        now_s = node.steady_s()
        ages = sorted(
            now_s - min(heard_s, node.told_s.get(peer, 0.0))
            for peer, heard_s in node.heard_s.items()
        )
        needed = len(node.world.nodes) // 2
        quiet_s = 0.0 if not needed else ages[needed - 1] if len(ages) >= needed else now_s
        number = self.log.invoke(
            member_id,
            "heartbeat",
            Key(group, "", -1),
            node=node.number,
            quiet_ns=round(quiet_s * NS),
        )
        outcome = Outcome.OK if status is Error.NONE else Outcome.FAIL
        self.log.end(number, outcome, error=status.name)

    # ---- what the group says

    def watch(self, one: Applied) -> None:
        for result in one.results:
            self.stale.applied(result)
            if isinstance(result.command, OffsetCommit) and isinstance(result.reply, Committed):
                self._stored(result.command)
            for event in result.events:
                match event:
                    case GenerationFormed():
                        self._forms(event)
                    case OffsetRemoved(ending=Ending.EXPIRED):
                        key = Key(event.group_id, event.topic, event.partition)
                        number = self.log.invoke("retention", "delete", key, value=-1)
                        self.log.end(number, Outcome.OK)
                    case GroupDeleted():
                        self._deleted(event.group_id)
                    case GroupUpgraded():
                        self.shard.counts.upgraded += 1
                    case GroupDowngraded():
                        self.shard.counts.downgraded += 1
                    case _:
                        self._moves(event)

    def _moves(self, event: Event) -> None:
        match event:
            case MemberJoined() | ConsumerJoined():
                # a first Join that is repeated brings the same id again
                self._joins(event.group_id, event.member_id, event.group_instance_id)
            case MemberRemoved() | ConsumerRemoved():
                self._leaves(event.group_id, event.member_id)
            case MemberReplaced():
                self._leaves(event.group_id, event.replaced_id)
                self._joins(event.group_id, event.member_id, event.group_instance_id)
            case ConsumerRejoined() if event.replaced_id:
                instance = self._instances.get((event.group_id, event.replaced_id), "")
                self._leaves(event.group_id, event.replaced_id)
                self._joins(event.group_id, event.member_id, instance)
            case _:
                pass

    def _stored(self, commit: OffsetCommit) -> None:
        """A client that was not answered sends it again, and a proxy may do so later."""
        for one in commit.partitions if commit.generation < 0 else ():
            key = Key(commit.group_id, one.topic, one.partition)
            if (key, one.offset) in self._unnumbered:
                self._unnumbered[key, one.offset] -= 1
                if self._unnumbered[key, one.offset] < 0:
                    copy = self.log.invoke("proxy", "reset", key, value=one.offset)
                    self.log.end(copy, Outcome.OK)

    def _joins(self, group: str, member_id: str, instance: str) -> None:
        self._instances[group, member_id] = instance
        since_ns = self._removed.pop((group, member_id), None)
        if since_ns is not None:
            self.log.record(Removal(group, member_id, since_ns, self.log.now_ns()))

    def _leaves(self, group: str, member_id: str) -> None:
        self._removed.setdefault((group, member_id), self.log.now_ns())

    def _deleted(self, group: str) -> None:
        """A group without members was deleted: whoever still works in it is a zombie."""
        for key, held in self._held.items():
            for one in held.values() if key.group == group else ():
                self._leaves(group, one.member_id)

    def _forms(self, event: GenerationFormed) -> None:
        group, at_ns = event.group_id, self.log.now_ns()
        names = tuple(owner(one, self._instances.get((group, one), "")) for one in event.member_ids)
        self.log.record(
            Generation(group, event.generation, names, at_ns, "log", whole=True, asked_ns=at_ns)
        )

    def finished(self) -> None:
        for state in self.shard.node_states:
            self.log.record(state)
        for (group, member_id), since_ns in self._removed.items():
            self.log.record(Removal(group, member_id, since_ns))


def owner(member_id: str, instance: str) -> str:
    """Who owns partitions, as histories name it."""
    return Ownership("", Key("", "", 0), member_id, 0, 0, None, instance_id=instance).owner
