"""What plans are made from: a group's spec, and what a plan's changes are in the group's terms."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Final

from musterd.coordinator.machine.commands import NO_OWNER, TargetChange
from musterd.coordinator.machine.modern.colocation import COLOCATE, sets_of
from musterd.coordinator.machine.modern.group import Consumer
from musterd.coordinator.machine.modern.weights import WEIGHTS, weights_of
from musterd.coordinator.machine.plan import Assignor, Part, PlanMember, Spec, Why
from musterd.coordinator.machine.plan.pace import Pace, finished
from musterd.coordinator.machine.state import Group
from musterd.coordinator.machine.zones import Zones, zones_of
from musterd.invariant import InvariantError

NAMES_PER_STEP: Final = 20
"""Names of topics that are compared in one step of making a spec."""

NUMBER_OF: Final = {why: number for number, why in enumerate(Why)}
"""The number of each reason, in `TargetChange` and in stored plans. New ones go to the end."""


def spec_of(group: Group) -> Spec:
    """Return a copy of all that a plan of this group depends on, as of `modern.spec_version`."""
    return finished(specifying(group))


def specifying(group: Group) -> Generator[None, None, Spec]:
    """Copy all that a plan of this group depends on, in slices.

    `modern.spec_version` has to stay what it is until the end. Raises InvariantError where the
    group is no modern one.
    """
    modern = group.modern
    if modern is None:
        raise InvariantError("the spec of a group that is not modern")
    names = {**modern.by_seq, NO_OWNER: ""}
    pace = Pace()
    consumers = list(modern.members.values())
    assignor = assignor_of(consumers)
    read: dict[tuple[tuple[str, ...], str], tuple[str, ...]] = {}
    members: list[PlanMember] = []
    for consumer in consumers:
        said = consumer.said
        topics = read.get((said.topics, said.pattern))
        steps = 1 + len(said.topics) // NAMES_PER_STEP
        if topics is None:  # mostly all members read the same
            topics = read[said.topics, said.pattern] = tuple(sorted(modern.topics_of(consumer)))
            steps += len(topics)
        members.append(_member(consumer, topics))
        if pace.due(steps):
            yield
    last: dict[str, list[str]] = {}
    for topic, owners in modern.target.items():
        last[topic] = [names[owner] if owner in names else _gone(owner) for owner in owners]
        if pace.due(1 + len(owners) // 4):
            yield
    zones: dict[str, Zones] = {}
    for topic, text in modern.zones.items():
        zones[topic] = zones_of(text)
        if pace.due(1 + len(zones[topic]) // 4):
            yield
    text = group.texts.get(WEIGHTS, "") if assignor is Assignor.WEIGHTED else ""
    weights = yield from _weights(text, modern.topics, pace)
    together = sets_of(group.texts.get(COLOCATE, ""))
    return Spec(members, dict(modern.topics), last, assignor, weights, zones, together)


def _weights(
    text: str, counts: Mapping[str, int], pace: Pace
) -> Generator[None, None, dict[str, Sequence[int]]]:
    """Return what the partitions weigh of those topics that the group reads."""
    if pace.due(len(text)):
        yield
    weights: dict[str, Sequence[int]] = {}
    for topic, one in weights_of(text).items():
        if topic in counts:
            weights[topic] = one.row(counts[topic])
            if pace.due(1 + counts[topic] // 4):
                yield
    return weights


def _gone(seq: int) -> str:
    """An owner that is a member no more: nobody has such an id, which would be too long for one."""
    return "gone" + "-" * 256 + str(seq)


def _member(consumer: Consumer, topics: tuple[str, ...]) -> PlanMember:
    return PlanMember(
        member_id=consumer.member_id,
        topics=topics,
        instance_id=consumer.instance_id,
        zone=consumer.said.zone,
        capacity=consumer.said.capacity,
        away=consumer.is_away,
    )


def assignor_of(members: Iterable[Consumer]) -> Assignor:
    """Return the assignor that most members name; of several the first of the list (gp-7.1)."""
    votes = dict.fromkeys(Assignor, 0)
    for consumer in members:
        if consumer.said.assignor:
            votes[Assignor(consumer.said.assignor)] += 1
    best = Assignor.UNIFORM
    for assignor, count in votes.items():
        if count > votes[best]:
            best = assignor
    return best


def changes_of(group: Group, part: Part) -> tuple[TargetChange, ...]:
    """Return a part of a plan as it is stored; changes of topics that are gone are left out.

    The group must be as it was planned from: its `spec_version` is that of the plan.
    """
    modern = group.modern
    if modern is None:
        raise InvariantError("a plan of a group that is not modern")
    found: dict[str, list[tuple[int, int, int]]] = {}
    for change in part.changes:
        if change.topic not in modern.topics:
            continue
        owner = modern.members[change.owner].join_seq if change.owner else NO_OWNER
        row = (change.partition, owner, NUMBER_OF[change.why])
        found.setdefault(change.topic, []).append(row)
    changes: list[TargetChange] = []
    for topic, rows in found.items():
        partitions, owners, reasons = zip(*rows, strict=True)
        changes.append(TargetChange(topic, partitions, owners, reasons))
    return tuple(changes)
