"""Plans of random specs: what holds of each, and that no plan is better where one is promised."""

import dataclasses
import itertools
import random
import sys
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.assignors import Subscriber, sticky_shares
from muster.types import TopicPartition
from musterd.coordinator.machine.plan import Assignor, PlanMember, Spec, plan, planning
from musterd.coordinator.machine.plan.loads import poured
from musterd.coordinator.machine.plan.pace import SLICE_STEPS
from tests.machine.plans import (
    are_in,
    best_outcome,
    check,
    count_plans,
    dealt,
    outcome_of,
    readers_of,
    units_of,
)


@st.composite
def specs(draw, *, members_max=6, topics_max=4, partitions_max=6, plain=False, one_pool=False):
    """Specs of all kinds; `plain` ones without co-location, or members that are away."""
    topics = {
        f"t{n}": draw(st.integers(1, partitions_max))
        for n in range(draw(st.integers(1, topics_max)))
    }
    names = [*topics, "none"]
    members = []
    for n in range(draw(st.integers(0, members_max))):
        some = draw(st.lists(st.sampled_from(names), unique=True))
        members.append(
            PlanMember(
                f"m{n}",
                tuple(names if one_pool else some),
                instance_id=draw(st.sampled_from(["", "", f"i{9 - n}"])),
                zone=draw(st.sampled_from(["", "x", "y"])),
                capacity=draw(st.integers(1, 5)) * 500,
                away=not plain and draw(st.sampled_from([False, False, True])),
            )
        )
    ids = ["", "gone", *(m.member_id for m in members)]
    last = {
        topic: draw(st.lists(st.sampled_from(ids), max_size=count + 1))
        for topic, count in {**topics, "deleted": 2}.items()
    }
    weights = {
        topic: draw(st.lists(st.integers(1, 9).map(lambda n: n * 700), max_size=count))
        for topic, count in topics.items()
    }
    lists = st.lists(st.sampled_from([(), "x", "y", "z", ("x", "y")]), max_size=3)
    zones = {topic: draw(lists) for topic in topics}
    colocate = [] if plain else draw(st.sampled_from([[], [["t0", "t1"]], [["t1", "t9", "t0"]]]))
    return Spec(members, topics, last, weights=weights, zones=zones, colocate=colocate)


@settings(max_examples=200, deadline=None)
@given(specs(), st.sampled_from(Assignor), st.randoms(use_true_random=False))
def test_each_partition_is_granted_once_or_named_whatever_the_order(given_spec, assignor, rng):
    """Who is away keeps its own, co-located partitions go together, reasons are true."""
    spec = dataclasses.replace(given_spec, assignor=assignor)
    found = plan(spec)
    check(spec, found)
    turned = dataclasses.replace(
        spec,
        members=[
            dataclasses.replace(m, topics=tuple(rng.sample(m.topics, len(m.topics))))
            for m in rng.sample(spec.members, len(spec.members))
        ],
        topics={
            topic: spec.topics[topic] for topic in rng.sample([*spec.topics], len(spec.topics))
        },
        last={topic: spec.last[topic] for topic in rng.sample([*spec.last], len(spec.last))},
    )
    assert plan(turned) == found


@settings(max_examples=100, deadline=None)
@given(specs(), st.sampled_from(Assignor))
def test_a_plan_that_is_in_force_is_kept(given_spec, assignor):
    """No plan is followed by another one while nothing changes."""
    spec = dataclasses.replace(given_spec, assignor=assignor)
    first = plan(spec)
    again = plan(dataclasses.replace(spec, last=first.target))
    assert again.changes == []
    assert again.target == first.target


# ---- uniform


def contested(rng):
    """A spec of at most 729 plans, in which somebody may hold too much, or in another zone."""
    members = rng.randint(2, 4)
    topics = {"a": rng.randint(1, 3), "b": rng.randint(1, 1 if members > 3 else 3)}
    reads = [("a", "b"), ("a", "b"), ("a",), ("b",)]
    present = [
        PlanMember(
            f"m{n}",
            reads[n and rng.randrange(4)],
            zone=rng.choice(["", "x", "y"]),
            away=n > 1 and rng.random() < 0.3,
        )
        for n in range(members)
    ]
    ids = rng.choices(["", "gone", *(m.member_id for m in present)], k=2)
    last = {topic: [rng.choice(ids) for _ in range(count)] for topic, count in topics.items()}
    zones = {topic: rng.choice(([], [], ["x"], ["x", "y"])) for topic in topics}
    together = [["a", "b"]] if rng.random() < 0.2 else []
    return Spec(present, topics, last, zones=zones, colocate=together)


@pytest.mark.parametrize("part", range(5))
def test_uniform_is_as_even_as_can_be_then_nearest_and_moves_the_least_of_such_plans(part):
    """Against every possible plan, where there are many, and the best one moves something."""
    rng = random.Random(part)
    moving = 0
    for _ in range(SPECS):
        spec = contested(rng)
        if any(len(held) > 1 for _, _, held in units_of(spec)):
            continue  # who has most of it is not said: other tests show it
        found = outcome_of(spec, plan(spec).target)
        assert found == best_outcome(spec)
        moving += count_plans(spec) >= PLANS_MIN and found[2] > 0
    assert moving >= MOVING_MIN


SPECS = 400
PLANS_MIN = 8
"""Possible plans of a spec of which there are some to choose from."""
MOVING_MIN = 50
"""Specs of so many plans whose best one moves something."""


def random_spec(rng, members, topics, partitions, kinds):
    """A larger one; some members are new, some of the holders gone, loads uneven."""
    counts = {f"t{n:02}": rng.randint(1, partitions) for n in range(topics)}
    reads = [tuple(rng.sample([*counts], rng.randint(1, topics))) for _ in range(kinds)]
    present = [
        PlanMember(f"m{n:02}", rng.choice(reads), zone=rng.choice(["", *"xyz"]))
        for n in range(members)
    ]
    ids = [f"m{n:02}" for n in range(members + 3)][rng.randint(0, members // 2) :]
    some = [rng.choice(ids) for _ in range(rng.randint(1, len(ids)))]
    return Spec(
        present,
        counts,
        {topic: [rng.choice(some) for _ in range(count)] for topic, count in counts.items()},
        zones={topic: rng.choice(ZONES) for topic in counts},
    )


ZONES = ([], ["x"], ["x", "y", "z"], ["xy", "yz", "zx"], ["x", "", "w"])
"""One letter is one zone; the lists of some topics."""


def cheaper(spec, target):
    """True where some members could pass partitions around for a better plan, by Bellman-Ford.

    An arc from one member to another is a partition that the first has and the second may have; it
    costs 1 where the first held it before, and -1 where the second did; and more than all of these
    where the first alone is in one of its zones, as much less where the second is. A closed way of
    such arcs leaves all loads as they are. A way to a member with two less evens the loads; one to
    a member with one less leaves them as even: an arc back that costs nothing closes it.
    """
    ids = {m.member_id for m in spec.members}
    far = 1 + sum(spec.topics.values())
    load = Counter(dict.fromkeys(ids, 0))
    cost = {}
    for topic, row in target.items():
        able = [m.member_id for m in readers_of(spec, topic)]
        for partition, owner in enumerate(row):
            load[owner] += 1
            held = spec.last[topic][partition]
            near = are_in(spec, [(topic, partition)])
            for other in able:
                if other != owner:
                    price = (held == owner) - (held == other)
                    price += far * ((owner in near) - (other in near))
                    cost[owner, other] = min(price, cost.get((owner, other), price))
    big = 10_000
    for one, other in itertools.permutations(sorted(ids), 2):
        # the load of `one` falls and that of `other` rises: closed by an arc back to `one`
        back = big * (load[other] + 1 - load[one])
        cost[other, one, "load"] = back
    arcs = [(key[0], key[1], price) for key, price in cost.items()]
    distance = dict.fromkeys(ids, 0)
    for _ in ids:
        changed = False
        for tail, head, price in arcs:
            if distance[tail] + price < distance[head]:
                distance[head] = distance[tail] + price
                changed = True
        if not changed:
            return False
    return True


@pytest.mark.parametrize("seed", range(60))
def test_no_passing_around_makes_a_larger_plan_better(seed):
    """A flow without such a way is the cheapest: balance, then zones, then the fewest moves."""
    rng = random.Random(seed)
    spec = random_spec(rng, rng.randint(2, 14), rng.randint(1, 10), 9, rng.randint(1, 6))
    target = plan(spec).target
    assert not cheaper(spec, target)
    worse = {topic: list(row) for topic, row in target.items()}
    changed = 0
    for topic, row in worse.items():
        for partition, owner in enumerate(row):
            others = [m.member_id for m in readers_of(spec, topic) if m.member_id != owner]
            if others and owner == spec.last[topic][partition] and not changed:
                row[partition] = others[0]
                changed = 1
    assert not changed or cheaper(spec, worse)  # the check finds it


@pytest.mark.parametrize("seed", range(20))
def test_uniform_is_as_even_as_the_clients_sticky_assignors(seed):
    """Both are as even as subscriptions allow, so their loads are the same, but for their order."""
    rng = random.Random(1000 + seed)
    spec = random_spec(rng, 12, 8, 20, 5)
    subscribers = [Subscriber(m.member_id, m.topics) for m in spec.members]
    theirs = sticky_shares(subscribers, spec.topics)
    ours = Counter({m.member_id: 0 for m in spec.members})
    for row in plan(spec).target.values():
        ours.update(row)
    assert sorted(ours.values()) == sorted(len(keys) for keys in theirs.values())
    assert all(isinstance(key, TopicPartition) for keys in theirs.values() for key in keys)


@settings(max_examples=100, deadline=None)
@given(specs(one_pool=True, plain=True))
def test_loads_differ_by_one_at_most_where_all_read_the_same(spec):
    """With `uniform`."""
    if spec.members:
        loads = Counter({m.member_id: 0 for m in spec.members})
        for row in plan(spec).target.values():
            loads.update(row)
        assert max(loads.values()) - min(loads.values()) <= 1


@pytest.mark.parametrize("seed", range(40))
def test_the_most_that_can_of_what_is_dealt_out_lies_in_its_owners_zone(seed):
    """Where all read the same and nobody had anything: by zone, what there is or the room."""
    rng = random.Random(seed)
    members = [PlanMember(f"m{n}", ("a", "b"), zone=rng.choice("xyz")) for n in range(6)]
    topics = {"a": 7, "b": 11}
    zones = {topic: [rng.choice("xyz") for _ in range(count)] for topic, count in topics.items()}
    target = plan(Spec(members, topics, zones=zones)).target
    zone = {m.member_id: m.zone for m in members}
    room, there, met = Counter(), Counter(), Counter()
    for topic, row in target.items():
        for partition, owner in enumerate(row):
            room[zone[owner]] += 1
            there[zones[topic][partition]] += 1
            met[zone[owner]] += zone[owner] == zones[topic][partition]
    assert {z: met[z] for z in "xyz"} == {z: min(room[z], there[z]) for z in "xyz"}


# ---- weighted


def shares_of(spec: Spec):
    """What each member's share is, and the bound: from the documentation.

    The weight of the topics that the same members read is poured out over them, the fewest readers
    first, and those with the first topic's name first.
    """
    pools = {}
    for partitions, able, _ in units_of(spec):
        pools.setdefault(tuple(able), []).append(partitions)
    ranked = sorted(pools.items(), key=lambda pool: (len(pool[0]), min(p[0][0] for p in pool[1])))
    capacity = {m.member_id: m.capacity for m in spec.members}
    shares = Counter()
    heaviest = 0
    for able, units in ranked:
        sizes = [sum(weight_of(spec, key) for key in partitions) for partitions in units]
        heaviest = max(heaviest, *sizes)
        # the order in which remainders of a thousandth go to members makes 1 for each pool
        poured_out = poured(sum(sizes), [shares[m] for m in able], [capacity[m] for m in able])
        shares.update(dict(zip(able, poured_out, strict=True)))
    return shares, heaviest * len(pools) + len(pools)


def weight_of(spec, key):
    """The weight of a partition."""
    given_weights = spec.weights.get(key[0], ())
    return given_weights[key[1]] if key[1] < len(given_weights) else 1000


@settings(max_examples=200, deadline=None)
@given(specs(members_max=7))
def test_weighted_is_never_farther_from_the_ideal_than_its_bound(given_spec):
    """The heaviest unit times the sets of readers; less than it where all read the same."""
    spec = dataclasses.replace(given_spec, assignor=Assignor.WEIGHTED)
    shares, bound = shares_of(spec)
    units = list(units_of(spec))
    loads = Counter()
    for (partitions, _, _), owner in zip(units, dealt(spec, plan(spec).target, units), strict=True):
        loads[owner] += sum(weight_of(spec, key) for key in partitions)
    for m in spec.members:
        assert abs(loads[m.member_id] - shares[m.member_id]) <= bound


@settings(max_examples=300, deadline=None)
@given(specs(members_max=5, one_pool=True, plain=True))
def test_weighted_leaves_no_move_that_helps(given_spec):
    """Where all read the same: from the one that has most above its share to who lacks most."""
    spec = dataclasses.replace(given_spec, assignor=Assignor.WEIGHTED)
    shares, bound = shares_of(spec)
    target = plan(spec).target
    lacks = Counter(shares)
    for topic, row in target.items():
        for partition, owner in enumerate(row):
            lacks[owner] -= weight_of(spec, (topic, partition))
    for topic, row in target.items():
        for partition, owner in enumerate(row):
            weight = weight_of(spec, (topic, partition))
            assert max(lacks.values()) - lacks[owner] <= weight + 2  # of rounding
    assert all(abs(lack) <= bound for lack in lacks.values())


def moved_and_bound(spec, holders):
    """What `weighted` takes from those who hold all units, by weight; its bound; all there is.

    The bound is weight beyond somebody's share, and a heaviest unit per member; for each pool.
    """
    spec = dataclasses.replace(spec, assignor=Assignor.WEIGHTED)
    shares, farthest = shares_of(spec)
    units = list(units_of(spec))
    weights = [weight_of(spec, key) for (key,), _, _ in units]
    last = {topic: [""] * count for topic, count in spec.topics.items()}
    beyond = Counter({m: -share for m, share in shares.items()})
    for (((topic, partition),), _, _), holder, weight in zip(units, holders, weights, strict=True):
        last[topic][partition] = holder
        beyond[holder] += weight
    owners = dealt(spec, plan(dataclasses.replace(spec, last=last)).target, units)
    each = zip(weights, holders, owners, strict=True)
    moved = sum(weight for weight, holder, owner in each if owner != holder)
    pools = len({tuple(able) for _, able, _ in units})
    return moved, pools * sum((+beyond).values()) + farthest * len(spec.members), sum(weights)


@settings(max_examples=300, deadline=None)
@given(specs(plain=True), st.randoms(use_true_random=False))
def test_weighted_moves_no_more_than_its_bound(given_spec, rng):
    """Whoever holds what."""
    holders = [rng.choice(sorted(able)) for _, able, _ in units_of(given_spec)]
    moved, bound, _ = moved_and_bound(given_spec, holders)
    assert moved <= bound


@pytest.mark.parametrize("seed", range(60))
def test_weighted_moves_no_more_than_its_bound_of_many_partitions(seed):
    """Of so many it is less than all there is: who deals out everything anew goes beyond it."""
    rng = random.Random(seed)
    spec = random_spec(rng, members=3, topics=3, partitions=90, kinds=2)
    weights = {t: [rng.randint(1, 3) * 700 for _ in range(n)] for t, n in spec.topics.items()}
    spec = dataclasses.replace(spec, assignor=Assignor.WEIGHTED, weights=weights)
    units = list(units_of(spec))
    owners = dealt(spec, plan(spec).target, units)
    holders = [  # some of it is not where it was planned to be
        owner if rng.random() < 0.8 else rng.choice(sorted(able))
        for (_, able, _), owner in zip(units, owners, strict=True)
    ]
    moved, bound, everything = moved_and_bound(spec, holders)
    assert moved <= bound < everything


TAKEN_BACK = Spec(
    members=[
        PlanMember("m2", ("b", "c"), capacity=500),
        PlanMember("m3", ("b", "c")),
        PlanMember("m6", ("b", "c")),
        PlanMember("m7", ("b",), capacity=3000),
    ],
    topics={"c": 3, "b": 1},
    last={"c": ["m2"] * 3, "b": ["m2"]},
)


@settings(max_examples=200, deadline=None)
@example(TAKEN_BACK)
@given(specs(members_max=6))
def test_weighted_has_nothing_to_move_right_after_it_moved(given_spec):
    """Also where a partition went to one member and from there to another."""
    spec = dataclasses.replace(given_spec, assignor=Assignor.WEIGHTED)
    assert plan(dataclasses.replace(spec, last=plan(spec).target)).changes == []


@given(
    st.integers(0, 1000),
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 5)), min_size=1, max_size=8),
)
def test_what_is_poured_out_stands_at_one_level(amount, loaded):
    """Who gets some ends within 1 of the level, nobody that got some is above one that got none."""
    loads, capacities = zip(*loaded, strict=True)
    shares = poured(amount, loads, capacities)
    assert sum(shares) == amount
    assert min(shares) >= 0
    for i, share in enumerate(shares):
        for j in range(len(shares)):
            if share:
                assert (loads[i] + share - 1) * capacities[j] <= (loads[j] + shares[j] + 1) * (
                    capacities[i]
                )


# ---- slices


def lines_of_slices(spec: Spec):
    """How many lines of Python each slice of planning runs."""
    lines = [0]

    def count(_frame, event, _argument):
        lines[-1] += event == "line"
        return count

    steps = planning(spec)
    before = sys.gettrace()
    sys.settrace(count)
    try:
        while True:
            try:
                next(steps)
            except StopIteration:
                break
            lines.append(0)
    finally:
        sys.settrace(before)
    return lines


def large(members, topics, partitions, assignor, *, alike):
    """A group of some size, half of which somebody holds."""
    rng = random.Random(5)
    names = [f"t{n:03}" for n in range(topics)]
    present = [
        PlanMember(
            f"m{n:03}",
            tuple(names if alike else rng.sample(names, topics // 2)),
            zone="xyz"[n % 3],
            capacity=1000 + n % 7,
        )
        for n in range(members)
    ]
    last = {
        name: [rng.choice(["", f"m{rng.randrange(members):03}"]) for _ in range(partitions)]
        for name in names
    }
    zones = {name: [rng.choice("xyz") for _ in range(partitions)] for name in names}
    weights = {name: [rng.randint(500, 9000) for _ in range(partitions)] for name in names}
    return Spec(
        present,
        dict.fromkeys(names, partitions),
        last,
        assignor,
        weights=weights,
        zones=zones,
        colocate=[names[:3]],
    )


@pytest.mark.parametrize("assignor", Assignor)
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize(("members", "topics", "partitions"), [(200, 40, 50), (20, 2, 4000)])
def test_no_slice_runs_many_lines(assignor, alike, members, topics, partitions):
    """However large a group is: the loop goes on between two slices."""
    spec = large(members, topics, partitions, assignor, alike=alike)
    lines = lines_of_slices(spec)
    assert len(lines) > 4
    assert max(lines) < 20 * SLICE_STEPS


def test_planning_at_once_is_planning_in_slices():
    """The same plan."""
    spec = large(30, 10, 200, Assignor.UNIFORM, alike=False)
    stops = []

    def watched():
        found = yield from planning(spec)
        stops.append(found)

    slices = sum(1 for _ in watched())
    assert stops == [plan(spec)]
    assert slices > 3
