"""Kills a shard's leader at chosen points of its groups' lives, and what must hold across that.

In these runs nothing else fails, and in classic groups nobody leaves, so a round that was open is
the next to close, with everybody who was in the group, and an assignment that was awaited comes in
the same generation. Where the coordinator assigns, members leave and others come, so that
partitions move; nobody else loses one (sdk_members.py).
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from musterd.chaos.mutants.build import replaced
from musterd.chaos.sim.checks.applied import Applied
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.engine.world import World
from musterd.coordinator.machine.events import (
    AssignmentPublished,
    Event,
    GenerationFormed,
    GrantsChanged,
    OffsetCommitted,
    RebalanceStarted,
    TargetStored,
    Trigger,
)
from musterd.coordinator.machine.plan import differences
from musterd.coordinator.machine.state import Group, Phase
from musterd.coordinator.runtime import proposer

BEGIN_S = 3.0
"""By then everybody is in a group."""

PAUSE_S = 2.5
"""Between two kills; and all nodes are up again."""

BEFORE, AFTER, COMMIT = "completing_before_sync", "completing_after_sync", "stable_in_commit"
PARTLY, STORED = "plan_stored_in_part", "plan_stored"
REVOKING, RELEASED, GRANTED = "revoking", "released", "granted"
UNREAD = "pushed_and_unread"
"""What was granted or released is on its way to the members when the leader dies."""
HAND_OVER = (PARTLY, STORED, REVOKING, RELEASED, GRANTED, UNREAD)
LIKELY = {BEFORE: 0.4, AFTER: 0.7, COMMIT: 0.02}
LIKELY |= {PARTLY: 0.01, STORED: 0.07, REVOKING: 0.8, RELEASED: 0.8, GRANTED: 0.15}
LIKELY_PREPARING = 0.1
AT_ONCE_OR_LATER = ((0.0, 0.0005, 0.003), (0.0, 0.0, 0.002))
"""After so long a leader dies, of a classic group and of a modern one."""
CHANGE_WORK = 1_000
"""What one change of a small plan counts as, in partitions: it has an entry of its own."""


@contextmanager
def small_plans() -> Iterator[None]:
    """Inside, each part of a plan is of one partition, in an entry of its own.

    So it is with plans of thousands of partitions, which no simulated group has.
    """
    with ExitStack() as small:
        small.enter_context(replaced(differences, "PART_PARTITIONS", 1))
        small.enter_context(replaced(proposer, "CHANGES_PER_PARTITION", 1 / CHANGE_WORK))
        yield


def preparing(joined: int, members: int) -> str:
    """The point at which so many have joined."""
    return f"preparing_{joined}_of_{members}"


@dataclass(frozen=True, slots=True)
class Open:
    """The state of a group's open round when the leader was killed."""

    index: int
    group: str
    phase: Phase
    round: int
    generation: int
    members: frozenset[str]


class Phases:
    """Of one shard: watches what is applied, kills, checks."""

    def __init__(self, world: World, checker: ShardChecker) -> None:
        self._world, self._checker = world, checker
        self._killed_s = 0.0
        self.open: list[Open] = []

    def watch(self, one: Applied) -> None:
        events = one.events
        for event in events:
            self.check(one.index, event)
        if events and self._may_kill(one.node):
            group = one.shard.state.groups.get(getattr(events[-1], "group_id", ""))
            point = None if group is None else _point(group, events)
            if point is not None and self._world.rng.random() < LIKELY.get(point, LIKELY_PREPARING):
                assert group is not None
                self._kill(one.node, one.index, group, point)

    def _may_kill(self, node: int) -> bool:
        world = self._world
        return (
            max(BEGIN_S, self._killed_s + PAUSE_S) <= world.now < world.scenario.chaos_s
            and all(one.alive for one in world.nodes)
            and world.nodes[node].leads_shard(self._checker.shard)
        )

    def _kill(self, node: int, index: int, group: Group, point: str) -> None:
        """At once, or when the answers are on their way."""
        world = self._world
        self._killed_s = world.now
        if not world.may(point):
            return
        delay_s = world.rng.choice(AT_ONCE_OR_LATER[group.phase is Phase.MODERN])
        world.count(UNREAD if delay_s and point in (REVOKING, RELEASED, GRANTED) else point)
        if group.phase in (Phase.PREPARING_REBALANCE, Phase.COMPLETING_REBALANCE):
            members = frozenset(group.members)
            self.open.append(
                Open(index, group.group_id, group.phase, group.round, group.generation, members)
            )
        life = world.nodes[node].incarnation

        def crash() -> None:
            if world.nodes[node].incarnation == life:
                world.crash(node, power_cut=True)

        world.schedule(delay_s, crash)

    def check(self, index: int, event: Event) -> None:
        """An event of the entry at `index`; a second call with the same changes nothing."""
        if not isinstance(event, GenerationFormed | AssignmentPublished | RebalanceStarted):
            return
        for was in [o for o in self.open if o.group == event.group_id and o.index < index]:
            if isinstance(event, RebalanceStarted):
                goes = event.trigger is Trigger.TOPICS_CHANGED  # no round could go on then
            else:
                goes = goes_on(was, event)
            if not goes:
                self._checker.violated(
                    "H-round-lost", group=was.group, phase=was.phase, round=was.round, by=str(event)
                )
            self.open.remove(was)


def goes_on(was: Open, event: GenerationFormed | AssignmentPublished) -> bool:
    """True where this event ends what stood open, as it stood."""
    if isinstance(event, GenerationFormed):
        same = was.phase is Phase.PREPARING_REBALANCE and event.round == was.round
        return same and was.members == frozenset(event.member_ids)
    members = frozenset(entry.member_id for entry in event.assignments)
    same = was.phase is Phase.COMPLETING_REBALANCE and event.generation == was.generation
    return same and was.members == members


def _point(group: Group, events: Sequence[Event]) -> str | None:
    mine = [event for event in events if getattr(event, "group_id", "") == group.group_id]
    kinds = {type(event) for event in mine}
    if group.phase is Phase.MODERN:
        return _point_of_hand_over(mine)
    if group.phase is Phase.PREPARING_REBALANCE and not group.from_empty:
        return preparing(group.tally.joined, len(group.members))
    if group.phase is Phase.COMPLETING_REBALANCE:
        return BEFORE if GenerationFormed in kinds else None
    if AssignmentPublished in kinds:
        return AFTER
    return COMMIT if OffsetCommitted in kinds else None


def _point_of_hand_over(events: Sequence[Event]) -> str | None:
    """How far an entry with these events has brought a hand-over of partitions."""
    stored = [event for event in events if isinstance(event, TargetStored)]
    if stored:
        return STORED if stored[-1].target_epoch else PARTLY
    changed = [event for event in events if isinstance(event, GrantsChanged)]
    if any(event.released for event in changed):
        return RELEASED
    if any(event.revoking for event in changed):
        return REVOKING
    return GRANTED if any(event.granted for event in changed) else None
