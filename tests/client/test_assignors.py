"""Range and roundrobin against gp-6.3 and gp-6.4 (sc-N01, sc-N02, sc-N04, sc-N05, sc-N15)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.assignors import (
    FunctionAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    Subscriber,
    checked_shares,
    range_shares,
    register,
    resolve,
    roundrobin_shares,
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
    """The examples of gp-6.3; members in order of their ids as strings."""
    subscribers = [Subscriber(m, tuple(topics)) for m, topics in subscriptions.items()]
    assert text(range_shares(subscribers, counts)) == wanted


@pytest.mark.parametrize(
    ("subscriptions", "counts", "wanted"),
    [
        ({"c1": "AB", "c2": "AB"}, {"A": 3, "B": 3}, {"c1": "A0 A2 B1", "c2": "A1 B0 B2"}),
        (
            {"c1": "A", "c2": "AB", "c3": "ABC"},
            {"A": 1, "B": 2, "C": 3},
            {"c1": "A0", "c2": "B0", "c3": "B1 C0 C1 C2"},
        ),
        ({"c1": "A", "c2": "A"}, {"A": 1}, {"c1": "A0", "c2": ""}),
        ({"c1": "", "c2": "A"}, {"A": 2}, {"c1": "", "c2": "A0 A1"}),
        ({"c1": "A"}, {}, {"c1": ""}),
        ({"c1": "AZ"}, {"A": 2}, {"c1": "A0 A1"}),
        ({"c1": "A"}, {"A": 1, "B": 2}, {"c1": "A0"}),
    ],
)
def test_roundrobin_gives_what_the_table_says(subscriptions, counts, wanted):
    """sc-N04: the examples of gp-6.4; a topic that nobody wants is nobody's."""
    subscribers = [Subscriber(m, tuple(topics)) for m, topics in subscriptions.items()]
    assert text(roundrobin_shares(subscribers, counts)) == wanted
    assert text(roundrobin_shares(subscribers[::-1], counts)) == wanted


def test_static_members_come_first_whatever_their_ids():
    """sc-N02: by instance id, then dynamic members by member id (gp-6.2)."""
    members = [
        Subscriber("zz", ("A",), instance_id="i1"),
        Subscriber("c2", ("A",)),
        Subscriber("aa", ("A",)),
    ]
    wanted = {"zz": "A0 A1 A2", "aa": "A3 A4", "c2": "A5 A6"}
    assert text(range_shares(members, {"A": 7})) == wanted
    wanted = {"zz": "A0 A3 A6", "aa": "A1 A4", "c2": "A2 A5"}
    assert text(roundrobin_shares(members, {"A": 7})) == wanted


@pytest.mark.parametrize("shares", [range_shares, roundrobin_shares])
def test_static_members_keep_their_shares_under_new_member_ids(shares):
    """sc-N02, sc-N05: a restart gives each a new member id and the same partitions."""
    counts = {"A": 7, "B": 5}
    before, after = (
        [Subscriber(f"{(i * salt) % 11}-{salt}", ("A", "B"), instance_id=f"i{i}") for i in range(4)]
        for salt in (3, 7)
    )
    instance = {s.member_id: s.instance_id for s in before + after}
    first, second = (
        {instance[m]: keys for m, keys in shares(members, counts).items()}
        for members in (before, after)
    )
    assert first == second
    assert sorted(range(4), key=lambda i: before[i].member_id) != sorted(
        range(4), key=lambda i: after[i].member_id
    )


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


@given(groups, st.dictionaries(topics, st.integers(0, 30)), st.randoms())
def test_roundrobin_is_complete_and_blind_to_order(subscriptions, counts, random):
    """sc-N15: each partition once, to a subscriber; among equals loads differ by one at most."""
    subscribers = [Subscriber(m, tuple(sorted(t))) for m, t in subscriptions.items()]
    shares = checked_shares(RoundRobinAssignor(), subscribers, counts)
    if len(set(subscriptions.values())) == 1:
        sizes = [len(keys) for keys in shares.values()]
        assert max(sizes) - min(sizes) <= 1
    shuffled = list(subscribers)
    random.shuffle(shuffled)
    assert checked_shares(RoundRobinAssignor(), shuffled, counts) == shares


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


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda members, counts: 1 // 0, "mine: ZeroDivisionError"),
        (lambda members, counts: None, "mine: AttributeError"),
        (lambda members, counts: {"c1": None}, "mine: TypeError"),
        (lambda members, counts: {"c1": ["A0"]}, "mine: A-0 twice, or no such partition"),
        (lambda members, counts: {"c1": [17]}, "mine: TypeError"),
    ],
)
def test_an_assignor_that_fails_is_named_in_the_error(function, message):
    """Whatever it does: the group leader says which one it was, and what happened."""
    with pytest.raises(InvalidAssignment, match=message):
        checked_shares(FunctionAssignor("mine", function), [Subscriber("c1", ("A",))], {"A": 1})


def test_plain_pairs_will_do():
    """A function may return (topic, partition) tuples."""
    pairs = FunctionAssignor("mine", lambda members, counts: {"c1": [("A", 0)]})
    shares = checked_shares(pairs, [Subscriber("c1", ("A",))], {"A": 1})
    assert shares == {"c1": (TopicPartition("A", 0),)}
    assert isinstance(shares["c1"][0], TopicPartition)


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


def test_a_function_is_an_assignor_named_after_itself():
    """One without a name of its own has to be given one; all of them are functions of two."""

    def everything_to_the_first(members, partition_counts):
        keys = [TopicPartition(t, p) for t, n in partition_counts.items() for p in range(n)]
        return {min(m.member_id for m in members): keys}

    first, second = resolve([everything_to_the_first, "sticky"])
    assert (first.name, second.name) == ("everything_to_the_first", "sticky")
    subscribers = [Subscriber("c2", ("A",)), Subscriber("c1", ("A",))]
    assert text(checked_shares(first, subscribers, {"A": 2})) == {"c2": "", "c1": "A0 A1"}
    with pytest.raises(InvalidConfig, match="no name"):
        resolve(lambda members, _: {})
    named = FunctionAssignor("mine", lambda members, _: {})
    assert resolve(named) == (named,)
    with pytest.raises(InvalidConfig, match="no name"):
        resolve(42)
