"""Plans of the server's assignors, by example; what holds of all of them is in
tests/machine/test_plan_properties.py.
"""

import dataclasses
import itertools

import pytest

from musterd.coordinator.machine.limits import LIMITS_BY_VERSION, LIMITS_VERSION
from musterd.coordinator.machine.plan import (
    Assignor,
    Change,
    TargetPlan,
    Unowned,
    Why,
    differences,
    parts,
    plan,
)
from musterd.coordinator.machine.plan.spec import PlanMember
from musterd.invariant import InvariantError
from tests.machine.plans import changed, check, held_by, member, owners, spec

A6 = {"A": 6}
AB = {"A": 3, "B": 3}
FOOBAR = {"F": 6, "B": 3}

EXAMPLES = {
    # one member joins a group of one, which gives up the upper half
    "7.5: A alone": (spec(A6, [member("a", "A")]), {"a": "A0 A1 A2 A3 A4 A5"}, ["new"] * 6),
    "7.5: B joins": (
        spec(A6, [member("a", "A"), member("b", "A")], {"a": "A0 A1 A2 A3 A4 A5"}),
        {"a": "A0 A1 A2", "b": "A3 A4 A5"},
        ["balance"] * 3,
    ),
    # a third member joins; of the fewest moves, so three and not four as in Kafka's scenario, whose
    # target moves F2 from m1 to m2 as well
    "7.6: m3 joins": (
        spec(
            FOOBAR,
            [member("m1", "FB"), member("m2", "FB"), member("m3", "FB")],
            {"m1": "F0 F1 F2 B0 B1", "m2": "F3 F4 F5 B2"},
        ),
        {"m1": "B0 B1 F0", "m2": "B2 F3 F4", "m3": "F1 F2 F5"},
        ["balance"] * 3,
    ),
    # a static member's bounce: nothing moves while it is away, nor when another process is back
    "7.7: X is away": (
        spec(
            A6,
            [member("x", "A", instance_id="i1", away=True), member("b", "A")],
            {"x": "A0 A1 A2", "b": "A3 A4 A5"},
        ),
        {"x": "A0 A1 A2", "b": "A3 A4 A5"},
        [],
    ),
    "7.7: back as Y": (
        spec(
            A6,
            [member("y", "A", instance_id="i1"), member("b", "A")],
            {"y": "A0 A1 A2", "b": "A3 A4 A5"},
        ),
        {"y": "A0 A1 A2", "b": "A3 A4 A5"},
        [],
    ),
    "7.7: X expired": (
        spec(A6, [member("b", "A")], {"x": "A0 A1 A2", "b": "A3 A4 A5"}),
        {"b": "A0 A1 A2 A3 A4 A5"},
        ["owner left"] * 3,
    ),
    "7.7: Y after that": (
        spec(
            A6,
            [member("y", "A", instance_id="i1"), member("b", "A")],
            {"b": "A0 A1 A2 A3 A4 A5"},
        ),
        {"b": "A0 A1 A2", "y": "A3 A4 A5"},
        ["balance"] * 3,
    ),
    "uniform: fresh": (
        spec(AB, [member("m1", "AB"), member("m2", "AB")]),
        {"m1": "A0 A1 A2", "m2": "B0 B1 B2"},
        ["new"] * 6,
    ),
    "uniform: m3 is added": (
        spec(
            AB,
            [member("m1", "AB"), member("m2", "AB"), member("m3", "AB")],
            {"m1": "A0 A1 A2", "m2": "B0 B1 B2"},
        ),
        {"m1": "A0 A1", "m2": "B0 B1", "m3": "A2 B2"},
        ["balance"] * 2,
    ),
    "uniform: m2 is gone": (
        spec(
            AB,
            [member("m1", "AB"), member("m3", "AB")],
            {"m1": "A0 A1", "m2": "B0 B1", "m3": "A2 B2"},
        ),
        {"m1": "A0 A1 B0", "m3": "A2 B1 B2"},
        ["owner left"] * 2,
    ),
    "uniform: one more stays with who has it": (
        spec({"A": 5}, [member("m2", "A"), member("m1", "A")], {"m2": "A0 A1 A2", "m1": "A3 A4"}),
        {"m2": "A0 A1 A2", "m1": "A3 A4"},
        [],
    ),
    "uniform: more members than partitions": (
        spec({"A": 2}, [member(m, "A") for m in "abcd"], {"d": "A0", "b": "A1"}),
        {"d": "A0", "b": "A1"},
        [],
    ),
    "uniform: a chain of two": (
        spec(
            {"A": 3, "B": 2},
            [member("c1", "A"), member("c2", "AB"), member("c3", "B")],
            {"c1": "A0 A1 A2", "c2": "B0 B1"},
        ),
        {"c1": "A0 A1", "c2": "A2 B0", "c3": "B1"},
        ["balance"] * 2,
    ),
    "uniform: poured out one topic after the other it would be uneven by two": (
        spec({"A": 4, "B": 6}, [member("a", "AB"), member("b", "A"), member("c", "B")]),
        {"a": "A0 B0 B1", "b": "A1 A2 A3", "c": "B2 B3 B4 B5"},
        ["new"] * 10,
    ),
    "uniform: what nobody has goes where nothing moves for it": (
        spec(
            {"A": 1, "B": 1, "C": 2},
            [member("m0", "ABC"), member("m1", "ABC"), member("m2", "AB")],
            {"m0": "B0", "m1": "C1"},
        ),
        {"m0": "B0 C0", "m1": "C1", "m2": "A0"},
        ["new"] * 2,
    ),
    "uniform: what is no longer subscribed": (
        spec(
            {"A": 2, "B": 1},
            [member("c1", "B"), member("c2", "AB")],
            {"c1": "A0 B0", "c2": "A1"},
        ),
        {"c1": "B0", "c2": "A0 A1"},
        ["owner unsubscribed"],
    ),
    "uniform: topics grow, are deleted, are read by nobody": (
        spec(
            {"A": 3, "C": 1},
            [member("m1", "AB"), member("m2", "AB")],
            {"m1": "A0 B0 C0", "m2": "A1 B1"},
        ),
        {"m1": "A0 A2", "m2": "A1"},
        ["new", "gone", "gone", "gone"],
    ),
    "uniform: all that read it are away": (
        spec(
            {"A": 2, "B": 2},
            [member("m1", "A", away=True), member("m2", "B")],
            {"m1": "A1", "m0": "A0", "m2": "B0 B1"},
        ),
        {"": "A0", "m1": "A1", "m2": "B0 B1"},
        ["owner left"],
    ),
    "uniform: without members": (spec(A6, [], {"x": "A0"}), {}, ["gone"]),
    "uniform: who is away gets nothing and gives nothing": (
        spec(
            {"A": 7},
            [member("m1", "A", away=True), member("m2", "A"), member("m3", "A")],
            {"m1": "A0 A1 A2 A3", "m2": "A4"},
        ),
        {"m1": "A0 A1 A2 A3", "m2": "A4 A5", "m3": "A6"},
        ["new"] * 2,
    ),
    "co-located: fresh": (
        spec(
            {"A": 4, "B": 4, "C": 2},
            [member("m1", "ABC"), member("m2", "CBA")],
            colocate=["BA"],
        ),
        {"m1": "A0 A1 A2 B0 B1 B2", "m2": "A3 B3 C0 C1"},
        ["new"] * 10,
    ),
    "co-located: what was apart comes together": (
        spec(
            {"A": 2, "B": 2},
            [member("m1", "AB"), member("m2", "AB")],
            {"m1": "A0 A1", "m2": "B0 B1"},
            colocate=["AB"],
        ),
        {"m1": "A0 B0", "m2": "A1 B1"},
        ["balance", "co-located"],
    ),
    "co-located: who is away keeps what it has, and gets nothing": (
        spec(
            {"A": 2, "B": 2, "C": 1},
            [member("m1", "ABC", away=True), member("m2", "ABC")],
            {"m1": "A0", "m2": "A1 B0 B1"},
            colocate=["ABC"],
        ),
        {"m1": "A0", "m2": "A1 B0 B1 C0"},
        ["new"],
    ),
    "co-located: who is back gets the others, or gives up its own": (
        spec(
            {"A": 2, "B": 2, "C": 1},
            [member("m1", "ABC"), member("m2", "ABC")],
            {"m1": "A0", "m2": "A1 B0 B1 C0"},
            colocate=["ABC"],
        ),
        {"m1": "A1 B1", "m2": "A0 B0 C0"},
        ["co-located", "balance", "balance"],
    ),
    "co-located: what several have who are away stays theirs": (
        spec(
            {"A": 1, "B": 1},
            [member("m1", "AB", away=True), member("m2", "AB", away=True), member("m3", "AB")],
            {"m1": "A0", "m2": "B0"},
            colocate=["AB"],
        ),
        {"m1": "A0", "m2": "B0"},
        [],
    ),
    "co-located: where all who read both are away, each is by itself": (
        spec(
            {"A": 2, "B": 2},
            [member("m1", "AB", away=True), member("m2", "A"), member("m3", "B")],
            {"m1": "A0 B0", "m2": "A1"},
            colocate=["AB"],
        ),
        {"m1": "A0 B0", "m2": "A1", "m3": "B1"},
        ["new"],
    ),
    "co-located: nobody reads both, so each is by itself": (
        spec(
            {"A": 1, "B": 1, "C": 1},
            [member("m1", "AC"), member("m2", "B")],
            {"m1": "A0 C0", "m2": "B0"},
            colocate=["AB"],
        ),
        {"m1": "A0 C0", "m2": "B0"},
        [],
    ),
    "co-located: who reads one of both gets none of it": (
        spec(
            {"A": 2, "B": 2},
            [member("m1", "A"), member("m2", "AB")],
            {"m1": "A0 A1", "m2": "B0 B1"},
            colocate=["AB"],
        ),
        {"m2": "A0 A1 B0 B1"},
        ["co-located"] * 2,
    ),
    "co-located: a topic that nobody reads does not count": (
        spec({"A": 1, "B": 1}, [member("m1", "A")], colocate=["AB"]),
        {"m1": "A0"},
        ["new"],
    ),
    "co-located: of unequal length": (
        spec(
            {"A": 3, "B": 1},
            [member("m1", "AB"), member("m2", "AB"), member("m3", "A")],
            colocate=["AB"],
        ),
        {"m1": "A0 A1 B0", "m2": "A2"},
        ["new"] * 4,
    ),
    "zones: what is free goes to its own": (
        spec(
            A6,
            [member("m1", "A", zone="x"), member("m2", "A", zone="y")],
            zones={"A": ["x", "y"]},
        ),
        {"m1": "A0 A2 A4", "m2": "A1 A3 A5"},
        ["new"] * 6,
    ),
    "zones: what lies elsewhere is given up first": (
        spec(
            {"A": 4},
            [member("m1", "A", zone="x"), member("m2", "A", zone="y")],
            {"m1": "A0 A1 A2 A3"},
            zones={"A": ["y", "x"]},
        ),
        {"m1": "A1 A3", "m2": "A0 A2"},
        ["zone"] * 2,
    ),
    "zones: what is held moves for them": (
        spec(
            {"A": 2},
            [member("m1", "A", zone="x"), member("m2", "A", zone="y")],
            {"m1": "A0", "m2": "A1"},
            zones={"A": ["y", "x"]},
        ),
        {"m1": "A1", "m2": "A0"},
        ["zone"] * 2,
    ),
    "zones: balance comes first": (
        spec(
            {"A": 4},
            [member("m1", "A", zone="x"), member("m2", "A", zone="y")],
            {"m1": "A0 A1", "m2": "A2 A3"},
            zones={"A": ["x"]},
        ),
        {"m1": "A0 A1", "m2": "A2 A3"},
        [],
    ),
    "zones: a partition in several": (
        spec(
            {"A": 3},
            [member(m, "A", zone=z) for m, z in zip(("m1", "m2", "m3"), "xyz", strict=True)],
            {"m1": "A0", "m2": "A1", "m3": "A2"},
            zones={"A": [("x", "y"), ("y", "z"), ("x", "z")]},
        ),
        {"m1": "A0", "m2": "A1", "m3": "A2"},
        [],
    ),
    "zones: the last list is followed by the first": (
        spec(
            {"A": 5},
            [member("m1", "A", zone="x"), member("m2", "A", zone="y")],
            zones={"A": ["x", "y"]},
        ),
        {"m1": "A0 A2 A4", "m2": "A1 A3"},
        ["new"] * 5,
    ),
    "zones: who is in none comes after who is in one of them": (
        spec(
            {"A": 2},
            [member("m1", "A"), member("m2", "A", zone="x")],
            {"m1": "A0", "m2": "A1"},
            zones={"A": ["x", ()]},
        ),
        {"m1": "A1", "m2": "A0"},
        ["zone", "balance"],
    ),
    "zones: one that nobody is in is none": (
        spec(
            {"A": 2},
            [member("m1", "A", zone="x"), member("m2", "A", zone="y")],
            {"m1": "A0", "m2": "A1"},
            zones={"A": ["z", "x"]},
        ),
        {"m1": "A1", "m2": "A0"},
        ["balance", "zone"],
    ),
    "zones: of all that go together": (
        spec(
            {"A": 2, "B": 2},
            [member("m1", "AB", zone="x"), member("m2", "AB", zone="y")],
            {"m1": "A0 B0", "m2": "A1 B1"},
            zones={"A": [("x", "y")], "B": ["y", "x"]},
            colocate=["AB"],
        ),
        {"m1": "A1 B1", "m2": "A0 B0"},
        ["zone"] * 4,
    ),
    "zones: range takes no notice": (
        spec(
            {"A": 2},
            [member("m1", "A", zone="x"), member("m2", "A", zone="y")],
            assignor=Assignor.RANGE,
            zones={"A": ["y", "x"]},
        ),
        {"m1": "A0", "m2": "A1"},
        ["new"] * 2,
    ),
    "zones: they take turns": (
        spec(
            {"A": 4},
            [member(m, "A", zone=z) for m, z in zip("abcdef", "xxxyyy", strict=True)],
        ),
        {"a": "A0", "d": "A1", "b": "A2", "e": "A3"},
        ["new"] * 4,
    ),
    "range: 7 for 3": (
        spec({"A": 7}, [member(m, "A") for m in ("c1", "c2", "c3")], assignor=Assignor.RANGE),
        {"c1": "A0 A1 A2", "c2": "A3 A4", "c3": "A5 A6"},
        ["new"] * 7,
    ),
    "range: each topic by itself": (
        spec(AB, [member("c1", "AB"), member("c2", "AB")], assignor=Assignor.RANGE),
        {"c1": "A0 A1 B0 B1", "c2": "A2 B2"},
        ["new"] * 6,
    ),
    "range: static members first": (
        spec(
            {"A": 7},
            [member("zz", "A", instance_id="i1"), member("c2", "A"), member("aa", "A")],
            assignor=Assignor.RANGE,
        ),
        {"zz": "A0 A1 A2", "aa": "A3 A4", "c2": "A5 A6"},
        ["new"] * 7,
    ),
    "range: fewer partitions than members": (
        spec({"A": 1}, [member("c1", "A"), member("c2", "A")], assignor=Assignor.RANGE),
        {"c1": "A0"},
        ["new"],
    ),
    "range: around who is away": (
        spec(
            {"A": 5},
            [member("c1", "A"), member("c2", "A", away=True), member("c3", "A")],
            {"c2": "A1 A2"},
            assignor=Assignor.RANGE,
        ),
        {"c1": "A0 A3", "c2": "A1 A2", "c3": "A4"},
        ["new"] * 3,
    ),
    "weighted: after capacity": (
        spec(
            {"A": 6},
            [member("m1", "A", capacity=2000), member("m2", "A")],
            assignor=Assignor.WEIGHTED,
        ),
        {"m1": "A0 A1 A2 A4", "m2": "A3 A5"},
        ["new"] * 6,
    ),
    "weighted: heavy ones first": (
        spec(
            {"A": 5},
            [member("m1", "A"), member("m2", "A")],
            assignor=Assignor.WEIGHTED,
            weights={"A": [1000, 1000, 1000, 1000, 4000]},
        ),
        {"m1": "A4", "m2": "A0 A1 A2 A3"},
        ["new"] * 5,
    ),
    "weighted: light ones fill up": (
        spec(
            {"A": 6},
            [member("m1", "A"), member("m2", "A")],
            assignor=Assignor.WEIGHTED,
            weights={"A": [4000, 4000, 1000, 8000, 2000, 1000]},
        ),
        {"m1": "A3 A4", "m2": "A0 A1 A2 A5"},
        ["new"] * 6,
    ),
    "weighted: what a joining member gets weighs about its share": (
        spec(
            {"A": 5},
            [member("m1", "A"), member("m2", "A")],
            {"m1": "A0 A1 A2 A3 A4"},
            assignor=Assignor.WEIGHTED,
            weights={"A": [1000, 1000, 1000, 1000, 4000]},
        ),
        {"m1": "A0 A1 A2 A3", "m2": "A4"},
        ["balance"],
    ),
    "weighted: nothing moves that does not help": (
        spec(
            {"A": 2},
            [member("m1", "A"), member("m2", "A")],
            {"m1": "A0", "m2": "A1"},
            assignor=Assignor.WEIGHTED,
            weights={"A": [5000, 1000]},
        ),
        {"m1": "A0", "m2": "A1"},
        [],
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_plan_is_as_the_example_says(name):
    """In whatever order members, topics and subscriptions stand in the spec."""
    given, wanted, why = EXAMPLES[name]
    for members in itertools.islice(itertools.permutations(given.members), 24):
        turned = [dataclasses.replace(m, topics=m.topics[::-1]) for m in members]
        topics = dict(reversed(given.topics.items()))
        found = plan(dataclasses.replace(given, members=turned, topics=topics))
        assert {m: sorted(text.split()) for m, text in held_by(found.target).items()} == {
            m: sorted(text.split()) for m, text in wanted.items()
        }
        assert sorted(change.why for change in found.changes) == sorted(why)
        check(given, found)


def test_changes_say_who_had_it_who_gets_it_and_why():
    """In order of topic and partition."""
    given = spec(
        {"A": 4, "B": 1},
        [member("m1", "AB"), member("m2", "A"), member("m3", "B", instance_id="i")],
        {"m1": "A0 A1 A2", "gone": "A3", "o": "B0", "m2": "C0"},
    )
    assert changed(plan(given)) == [
        "A2 m1>m2 balance",
        "A3 gone>m2 owner left",
        "B0 o>m3 owner left",
        "C0 m2> gone",
    ]


def test_what_nobody_gets_is_named_with_the_reason():
    """Partitions whose readers are away, or that nobody may have together."""
    given = spec(
        {"A": 2, "B": 1, "C": 1},
        [member("m1", "A", away=True), member("m2", "B"), member("m3", "C")],
        {"m1": "A1"},
        colocate=["BC"],
    )
    assert plan(given).unowned == [
        Unowned("A", 0, Why.AWAY),
    ]


def test_the_same_spec_again_changes_nothing():
    """A target that is in force is kept, with every assignor."""
    members = [member(f"m{i}", "ABC"[i % 3 :] + "D", capacity=1000 + 100 * i) for i in range(7)]
    topics = {"A": 9, "B": 4, "C": 11, "D": 5}
    for assignor in Assignor:
        weights = {"A": [1000 * (i + 1) for i in range(9)]}
        first = spec(topics, members, assignor=assignor, weights=weights)
        again = dataclasses.replace(first, last=plan(first).target)
        assert plan(again).changes == []


def test_a_rolling_restart_moves_nothing():
    """Each of 50 is away in turn, then another process has its place in the target."""
    topics = {"A": 495}
    members = [member(f"m{i:02}", "A", instance_id=f"i{i:02}") for i in range(50)]
    target = plan(spec(topics, members)).target
    for at, one in enumerate(list(members)):
        members[at] = dataclasses.replace(one, away=True)
        away = plan(dataclasses.replace(spec(topics, members), last=target))
        assert away.changes == []
        members[at] = dataclasses.replace(one, member_id=f"n{at:02}")
        owners = [f"n{at:02}" if owner == one.member_id else owner for owner in target["A"]]
        back = plan(dataclasses.replace(spec(topics, members), last={"A": owners}))
        assert back.changes == []
        target = back.target


def test_a_partition_that_has_the_last_place_of_its_weight_moves_to_keep_the_bound():
    """One member has far too much of light ones: they go, and the heavy one stays."""
    given = spec(
        {"A": 9},
        [member("m1", "A"), member("m2", "A")],
        {"m1": "A0 A1 A2 A3 A4 A5 A6 A7 A8"},
        assignor=Assignor.WEIGHTED,
        weights={"A": [8000] + [1000] * 8},
    )
    assert held_by(plan(given).target) == {"m1": "A1 A2 A3 A4 A5 A6 A7 A8", "m2": "A0"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (spec({"A": 1}, [member("m", "A"), member("m", "A")]), "no member stands twice"),
        (spec({"A": 1}, [], colocate=["AB", "AC"]), "co-located in one set"),
        (spec({"A": 1}, [member("m", "A", capacity=0)]), "a capacity"),
        (
            spec({"A": 1}, [member("m", "A")], assignor=Assignor.WEIGHTED, weights={"A": [0]}),
            "a weight",
        ),
    ],
)
def test_a_spec_that_cannot_be_is_a_bug(given, says):
    """Whoever makes specs has checked what users say."""
    with pytest.raises(InvariantError, match=says):
        plan(given)


def differing(changes):
    """A plan with these changes alone."""
    return TargetPlan({}, [], changes, {})


def test_changes_go_in_parts_of_a_thousand():
    """The target is in force with the last, which may be empty where nothing changes."""
    row = [Change("A", n, "", "m", Why.NEW) for n in range(2_000)]
    assert [(len(p.changes), p.last) for p in parts(differing(row))] == [
        (1_000, False),
        (1_000, True),
    ]
    assert [(len(p.changes), p.last) for p in parts(differing(row[:1]))] == [(1, True)]
    assert [(len(p.changes), p.last) for p in parts(differing([]))] == [(0, True)]


def test_a_part_is_as_large_as_one_entry_may_carry():
    """A group refuses a larger one, so that no such plan would ever be stored."""
    limits = LIMITS_BY_VERSION[LIMITS_VERSION]
    assert limits.reconcile_max_partitions == differences.PART_PARTITIONS


def test_a_part_names_a_quarter_of_a_mebibyte_at_most():
    """Names of the greatest length, all of them different; a name counts once in each part."""
    row = [Change(f"{n:0249}", 0, f"{n:0249}"[::-1], "é" * 124, Why.BALANCE) for n in range(1_000)]
    found = list(parts(differing(row)))
    assert [change for part in found for change in part.changes] == row
    assert [part.last for part in found] == [False] * (len(found) - 1) + [True]
    assert len(found) == 2
    for part in found:
        names = {name for c in part.changes for name in (c.topic, c.former, c.owner)}
        assert sum(len(name.encode()) for name in names) <= 256 * 1024


def test_members_of_a_spec_are_what_they_say():
    """The words of the test's own helpers: a target is by topic, then by partition."""
    assert owners({"A": 2}, {"m": "A1"}) == {"A": ["", "m"]}
    assert member("m", "AB") == PlanMember("m", ("A", "B"))
