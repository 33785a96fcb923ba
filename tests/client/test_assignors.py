"""Range against the tables of group-protocol rules 6.3 (sc-N01, sc-N15), and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.assignors import (
    RangeAssignor,
    Subscriber,
    checked_shares,
    range_shares,
    register,
    resolve,
)
from muster.errors import InvalidAssignment, InvalidConfig
from muster.types import TopicPartition


def text(shares):
    """`{"c1": "A0 A1"}`."""
    return {m: " ".join(f"{t}{p}" for t, p in keys) for m, keys in shares.items()}


@pytest.mark.parametrize(
    ("subscriptions", "counts", "wanted"),
    [
        ({"c1": "AB", "c2": "AB"}, {"A": 3, "B": 3}, {"c1": "A0 A1 B0 B1", "c2": "A2 B2"}),
        (
            {"c1": "A", "c2": "A", "c3": "A"},
            {"A": 7},
            {"c1": "A0 A1 A2", "c2": "A3 A4", "c3": "A5 A6"},
        ),
        ({"c1": "A", "c2": "A"}, {"A": 1}, {"c1": "A0", "c2": ""}),
        ({"c1": "A"}, {}, {"c1": ""}),
        ({"c1": "AZ"}, {"A": 2}, {"c1": "A0 A1"}),
        (
            {"c1": "A", "c2": "AB", "c3": "B"},
            {"A": 3, "B": 2},
            {"c1": "A0 A1", "c2": "A2 B0", "c3": "B1"},
        ),
        ({"c2": "A", "c10": "A"}, {"A": 3}, {"c2": "A2", "c10": "A0 A1"}),
    ],
)
def test_range_gives_what_the_table_says(subscriptions, counts, wanted):
    """Rows of section 6.3; members in order of their ids as strings."""
    subscribers = [Subscriber(m, tuple(topics)) for m, topics in subscriptions.items()]
    assert text(range_shares(subscribers, counts)) == wanted


topics = st.sampled_from("ABCD")
groups = st.dictionaries(
    st.text("abc", min_size=1, max_size=4), st.frozensets(topics), min_size=1, max_size=8
)


@given(groups, st.dictionaries(topics, st.integers(0, 30)), st.randoms())
def test_range_is_complete_balanced_and_blind_to_order(subscriptions, counts, random):
    """Each partition once, to a subscriber; per topic nobody has two more than another."""
    subscribers = [Subscriber(m, tuple(sorted(t))) for m, t in subscriptions.items()]
    shares = checked_shares(RangeAssignor(), subscribers, counts)
    for topic, count in counts.items():
        takers = [s.member_id for s in subscribers if topic in s.topics]
        had = {m: [p for t, p in shares[m] if t == topic] for m in takers}
        if takers:
            assert sorted(p for ps in had.values() for p in ps) == list(range(count))
            sizes = [len(ps) for ps in had.values()]
            assert max(sizes) - min(sizes) <= 1
    shuffled = list(subscribers)
    random.shuffle(shuffled)
    assert checked_shares(RangeAssignor(), shuffled, counts) == shares


class Bad:
    """An assignor that answers what it is told to."""

    name = "bad"

    def __init__(self, shares):
        self.shares = shares

    def assign(self, subscribers, partition_counts):
        return {m: [TopicPartition(k[0], int(k[1:])) for k in keys] for m, keys in self.shares}


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([("c1", ["A0", "A1"])], "nobody has B-0"),
        ([("c1", ["A0", "A0"])], "A-0 twice"),
        ([("c1", ["A0", "A2"])], "no such partition"),
        ([("c1", ["A0", "A1", "B0"])], "B-0 for 'c1', not a subscriber"),
        ([("ghost", ["A0"])], "not a subscriber"),
    ],
)
def test_an_assignor_that_would_break_the_group_is_stopped(shares, message):
    """sc-K13: the group leader refuses its own assignor's output."""
    subscribers = [Subscriber("c1", ("A",)), Subscriber("c2", ("B",))]
    with pytest.raises(InvalidAssignment, match=message):
        checked_shares(Bad(shares), subscribers, {"A": 2, "B": 1})


def test_own_assignors_are_registered_once():
    """The same object again is fine; another one of that name is not."""
    mine = Bad([])
    mine.name = "registered-once"
    register(mine)
    register(mine)
    assert resolve("registered-once") == (mine,)
    assert resolve(["registered-once", "range"])[1].name == "range"
    other = Bad([])
    other.name = "registered-once"
    with pytest.raises(InvalidConfig, match="registered"):
        register(other)
