"""Sees to the plans of one shard's modern groups, while this node leads the shard (docs/modern.md).

All it needs is replicated, so a new leader finds what the last one did not get to: topics that a
group does not know of as they are, a plan that is due, grants that are behind the target. Planning
takes as long as the group is large. It goes in slices between other work, outside of what applies
entries; what it was made from is named with the result, and refused where that is another by then.
A group whose plans come to nothing for a second is held: nothing changes it until one is stored.
A plan that fails, by a defect of an assignor, concerns its group alone, which keeps its target:
what is stored of a plan is taken back part by part, and the target in force goes on being carried
out. It is planned again when what plans are made from has changed, or after a minute.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from musterd.coordinator.machine.commands import (
    DropPart,
    GroupCommand,
    NoteTopics,
    PatternTopics,
    Reconcile,
    StoreTarget,
)
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.modern.group import ModernGroup
from musterd.coordinator.machine.modern.spec import changes_of, specifying
from musterd.coordinator.machine.modern.topics import is_clearing, unknown_topics
from musterd.coordinator.machine.plan import Part, TargetPlan, parts, planning
from musterd.coordinator.machine.plan.pace import SLICE_STEPS
from musterd.coordinator.machine.shard_state import ShardState
from musterd.coordinator.machine.state import Group, modern_of
from musterd.coordinator.runtime.deadlines import KeyedHeap
from musterd.coordinator.runtime.patterns import matching, may_read
from musterd.coordinator.runtime.timeouts import (
    ASSIGNMENT_INTERVAL_MS,
    ASSIGNMENT_INTERVAL_MS_MAX,
    ASSIGNMENT_QUIET_MS,
    CHANGES_HELD_MS_MAX,
    PLAN_AGAIN_MS,
)

log = structlog.get_logger()

PLANS_MAX: Final = 16
"""Plans of a node that are being made at once; others wait."""

LOOKS_PER_TURN: Final = 200
"""Groups that a shard looks at in one turn."""

NAMES_PER_TURN: Final = 5_000
"""Topics that are compared in one turn; the group that reaches it is the turn's last."""

STEPS_PER_TURN: Final = SLICE_STEPS
"""Steps of planning in one turn of a node, over all its shards; one slice may come on top."""

STEPS_PER_UNIT: Final = 4
"""Steps that a slice of a small plan takes at most for each of its partitions and members."""

HELD_SLICES: Final = 4
"""Slices in a turn of the plan of a group that is held: for that others wait, too."""

_NEVER: Final = -1
_NAME_BYTES: Final = 32
_CHANGE_BYTES: Final = 24

Offer = Callable[[GroupCommand, int], bool]
"""Offers a command of at most so many bytes to the log; False where it is not taken now."""


class PlanTurns:
    """The planning of one node: how many plans there are, and what a turn has left for them."""

    def __init__(self, superusers: Collection[str] = ()) -> None:
        self.superusers = frozenset(superusers)
        """Principals that may read every topic, whatever the rules say."""
        self.plans = 0
        """How many are being made."""
        self.planners = 0
        """How many shards make them."""
        self.failed_total = 0
        """How many plans ended in an error."""
        self._turn: object = None
        self._steps = 0

    def steps(self, turn: object) -> int:
        """How many steps this turn of the node has left, 0 or less where it has had enough."""
        if turn is not self._turn:
            self._turn, self._steps = turn, STEPS_PER_TURN
        return self._steps

    def took(self, steps: int) -> None:
        """So many were made in it."""
        self._steps -= steps


@dataclass(slots=True)
class _Interval:
    """When a group's last plan began, and how long the next one waits after that."""

    began_ms: int
    interval_ms: int = ASSIGNMENT_INTERVAL_MS
    waits: bool = False
    """Whether another plan was due before that was over."""
    spec_version: int = _NEVER
    """What the next plan would be made from ..."""
    changed_ms: int = 0
    """... and when that was seen first."""


@dataclass(slots=True)
class _Failed:
    """A plan that ended in an error, and until when the same one is not made again."""

    spec_version: int
    until_ms: int


@dataclass(slots=True)
class _Plan:
    """A plan that is being made, or stored."""

    spec_version: int
    units: int
    """Partitions and members in it."""
    steps: Generator[None, None, TargetPlan]
    parts: Iterator[Part] | None = None
    """What is left to be stored; None while it is being made."""
    part: Part | None = None
    """The next of them, once it was looked at."""
    number: int = 0

    def make(self, slices: int) -> int:
        """Make so many slices of it; returns at most how many steps one took."""
        try:
            for _ in range(slices):
                next(self.steps)
        except StopIteration as end:
            self.parts = parts(end.value)
        return min(SLICE_STEPS, STEPS_PER_UNIT * self.units)


_PatternKey = tuple[int, int, tuple[str, ...]]
"""What matching a pattern depends on: topics, rules, and whose principals the topics are for."""


@dataclass(slots=True)
class _Matched:
    """What a pattern stands for, as of `key`."""

    key: _PatternKey
    steps: Generator[int, None, tuple[str, ...]] | None
    """What is left to be done; None: it was done."""
    names: tuple[str, ...] = ()
    """What the group is told that it stands for, sorted, once that was found."""


@dataclass(slots=True)
class _Known:
    """Versions of registry and group at which the group's topics were found as they are."""

    topics_version: int = _NEVER
    spec_version: int = _NEVER
    refused: NoteTopics | None = None
    """What changed nothing when it was applied: a group goes on with the topics that it has."""
    access_version: int = _NEVER
    """That of the rules, where a member has a pattern."""
    matched: dict[str, _Matched] = field(default_factory=dict)
    """By pattern."""


@dataclass(slots=True)
class Planner:
    """One shard's plans. `turns` are the node's."""

    turns: PlanTurns
    _left: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Groups to look at."""
    _known: dict[str, _Known] = field(default_factory=dict)
    """By modern group."""
    _intervals: OrderedDict[str, _Interval] = field(default_factory=OrderedDict)
    """By group that was planned lately, the oldest first."""
    _ends: KeyedHeap[str] = field(default_factory=KeyedHeap)
    """When groups whose interval is not over may be planned."""
    _due_ms: dict[str, int] = field(default_factory=dict)
    """Since when a plan of a group is due. A plan that is stored begins that anew, and so does the
    end of the time for which the group was held."""
    _held_ms: dict[str, int] = field(default_factory=dict)
    """Until when a group is held at most."""
    _failed: dict[str, _Failed] = field(default_factory=dict)
    """By group whose last plan failed."""
    _plans: OrderedDict[str, _Plan] = field(default_factory=OrderedDict)
    _under_way: Counter[tuple[str, type]] = field(default_factory=Counter)
    """How many commands of a group and kind are waiting or in the log."""
    _seen: tuple[int, int] = (_NEVER, _NEVER)
    """The versions of the registry and the rules at which all groups were put on the list."""
    _credit: int = 1
    """Steps that this shard may make of those of the node."""
    _blocked: bool = False

    def begin(self, groups: Iterable[Group]) -> None:
        """Look at all modern groups: the last leader may not have got to them."""
        for group in groups:
            if group.modern is not None:
                self.moved(group.group_id, group)

    @property
    def busy(self) -> bool:
        """True while there is something to look at, to plan or to wait for."""
        return bool(self._left or self._plans or self._under_way or len(self._ends))

    @property
    def hurried(self) -> bool:
        """True where the next turn should come soon."""
        return bool(self._left or self._plans) and not self._blocked

    def holds(self, group_id: str, clock_ms: int) -> bool:
        """True while nothing but its plan should change this group."""
        return clock_ms < self._held_ms.get(group_id, _NEVER)

    def moved(self, group_id: str, group: Group | None) -> None:
        """An entry changed this group."""
        modern = modern_of(group)
        if group is None or modern is None:
            if group_id in self._known:
                self._forget(group_id)
            return
        if group.generation == modern.target_epoch:
            self._due_ms.pop(group_id, None)
            self._held_ms.pop(group_id, None)
            self._failed.pop(group_id, None)
        self._known.setdefault(group_id, _Known())
        self._left[group_id] = None
        self._blocked = False
        plan = self._plans.get(group_id)
        if plan is not None and plan.spec_version != modern.spec_version:
            self._drop(group_id)

    def ended(self, command: GroupCommand, *, changed: bool) -> None:
        """A command was applied; or failed, which changes nothing."""
        key = command.group_id, type(command)
        if not self._under_way[key]:
            del self._under_way[key]
            return
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]
        known = self._known.get(command.group_id)
        if known is not None and isinstance(command, NoteTopics) and not changed:
            known.refused = command
        if known is not None and (changed or not isinstance(command, Reconcile)):
            self._left[command.group_id] = None
            self._blocked = False

    def failed(self, command: GroupCommand) -> None:
        """A command did not get into the log, or nobody knows whether it did."""
        self.ended(command, changed=True)

    def release(self) -> None:
        """This node leads the shard no more."""
        for group_id in list(self._plans):
            self._drop(group_id)

    def turn(
        self,
        turn: object,
        clock_ms: int,
        registry: ShardState | None,
        groups: Mapping[str, Group],
        offer: Offer,
    ) -> None:
        """Look at groups, begin what is due, and go on with plans.

        `turn` is the node's; `registry` None where what it says cannot be trusted.
        """
        self._blocked = False
        if registry is None:  # who asks meanwhile is looked at again
            self._seen = (_NEVER, _NEVER)
        elif (registry.topics_version, registry.access_version) != self._seen:
            self._seen = registry.topics_version, registry.access_version
            self._left.update(dict.fromkeys(self._known))
        for group_id, _ in self._ends.pop_due(clock_ms, LOOKS_PER_TURN):
            self._left[group_id] = None
        names = 0
        for _ in range(min(len(self._left), LOOKS_PER_TURN)):
            if names >= NAMES_PER_TURN or self._blocked:
                break
            group_id, _ = self._left.popitem(last=False)
            group = groups.get(group_id)
            if group is None or group.modern is None:
                self._forget(group_id)
                continue
            names += self._look_at(turn, group, clock_ms, registry, offer)
        self._go_on(turn, clock_ms, groups, offer)

    # ---- inside

    def _look_at(
        self,
        turn: object,
        group: Group,
        clock_ms: int,
        registry: ShardState | None,
        offer: Offer,
    ) -> int:
        """Propose what is due for a group, or begin its plan; return how many names that took."""
        modern, group_id = group.modern, group.group_id
        if modern is None:
            return 0
        names = 0
        known = self._known[group_id]
        if self._is_under_way(group_id, NoteTopics):
            return 0
        is_put_off = self._is_put_off(group, clock_ms)
        is_due = group.generation > modern.target_epoch and not is_put_off
        is_held = is_due and self._is_held(group_id, clock_ms)
        if is_held:
            registry = None  # it is told of topics afterwards
        if registry is not None and (
            known.topics_version,
            known.spec_version,
            known.access_version,
        ) != (registry.topics_version, modern.spec_version, registry.access_version):
            names = 1 + len(modern.topics)
            if not self._match(turn, group, modern, registry, offer):
                if not self._blocked:
                    return 1
            elif self._tell(group, modern, registry, offer):
                return names
            # Where there is no room for news, maybe for long, it goes on with what it knows.
        if self._is_under_way(group_id, StoreTarget) or self._is_under_way(group_id, DropPart):
            return names
        if is_due and group_id not in self._plans:
            self._plan(group, clock_ms)
        self._go_by_target(group_id, modern, offer, is_put_off=is_put_off)
        return names

    def _go_by_target(
        self, group_id: str, modern: ModernGroup, offer: Offer, *, is_put_off: bool
    ) -> None:
        """Propose to carry out the target in force; or to take back what is stored of another."""
        if modern.storing:
            if is_put_off:
                self._offer(DropPart(group_id, modern.storing), offer)
        elif modern.behind and not self._is_under_way(group_id, Reconcile):
            self._offer(Reconcile(group_id), offer)

    def _tell(self, group: Group, modern: ModernGroup, registry: ShardState, offer: Offer) -> bool:
        """Tell a group of topics that it does not know as they are; False where nothing is told."""
        known = self._known[group.group_id]
        note = unknown_topics(group, registry, LIMITS.note_topics_max)
        told = note is None or note == known.refused or not (note.counts or note.patterns)
        if note is not None and not told:
            return self._offer(note, offer)
        if not is_clearing(modern):
            known.topics_version = registry.topics_version
            known.spec_version = modern.spec_version
            known.access_version = registry.access_version
        return False

    def _match(
        self,
        turn: object,
        group: Group,
        modern: ModernGroup,
        registry: ShardState,
        offer: Offer,
    ) -> bool:
        """See what the members' patterns stand for; True where the group knows all of it."""
        known = self._known[group.group_id]
        for pattern in [one for one in known.matched if one not in modern.pattern_readers]:
            del known.matched[pattern]
        for pattern, readers in modern.pattern_readers.items():
            former = modern.patterns.get(pattern, ())
            key = registry.topics_version, registry.access_version, tuple(sorted(readers))
            found = known.matched.get(pattern)
            if found is None or (found.steps is None and found.key != key):
                may = may_read(registry, self.turns.superusers, key[2])
                steps = matching(pattern, sorted(registry.topics), former, may, len(key[2]))
                found = known.matched[pattern] = _Matched(key, steps)
            while found.steps is not None:
                if self.turns.steps(turn) <= 0:
                    self._left[group.group_id] = None
                    return False
                try:
                    self.turns.took(next(found.steps))
                except StopIteration as end:
                    found.steps, found.names = None, end.value
            change = _change_of(pattern, former, found.names)
            if change is not None:
                note = NoteTopics(group.group_id, (), (change,), modern.topics_version)
                self._offer(note, offer)
                return False
            if found.key != key:  # topics came while it was looked for
                self._left[group.group_id] = None
                return False
        return True

    def _plan(self, group: Group, clock_ms: int) -> None:
        """Begin a group's plan, if its interval is over and not too many are being made."""
        group_id, modern = group.group_id, group.modern
        if modern is None:
            return
        if self.turns.plans >= PLANS_MAX:
            self._left[group_id] = None
            self._blocked = True
            return
        if not self._interval_is_over(group_id, modern.spec_version, clock_ms):
            return
        if not self._plans:
            self.turns.planners += 1
        self.turns.plans += 1
        self._plans[group_id] = _Plan(modern.spec_version, _units(modern), _planned(group))

    def _is_put_off(self, group: Group, clock_ms: int) -> bool:
        """Whether a plan of what the group is now failed, and is not to be made again yet."""
        group_id, modern = group.group_id, group.modern
        failed = self._failed.get(group_id)
        if failed is None or modern is None:
            return False
        if failed.spec_version != modern.spec_version or clock_ms >= failed.until_ms:
            del self._failed[group_id]
            return False
        self._ends.arm(group_id, failed.until_ms)
        return True

    def _is_held(self, group_id: str, clock_ms: int) -> bool:
        """Whether a group whose plan is due is held, from now on where it has waited too long."""
        if self.holds(group_id, clock_ms):
            return True
        if self._held_ms.pop(group_id, None) is not None:
            self._due_ms[group_id] = clock_ms  # others had to wait; now it does
        due_ms = self._due_ms.setdefault(group_id, clock_ms)
        if clock_ms < due_ms + ASSIGNMENT_INTERVAL_MS_MAX or self.turns.plans >= PLANS_MAX:
            return False
        self._held_ms[group_id] = clock_ms + CHANGES_HELD_MS_MAX
        self._ends.arm(group_id, clock_ms + CHANGES_HELD_MS_MAX)
        return True

    def _interval_is_over(self, group_id: str, spec_version: int, clock_ms: int) -> bool:
        """Whether the next plan may begin: none waits once what it is made from is quiet."""
        if self.holds(group_id, clock_ms):
            self._intervals.setdefault(group_id, _Interval(clock_ms)).began_ms = clock_ms
            self._intervals.move_to_end(group_id)
            return True
        while self._intervals:
            oldest_id, oldest = next(iter(self._intervals.items()))
            if oldest.began_ms + 2 * ASSIGNMENT_INTERVAL_MS_MAX > clock_ms:
                break
            del self._intervals[oldest_id]
        interval = self._intervals.get(group_id)
        if interval is None:
            self._intervals[group_id] = _Interval(clock_ms)
            return True
        if interval.spec_version != spec_version:
            interval.spec_version, interval.changed_ms = spec_version, clock_ms
        quiet_since_ms = interval.changed_ms if interval.waits else interval.began_ms
        end_ms = min(interval.began_ms + interval.interval_ms, quiet_since_ms + ASSIGNMENT_QUIET_MS)
        if clock_ms < end_ms:
            interval.waits = True
            self._ends.arm(group_id, end_ms)
            return False
        doubled_ms = min(2 * interval.interval_ms, ASSIGNMENT_INTERVAL_MS_MAX)
        interval.interval_ms = doubled_ms if interval.waits else ASSIGNMENT_INTERVAL_MS
        interval.began_ms, interval.waits = clock_ms, False
        self._intervals.move_to_end(group_id)
        return True

    def _go_on(
        self, turn: object, clock_ms: int, groups: Mapping[str, Group], offer: Offer
    ) -> None:
        """Go on with plans, one after the other, as far as the node's turn has room for it."""
        share = STEPS_PER_TURN // max(1, self.turns.planners)
        self._credit = min(self._credit + share, share)
        while self._plans and self._credit > 0 and self.turns.steps(turn) > 0:
            group_id, plan = self._plans.popitem(last=False)
            self._plans[group_id] = plan  # it is the last now
            slices = HELD_SLICES if group_id in self._held_ms else 1
            steps = self._go_on_with(plan, groups[group_id], clock_ms, offer, slices)
            if not steps:
                self._blocked = True
                return
            self._credit -= steps
            self.turns.took(steps)

    def _go_on_with(
        self, plan: _Plan, group: Group, clock_ms: int, offer: Offer, slices: int
    ) -> int:
        """Make slices of a plan, or store a part of it; 0 where the log takes none now."""
        try:
            if plan.parts is None:
                return plan.make(slices)
            part = plan.part = next(plan.parts) if plan.part is None else plan.part
            changes = changes_of(group, part)
        except Exception:
            log.exception(
                "a plan failed: the group keeps its target",
                group=group.group_id,
                spec_version=plan.spec_version,
                again_s=PLAN_AGAIN_MS // 1_000,
            )
            self._fail(group.group_id, plan, clock_ms)
            return 1
        store = StoreTarget(group.group_id, plan.spec_version, plan.number, changes, part.last)
        if not self._offer(store, offer):
            return 0
        if part.last:
            self._drop(group.group_id)
            self._offer(Reconcile(group.group_id), offer)
        else:
            plan.part, plan.number = None, plan.number + 1
        return 1 + len(part.changes)

    def _fail(self, group_id: str, plan: _Plan, clock_ms: int) -> None:
        """Give a plan up. Nothing is held for it: a change may well be what mends it."""
        self.turns.failed_total += 1
        self._drop(group_id)
        self._due_ms.pop(group_id, None)
        self._held_ms.pop(group_id, None)
        self._failed[group_id] = _Failed(plan.spec_version, clock_ms + PLAN_AGAIN_MS)
        self._left[group_id] = None

    def _offer(self, command: GroupCommand, offer: Offer) -> bool:
        """Offer a command; where it is not taken now, its group is looked at again."""
        if not offer(command, command_bytes(command)):
            self._left[command.group_id] = None
            self._blocked = True
            return False
        self._under_way[command.group_id, type(command)] += 1
        return True

    def _is_under_way(self, group_id: str, kind: type) -> bool:
        return (group_id, kind) in self._under_way

    def _drop(self, group_id: str) -> None:
        if self._plans.pop(group_id, None) is not None:
            self.turns.plans -= 1
            if not self._plans:
                self.turns.planners -= 1

    def _forget(self, group_id: str) -> None:
        self._drop(group_id)
        self._left.pop(group_id, None)
        self._known.pop(group_id, None)
        self._intervals.pop(group_id, None)
        self._due_ms.pop(group_id, None)
        self._held_ms.pop(group_id, None)
        self._failed.pop(group_id, None)
        self._ends.drop(group_id)


def _planned(group: Group) -> Generator[None, None, TargetPlan]:
    """Plan in slices. Whatever changes the group's spec ends that (`Planner.moved`)."""
    spec = yield from specifying(group)
    return (yield from planning(spec))


def _change_of(
    pattern: str, former: tuple[str, ...], names: tuple[str, ...]
) -> PatternTopics | None:
    """How what a pattern stands for has changed, as much of it as one command says; None: not."""
    if former == names:
        return None
    before, now = frozenset(former), frozenset(names)
    removed = tuple(name for name in former if name not in now)[: LIMITS.note_topics_max]
    added = tuple(name for name in names if name not in before)
    return PatternTopics(pattern, added[: LIMITS.note_topics_max - len(removed)], removed)


def _units(modern: ModernGroup) -> int:
    return 1 + len(modern.members) + sum(modern.topics.values())


def command_bytes(command: GroupCommand) -> int:
    """At most so many bytes does a command of the planner take in an entry."""
    size = 2 * LIMITS.id_max_bytes
    match command:
        case NoteTopics():
            for one in command.counts:
                size += _NAME_BYTES + len(one.topic.encode()) + len(one.zones.encode())
            for pattern in command.patterns:
                names = (pattern.pattern, *pattern.added, *pattern.removed)
                size += sum(_NAME_BYTES + len(name.encode()) for name in names)
        case StoreTarget():
            for change in command.changes:
                size += _NAME_BYTES + len(change.topic.encode())
                size += _CHANGE_BYTES * len(change.partitions)
        case _:
            pass
    return size
