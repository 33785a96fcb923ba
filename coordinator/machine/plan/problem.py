"""The problem in numbers: members by position, and topics that the same members read together.

Members stand in one order: static ones by instance id, then dynamic ones by member id; for
`uniform` and `weighted` the zones take turns in it, so that what is dealt out member by member is
spread over them.

A *unit* is what is given to a member as a whole: one partition, or partition n of each of the
topics that are co-located. All units of one topic, or of one set of co-located topics, are a
*family*. Families that the same members read are a *pool*: which of its units a member has makes no
difference to balance. Units of a pool that the same readers are near to, by their zones, are a
*lot*: which of its units a member has makes no difference to balance and zones.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from musterd.coordinator.machine.plan.pace import Pace
from musterd.coordinator.machine.plan.spec import UNIT, Assignor, PlanMember, Spec
from musterd.invariant import invariant

NOBODY: Final = -1
_LOT_STEPS: Final = 2
"""Steps that finding a lot takes."""


@dataclass(slots=True)
class Family:
    """Topics that are dealt out together, most often one.

    `holders` and `owners` have the position of a member, or NOBODY, for each unit: who may keep it,
    and who shall have it. `lots` has the number of each unit's lot in the pool; it and `weights`
    are empty where they do not count. `kept` has single partitions that are their owners' all the
    same, by topic and number: those of members that are away, in units that are dealt out.
    """

    topics: tuple[str, ...]
    count: int
    holders: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    lots: list[int] = field(default_factory=list)
    kept: dict[str, dict[int, int]] = field(default_factory=dict)

    def lot_of(self, unit: int) -> int:
        """The number of a unit's lot."""
        return self.lots[unit] if self.lots else 0


@dataclass(slots=True)
class Lot:
    """So many units of a pool that are to be dealt out. `claims` counts those that readers hold.

    `near` are the readers that are in a zone of theirs, some but not all; empty: zones make no
    difference, since none of the readers is in one of them, or all are.
    """

    near: dict[int, None] = field(default_factory=dict)
    size: int = 0
    claims: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Pool:
    """Families with the same readers; their positions ascend.

    `readers` are present, `away` are not: what these hold is theirs already in `Family.owners`, and
    the other units are to be dealt out, `size` of them, by `lots`. The first lot is that of units
    for which zones make no difference.
    """

    readers: list[int]
    away: list[int]
    families: list[Family] = field(default_factory=list)
    size: int = 0
    lots: list[Lot] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The first of its topics, which no other pool has."""
        return self.families[0].topics[0]


@dataclass(slots=True)
class Problem:
    """What there is to be dealt out, and to whom."""

    members: list[PlanMember]
    pools: list[Pool]
    positions: dict[str, int]
    """By member id."""


def stated(spec: Spec, pace: Pace) -> Generator[None, None, Problem]:
    """Put a spec into numbers."""
    _check(spec)
    members = _in_order(spec)
    positions = {member.member_id: at for at, member in enumerate(members)}
    invariant(len(positions) == len(members), "no member stands twice in a spec")
    kinds = yield from _kinds(spec, members, pace)
    pools = yield from _pools(spec, kinds, pace)
    zones = [member.zone for member in members]
    for pool in pools:
        yield from _sort_by_zones(spec, pool, zones, pace)
        yield from _hold(spec, pool, positions, pace)
    return Problem(members, pools, positions)


def _check(spec: Spec) -> None:
    named = [topic for together in spec.colocate for topic in dict.fromkeys(together)]
    invariant(len(named) == len(dict.fromkeys(named)), "a topic is co-located in one set")
    invariant(all(member.capacity > 0 for member in spec.members), "a member has a capacity")


def _in_order(spec: Spec) -> list[PlanMember]:
    """Members in the order in which they are served."""
    members = sorted(spec.members, key=lambda m: (not m.instance_id, m.instance_id, m.member_id))
    if spec.assignor is Assignor.RANGE:
        return members
    ranks: dict[str, int] = {}
    turns = []
    for at, member in enumerate(members):
        rank = ranks[member.zone] = ranks.get(member.zone, 0) + 1
        turns.append((rank, member.zone, at))
    return [members[at] for _, _, at in sorted(turns)]


@dataclass(slots=True)
class _Alike:
    """The members that read the same topics."""

    topics: tuple[str, ...]
    present: list[int] = field(default_factory=list)
    away: list[int] = field(default_factory=list)


def _kinds(
    spec: Spec, members: Sequence[PlanMember], pace: Pace
) -> Generator[None, None, list[_Alike]]:
    """Members by what they read, whatever the order in which they name it."""
    known: dict[tuple[str, ...], _Alike] = {}
    said: dict[tuple[str, ...], _Alike] = {}
    for at, member in enumerate(members):
        kind = said.get(member.topics)
        if kind is None:
            names = dict.fromkeys(topic for topic in member.topics if topic in spec.topics)
            topics = tuple(sorted(names))
            kind = said[member.topics] = known.setdefault(topics, _Alike(topics))
        (kind.away if member.away else kind.present).append(at)
        if pace.due(1 + len(member.topics) // 4):
            yield
    return list(known.values())


def _pools(spec: Spec, kinds: Sequence[_Alike], pace: Pace) -> Generator[None, None, list[Pool]]:
    """Families by who reads them. Pools with the fewest readers come first."""
    readers: dict[str, list[int]] = {}
    for number, kind in enumerate(kinds):
        for topic in kind.topics:
            readers.setdefault(topic, []).append(number)
        if pace.due(1 + len(kind.topics) // 8):
            yield
    together = {topic: names for names in spec.colocate for topic in names}
    by_kinds: dict[tuple[int, ...], Pool] = {}
    placed: dict[str, None] = {}
    for topic in sorted(readers):
        if topic in placed:
            continue
        others = together.get(topic, ())
        topics = (
            topic,
            *sorted(name for name in dict.fromkeys(others) if name in readers and name != topic),
        )
        common = readers[topic]
        for other in topics[1:]:
            theirs = dict.fromkeys(readers[other])
            common = [number for number in common if number in theirs]
        if not any(kinds[number].present for number in common):  # nobody there reads all of them
            topics, common = (topic,), readers[topic]
        placed.update(dict.fromkeys(topics))
        pool = by_kinds.get(tuple(common))
        if pool is None:
            present = sorted(at for number in common for at in kinds[number].present)
            away = sorted(at for number in common for at in kinds[number].away)
            pool = by_kinds[tuple(common)] = Pool(present, away)
        pool.families.append(Family(topics, max(spec.topics[name] for name in topics)))
        if pace.due(len(topics) + len(common) // 4):
            yield
    return sorted(by_kinds.values(), key=lambda pool: (len(pool.readers), pool.name))


def _sort_by_zones(
    spec: Spec, pool: Pool, zones: Sequence[str], pace: Pace
) -> Generator[None, None, None]:
    """Find the lots of a pool's units; only `uniform` looks at zones.

    A unit of several topics is in the zones that all of its partitions with zones are in.
    """
    pool.lots.append(Lot())
    if spec.assignor is not Assignor.UNIFORM or not spec.zones:
        return
    by_zone: dict[str, list[int]] = {}
    for at in pool.readers:
        if zones[at]:
            by_zone.setdefault(zones[at], []).append(at)
    if pace.due(1 + len(pool.readers)):
        yield
    numbers: dict[tuple[str, ...], int] = {}
    for family in pool.families:
        cycles = [(topic, spec.zones[topic]) for topic in family.topics if spec.zones.get(topic)]
        if not cycles or not by_zone:
            continue
        if len(family.topics) == 1:
            lots = []
            for zones_of in cycles[0][1]:
                lots.append(_lot(pool, by_zone, [zones_of] if zones_of else [], numbers))
                if pace.due(_LOT_STEPS):
                    yield
            family.lots = (lots * (1 + family.count // len(lots)))[: family.count]
            continue
        for unit in range(family.count):
            named = [
                row[divmod(unit, len(row))[1]] for topic, row in cycles if unit < spec.topics[topic]
            ]
            family.lots.append(_lot(pool, by_zone, [one for one in named if one], numbers))
            if pace.due(_LOT_STEPS + len(cycles)):
                yield


def _lot(
    pool: Pool,
    by_zone: Mapping[str, Sequence[int]],
    lists: Sequence[Sequence[str]],
    numbers: dict[tuple[str, ...], int],
) -> int:
    """Return the number of the lot that readers are near to who are in a zone of all lists."""
    common = dict.fromkeys(lists[0] if lists else ())
    near = tuple(sorted(z for z in common if z in by_zone and all(z in one for one in lists)))
    number = numbers.get(near)
    if number is None:
        positions = [at for zone in near for at in by_zone[zone]]
        number = 0
        if 0 < len(positions) < len(pool.readers):
            number = len(pool.lots)
            pool.lots.append(Lot(dict.fromkeys(sorted(positions))))
        numbers[near] = number
    return number


def _hold(
    spec: Spec, pool: Pool, positions: Mapping[str, int], pace: Pace
) -> Generator[None, None, None]:
    """Find who holds each unit of a pool; what members hold that are away is theirs.

    They get nothing: of a unit of several partitions the others stay with whoever holds them, or
    are dealt out, and come together once the member is back or removed.
    """
    away = dict.fromkeys(pool.away)
    able = {**dict.fromkeys(pool.readers), **away}
    if pace.due(1 + len(able) // 8):
        yield
    for family in pool.families:
        rows = [_held(spec, topic, family.count, positions, able) for topic in family.topics]
        for unit in range(family.count):
            if len(rows) == 1:
                holder = rows[0][unit]
            elif away:
                holder = _keep(spec, family, unit, [row[unit] for row in rows], away)
            else:
                holder = _main([row[unit] for row in rows])
            if holder in away:
                family.owners.append(holder)
                family.holders.append(NOBODY)
            else:
                family.owners.append(NOBODY)
                family.holders.append(holder)
                pool.size += 1
                lot = pool.lots[family.lot_of(unit)]
                lot.size += 1
                if holder != NOBODY:
                    lot.claims[holder] = lot.claims.get(holder, 0) + 1
            if pace.due(len(rows)):
                yield
        yield from _describe(spec, family, pace)


def _held(
    spec: Spec, topic: str, count: int, positions: Mapping[str, int], able: Mapping[int, None]
) -> list[int]:
    """Who had each partition of a topic and may keep it."""
    last = spec.last.get(topic, ())[: spec.topics[topic]]
    held = [at if (at := positions.get(owner, NOBODY)) in able else NOBODY for owner in last]
    return held + [NOBODY] * (count - len(held))


def _main(holders: Sequence[int]) -> int:
    """Who keeps a unit whose partitions had several holders: who has most of it."""
    shares: dict[int, int] = {}
    for holder in holders:
        if holder != NOBODY:
            shares[holder] = shares.get(holder, 0) + 1
    return max(shares, key=shares.__getitem__, default=NOBODY)


def _keep(
    spec: Spec, family: Family, unit: int, holders: Sequence[int], away: Mapping[int, None]
) -> int:
    """Note what members that are away have of a unit; returns who keeps the rest of it.

    Where there is no rest, that is one of them.
    """
    for topic, holder in zip(family.topics, holders, strict=True):
        if holder in away:
            family.kept.setdefault(topic, {})[unit] = holder
    rest = [
        holder
        for topic, holder in zip(family.topics, holders, strict=True)
        if unit < spec.topics[topic] and holder not in away
    ]
    return _main(rest or holders)


def _describe(spec: Spec, family: Family, pace: Pace) -> Generator[None, None, None]:
    """Add the weights of the units where they count."""
    if spec.assignor is Assignor.WEIGHTED:
        family.weights = [0] * family.count
        for topic in family.topics:
            given = spec.weights.get(topic, ())
            for unit in range(spec.topics[topic]):
                weight = given[unit] if unit < len(given) else UNIT
                invariant(weight > 0, "a partition has a weight")
                family.weights[unit] += weight
                if pace.due(1):
                    yield
