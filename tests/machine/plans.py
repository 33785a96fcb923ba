"""Specs and plans as short text, and what every plan has to keep to."""

import itertools
import math
from collections import Counter

from musterd.coordinator.machine.plan import Assignor, PlanMember, Spec, TargetPlan, Why


def keys(text):
    """`"A0 B12"` as topics and partitions."""
    return [(one[0], int(one[1:])) for one in text.split()]


def member(member_id, topics, **more):
    """Who reads topics of one letter each: `member("m1", "AB")`."""
    return PlanMember(member_id, tuple(topics), **more)


def owners(topics, held):
    """`{"m1": "A0 A1"}` as a target of these topics, and of others that stand there."""
    rows = {topic: [""] * count for topic, count in topics.items()}
    for member_id, text in held.items():
        for topic, partition in keys(text):
            row = rows.setdefault(topic, [])
            row += [""] * (partition + 1 - len(row))
            row[partition] = member_id
    return rows


def spec(topics, members, held=None, assignor=Assignor.UNIFORM, **more):
    """`spec({"A": 3}, [member("m1", "A")], {"m1": "A0"})`."""
    last = owners(topics, held) if held else {}
    return Spec(members, topics, last=last, assignor=assignor, **more)


def held_by(target):
    """A target as `{"m1": "A0 A1"}`."""
    held = {}
    for topic, row in target.items():
        for partition, owner in enumerate(row):
            held.setdefault(owner, []).append(f"{topic}{partition}")
    return {owner: " ".join(names) for owner, names in held.items()}


def changed(plan: TargetPlan):
    """The changes as text."""
    return [f"{c.topic}{c.partition} {c.former}>{c.owner} {c.why.value}" for c in plan.changes]


def readers_of(spec: Spec, topic: str):
    """Who reads a topic, with those that are away."""
    return [m for m in spec.members if topic in m.topics]


def check(spec: Spec, plan: TargetPlan) -> None:
    """What holds of every plan: of members that are away, ownership, co-location and changes."""
    read = {topic for m in spec.members for topic in m.topics if topic in spec.topics}
    assert {topic: len(row) for topic, row in plan.target.items()} == {
        topic: spec.topics[topic] for topic in read
    }
    unowned = {(one.topic, one.partition): one.why for one in plan.unowned}
    assert len(unowned) == len(plan.unowned)
    together = {topic: names for names in spec.colocate for topic in names}
    members = {m.member_id: m for m in spec.members}
    for topic, row in plan.target.items():
        mates = [name for name in together.get(topic, (topic,)) if name in read]
        able = [m for m in spec.members if all(name in m.topics for name in mates)]
        if all(m.away for m in able):
            mates, able = [topic], readers_of(spec, topic)
        for partition, owner in enumerate(row):
            last = spec.last.get(topic, ())
            former = last[partition] if partition < len(last) else ""
            if owner:
                assert topic in members[owner].topics
                assert (topic, partition) not in unowned
            else:
                assert unowned[topic, partition] is Why.AWAY
                assert all(m.away for m in able)
            if former in members and members[former].away and members[former] in able:
                assert owner == former
            elif owner and members[owner].away:
                assert former == owner
            rows = [plan.target[mate] for mate in mates if partition < spec.topics[mate]]
            others = {row[partition] for row in rows} - {""}  # noqa: PLR1736 - of another topic
            assert sum(not members[other].away for other in others) <= 1
    _check_changes(spec, plan)


def _check_changes(spec: Spec, plan: TargetPlan) -> None:
    before = {(t, p): o for t, row in spec.last.items() for p, o in enumerate(row)}
    after = {(t, p): o for t, row in plan.target.items() for p, o in enumerate(row)}
    wanted = [
        (key, before.get(key, ""), after.get(key, ""))
        for key in sorted({**before, **after})
        if before.get(key, "") != after.get(key, "")
    ]
    assert [((c.topic, c.partition), c.former, c.owner) for c in plan.changes] == wanted
    assert plan.why == Counter(c.why for c in plan.changes)
    members = {m.member_id: m for m in spec.members}
    for change in plan.changes:
        former = members.get(change.former)
        exists = change.topic in plan.target and change.partition < spec.topics[change.topic]
        match change.why:
            case Why.NEW:
                assert exists
                assert not change.former
            case Why.GONE:
                assert not exists
            case Why.LEFT:
                assert former is None
            case Why.UNSUBSCRIBED:
                assert change.topic not in former.topics
            case Why.COLOCATED:
                assert any(change.topic in names for names in spec.colocate)
            case Why.ZONE:
                assert members[change.owner].zone not in {"", former.zone}
            case Why.BALANCE:
                assert change.topic in former.topics
                assert not former.away
            case _:
                raise AssertionError(change)


# ---- how good a plan of `uniform` is


def units_of(spec: Spec):
    """What is dealt out as a whole and not held by members that are away.

    Each as its partitions, who may have it, and who holds it ("" = nobody).
    """
    read = {t for m in spec.members for t in m.topics if t in spec.topics}
    sets = [[t for t in names if t in read] for names in spec.colocate]
    present = [m for m in spec.members if not m.away]
    sets = [names for names in sets if any({*names} <= {*m.topics} for m in present)]
    alone = [[t] for t in sorted(read) if not any(t in names for names in sets)]
    for topics in [names for names in sets if names] + alone:
        able = [m for m in spec.members if all(t in m.topics for t in topics)]
        ids = {m.member_id: m for m in able}
        for number in range(max(spec.topics[t] for t in topics)):
            held, partitions = Counter(), []
            for topic in [t for t in topics if number < spec.topics[t]]:
                last = spec.last.get(topic, ())
                last_id = last[number] if number < len(last) else ""
                owner = ids.get(last_id)
                if owner is None or not owner.away:  # else it keeps this one
                    partitions.append((topic, number))
                    held[owner and owner.member_id] += owner is not None
            present = sorted(m.member_id for m in able if not m.away)
            if present and partitions:
                most = max(held.values())
                yield partitions, present, {o for o, n in held.items() if 0 < n == most}


def are_in(spec, partitions):
    """The members that are in a zone of a unit: one of each of its partitions that have any."""
    lists = [spec.zones.get(topic, ()) for topic, _ in partitions]
    named = [
        rows[number % len(rows)]
        for rows, (_, number) in zip(lists, partitions, strict=True)
        if rows
    ]
    asked = [row for row in named if row]
    return {m.member_id for m in spec.members if asked and all(m.zone in [*row] for row in asked)}


def outcome(owners, holders, near):
    """How good a plan is, least is best: balance, then zones, then moves.

    How uneven loads are, sum of squares; how many units have an owner in none of their zones; and
    how many that somebody holds move.
    """
    loads = Counter(owners)
    elsewhere = sum(owner not in ids for owner, ids in zip(owners, near, strict=True))
    moved = sum(
        bool(held) and owner not in held for owner, held in zip(owners, holders, strict=True)
    )
    return sum(n * n for n in loads.values()), elsewhere, moved


def dealt(spec, target, units):
    """Who has each unit."""
    return [target[partitions[0][0]][partitions[0][1]] for partitions, _, _ in units]


def outcome_of(spec, target):
    """Return how good this plan is, as `outcome` has it."""
    units = list(units_of(spec))
    near = [are_in(spec, partitions) for partitions, _, _ in units]
    return outcome(dealt(spec, target, units), [held for _, _, held in units], near)


def best_outcome(spec):
    """Return how good the best of all possible plans is: all are looked at."""
    units = list(units_of(spec))
    near = [are_in(spec, partitions) for partitions, _, _ in units]
    holders = [held for _, _, held in units]
    plans = itertools.product(*(able for _, able, _ in units))
    return min(outcome(owners, holders, near) for owners in plans)


def count_plans(spec):
    """Return how many plans there are to be looked at."""
    return math.prod(len(able) for _, able, _ in units_of(spec))
