"""The SDK's test kit shares out as the planner does, where all members read the same topics."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.testing.plans import Subscriber, assignor_of, share_out
from muster.types import TopicPartition
from musterd.coordinator.machine.plan import Assignor, PlanMember, Spec, plan

MEMBERS = st.lists(
    st.tuples(st.sampled_from("abcdefg"), st.booleans(), st.integers(1, 4)),
    min_size=1,
    max_size=5,
    unique_by=lambda one: one[0],
)
COUNTS = st.dictionaries(st.sampled_from("tuv"), st.integers(1, 9), min_size=1, max_size=3)


@pytest.mark.parametrize("assignor", list(Assignor))
@given(histories=st.lists(MEMBERS, min_size=1, max_size=3), counts=COUNTS)
def test_the_kit_shares_out_as_evenly_as_the_planner(assignor, histories, counts):
    """One set of members after the other; `range` gives the very partitions, too."""
    before, last = {}, {}
    for members in histories:
        read = frozenset(counts)
        readers = [
            Subscriber(name, name * is_static, read, 1_000 * capacity, False)
            for name, is_static, capacity in members
        ]
        spec = Spec(
            [
                PlanMember(name, tuple(sorted(counts)), name * is_static, "", 1_000 * capacity)
                for name, is_static, capacity in members
            ],
            counts,
            last,
            assignor,
        )
        last = plan(spec).target
        before = share_out(assignor.value, readers, counts, before)
        told = {TopicPartition(t, p): name for t, row in last.items() for p, name in enumerate(row)}
        assert before.keys() == told.keys()
        mine, theirs = Counter(before.values()), Counter(told.values())
        if assignor is Assignor.RANGE:
            assert before == told
        elif assignor is Assignor.UNIFORM:
            assert sorted(mine.values()) == sorted(theirs.values())
        whole = sum(one.capacity for one in readers)
        for one in readers:
            for loads in (mine, theirs) if assignor is Assignor.WEIGHTED else ():
                assert abs(loads[one.member_id] * whole - len(told) * one.capacity) < whole


def test_who_is_away_keeps_what_it_has_and_gets_no_more():
    """But where nobody else reads it."""
    read = frozenset("t")
    away = Subscriber("a", "", read, 1_000, True)
    here = Subscriber("b", "", read, 1_000, False)
    first = {TopicPartition("t", 0): "a"}
    for assignor in Assignor:
        shared = share_out(assignor.value, (away, here), {"t": 4}, first)
        assert [*shared.values()] == ["a", "b", "b", "b"]
        assert {*share_out(assignor.value, (away,), {"t": 4}, first).values()} == {"a"}


def test_the_assignor_that_most_members_name_is_the_one():
    """Of several the first of the list, which is also that of members without a preference."""
    assert assignor_of(["", "range", "weighted", "range"]) == "range"
    assert assignor_of(["weighted", "range"]) == "range"
    assert assignor_of([""]) == assignor_of([]) == "uniform"
