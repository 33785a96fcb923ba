"""The sticky algorithm against gp-6.5 and gp-6.6 (sc-N06 to sc-N11, sc-N15)."""

import dataclasses
import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.assignors import least_moves
from muster.assignors import (
    CooperativeStickyAssignor,
    StickyAssignor,
    Subscriber,
    checked_shares,
    sticky_shares,
    withheld,
)
from muster.types import TopicPartition


def keys_of(text):
    """`"A0 B12"`."""
    return tuple(TopicPartition(one[0], int(one[1:])) for one in text.split())


def member(member_id, topics, owned="", generation=1, *, keeps=False):
    """A subscriber, tersely."""
    return Subscriber(member_id, tuple(topics), keys_of(owned), generation, keeps_owned=keeps)


def text(shares):
    """`{"c1": "A0 A1"}`, sorted."""
    return {m: " ".join(f"{t}{p}" for t, p in sorted(keys)) for m, keys in shares.items()}


AB = {"A": 3, "B": 3}

EXAMPLES = {
    "fresh": (
        [member("c1", "AB"), member("c2", "AB")],
        AB,
        {"c1": "A0 A2 B1", "c2": "A1 B0 B2"},
    ),
    "c3 is added": (
        [member("c1", "AB", "A0 A2 B1"), member("c2", "AB", "A1 B0 B2"), member("c3", "AB")],
        AB,
        {"c1": "A0 B1", "c2": "A1 B0", "c3": "A2 B2"},
    ),
    "c2 leaves": (
        [member("c1", "AB", "A0 B1"), member("c3", "AB", "A2 B2")],
        AB,
        {"c1": "A0 A1 B1", "c3": "A2 B0 B2"},
    ),
    "one slot for the maximum, the first to claim it has it": (
        [member("c1", "A", "A0 A1"), member("c2", "A", "A2 A3"), member("c3", "A")],
        {"A": 4},
        {"c1": "A0 A1", "c2": "A2", "c3": "A3"},
    ),
    "two claim A1 under one generation": (
        [member("c1", "A", "A0 A1"), member("c2", "A", "A2 A1")],
        {"A": 4},
        {"c1": "A0 A1", "c2": "A2 A3"},
    ),
    "all under the minimum keep all": (
        [member("c1", "A", "A5"), member("c2", "A", "A1")],
        {"A": 6},
        {"c1": "A0 A3 A5", "c2": "A1 A2 A4"},
    ),
    "owners above the maximum give up the highest": (
        [member("c1", "A", "A0 A1 A2 A3 A4"), member("c2", "A")],
        {"A": 5},
        {"c1": "A0 A1 A2", "c2": "A3 A4"},
    ),
    "owners at the minimum and at the maximum stay": (
        [member("c1", "A", "A4 A3"), member("c2", "A", "A0 A1 A2")],
        {"A": 5},
        {"c1": "A3 A4", "c2": "A0 A1 A2"},
    ),
    "more members than partitions": (
        [member("c1", "A"), member("c2", "A", "A1"), member("c3", "A"), member("c4", "A", "A0")],
        {"A": 2},
        {"c1": "", "c2": "A1", "c3": "", "c4": "A0"},
    ),
    "a partition is added": (
        [member("c1", "A", "A0 A2"), member("c2", "A", "A1")],
        {"A": 4},
        {"c1": "A0 A2", "c2": "A1 A3"},
    ),
    "a topic is added": (
        [member("c1", "AB", "A0 A2"), member("c2", "AB", "A1")],
        {"A": 3, "B": 1},
        {"c1": "A0 A2", "c2": "A1 B0"},
    ),
    "a topic is gone": (
        [member("c1", "AB", "A0 B0 B1"), member("c2", "AB", "A1 A2 B2")],
        {"A": 3},
        {"c1": "A0", "c2": "A1 A2"},
    ),
    "a partition that does not exist is nobody's": (
        [member("c1", "A", "A0 A7")],
        {"A": 2},
        {"c1": "A0 A1"},
    ),
    "a stale claim loses to a later one": (
        [member("c1", "A", "A0 A1", generation=1), member("c2", "A", "A1 A2", generation=2)],
        {"A": 4},
        {"c1": "A0 A3", "c2": "A1 A2"},
    ),
    "a stale claim that nobody disputes counts": (
        [member("c1", "A", "A3", generation=1), member("c2", "A", "A0 A1", generation=9)],
        {"A": 4},
        {"c1": "A2 A3", "c2": "A0 A1"},
    ),
    "a claim without a generation is the weakest": (
        [member("c1", "A", "A0 A1", generation=-1), member("c2", "A", "A1", generation=0)],
        {"A": 3},
        {"c1": "A0 A2", "c2": "A1"},
    ),
    "three generations": (
        [
            member("c1", "A", "A0 A1 A2", generation=1),
            member("c2", "A", "A0 A1", generation=2),
            member("c3", "A", "A0", generation=3),
        ],
        {"A": 3},
        {"c1": "A2", "c2": "A1", "c3": "A0"},
    ),
    "unequal subscriptions": (
        [member("c1", "A"), member("c2", "AB"), member("c3", "ABC")],
        {"A": 1, "B": 2, "C": 3},
        {"c1": "A0", "c2": "B0 B1", "c3": "C0 C1 C2"},
    ),
    "what is no longer subscribed is given up": (
        [member("c1", "B", "A0 B0"), member("c2", "AB", "A1")],
        {"A": 2, "B": 1},
        {"c1": "B0", "c2": "A0 A1"},
    ),
    "a chain of two: c3 can be helped by way of c2 alone": (
        [member("c1", "A", "A0 A1 A2"), member("c2", "AB", "B0 B1"), member("c3", "B")],
        {"A": 3, "B": 2},
        {"c1": "A0 A1", "c2": "A2 B0", "c3": "B1"},
    ),
    "who had it before the last owner gets it back": (
        [
            member("c1", "A", "A0 A1 A2 A3", generation=2),
            member("c2", "AB", "B0"),
            member("c3", "AC", "A2", generation=1),
        ],
        {"A": 4, "B": 1},
        {"c1": "A0 A1", "c2": "A3 B0", "c3": "A2"},
    ),
}
RULES = {
    "sc-N06": ["all under", "owners", "one slot", "more members"],
    "sc-N07": ["fresh", "c3 is added", "c2 leaves", "a partition", "a topic", "what is no"],
    "sc-N08": ["two claim", "a stale", "a claim without", "three"],
    "sc-N09": ["unequal", "a chain", "who had it"],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_sticky_gives_what_the_example_says(name):
    """The worked examples of gp-6.5 and one for each part of sc-N06 to sc-N09."""
    members, counts, wanted = EXAMPLES[name]
    for one in itertools.permutations(members):
        shares = checked_shares(StickyAssignor(), one, counts)
        assert text(shares) == {m.member_id: wanted[m.member_id] for m in one}


def test_each_example_belongs_to_a_scenario():
    """Every one is named by a scenario, and each scenario has some."""
    for name in EXAMPLES:
        assert any(name.startswith(part) for parts in RULES.values() for part in parts), name
    for parts in RULES.values():
        assert all(any(name.startswith(part) for name in EXAMPLES) for part in parts)


# ---- cooperative


def kept_by(members):
    """The same, each of them still at work on what it owns."""
    return [dataclasses.replace(m, keeps_owned=True) for m in members]


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("fresh", ""),
        ("c3 is added", "A2 B2"),
        ("c2 leaves", ""),
        ("one slot for the maximum, the first to claim it has it", "A3"),
        ("two claim A1 under one generation", "A1"),
        ("a stale claim loses to a later one", ""),
    ],
)
def test_what_moves_from_a_living_owner_waits_for_the_next_round(name, waits):
    """sc-N11, gp-6.6: with A1 claimed twice, even the claimant that gets it has to wait."""
    members, counts, _ = EXAMPLES[name]
    shares = checked_shares(CooperativeStickyAssignor(), kept_by(members), counts)
    assert withheld(shares, kept_by(members)) == set(keys_of(waits))
    assert not withheld(shares, members), "eager members hold nothing back"


def test_the_worked_example_of_two_rounds():
    """sc-N11: round one takes A2 and B2 from their owners and gives them to nobody; round two does.

    c1 and c2 never stop A0 B1 B0 A1.
    """
    members = kept_by(EXAMPLES["c3 is added"][0])
    first = round_of(members, AB)
    assert text(first) == {"c1": "A0 B1", "c2": "A1 B0", "c3": ""}
    members = [dataclasses.replace(m, owned=first[m.member_id], generation=2) for m in members]
    assert text(round_of(members, AB)) == {"c1": "A0 B1", "c2": "A1 B0", "c3": "A2 B2"}


def test_an_eager_member_in_a_mixed_group_neither_waits_nor_makes_wait():
    """The rolling restart from eager to cooperative: c1 gave everything up, c2 did not."""
    members = [
        member("c1", "A", "A0 A1 A2"),
        member("c2", "A", "A3 A4 A5", keeps=True),
        member("c3", "A", keeps=True),
    ]
    shares = checked_shares(CooperativeStickyAssignor(), members, {"A": 6})
    assert text(shares) == {"c1": "A0 A1", "c2": "A3 A4", "c3": "A2 A5"}
    assert withheld(shares, members) == set(keys_of("A5"))


def round_of(members, counts):
    """What members own after one cooperative round."""
    shares = checked_shares(CooperativeStickyAssignor(), members, counts)
    waits = withheld(shares, members)
    return {m: tuple(key for key in keys if key not in waits) for m, keys in shares.items()}


# ---- properties

TOPICS = "ABCD"
counts_of = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12), min_size=1)


@st.composite
def groups(draw, *, equal=False, members_max=7):
    """Members with contradictory claims under several generations, and partition counts."""
    counts = draw(counts_of)
    keys = [TopicPartition(t, p) for t in TOPICS for p in range(counts.get(t, 0) + 1)]
    shared = draw(st.frozensets(st.sampled_from(TOPICS)))
    members = []
    for i in range(draw(st.integers(1, members_max))):
        topics = shared if equal else draw(st.frozensets(st.sampled_from(TOPICS)))
        owned = draw(st.frozensets(st.sampled_from(keys), max_size=12))
        generation = draw(st.integers(-1, 3))
        members.append(Subscriber(f"m{i}", tuple(topics), tuple(owned), generation))
    return members, counts


def undisputed(members, counts):
    """Step 0 once more, from the rule: who has the only claim under the latest generation."""
    owner = {}
    for key in {key for m in members for key in m.owned}:
        claims = [m for m in members if key in m.owned and key.topic in m.topics]
        latest = [m for m in claims if m.generation == max(c.generation for c in claims)]
        if len(latest) == 1 and key.partition < counts.get(key.topic, 0):
            owner[key] = latest[0].member_id
    return owner


@given(groups(equal=True))
def test_equal_subscriptions_are_balanced_and_move_the_least(group):
    """sc-N15: loads within one of each other; no assignment so balanced keeps more claims."""
    members, counts = group
    shares = checked_shares(StickyAssignor(), members, counts)
    sizes = [len(keys) for keys in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    owner = undisputed(members, counts)
    kept = sum(owner.get(key) == m for m, keys in shares.items() for key in keys)
    claimed = [list(owner.values()).count(m.member_id) for m in members]
    assert sum(sizes) - kept == least_moves(claimed, sum(sizes))


@given(groups(), st.randoms())
def test_members_in_any_order_get_the_same(group, random):
    """sc-N15: so it makes no difference which member computes."""
    members, counts = group
    shuffled = [
        dataclasses.replace(m, owned=m.owned[::-1], topics=m.topics[::-1])
        for m in random.sample(members, len(members))
    ]
    assert checked_shares(StickyAssignor(), shuffled, counts) == checked_shares(
        StickyAssignor(), members, counts
    )


@given(groups())
def test_an_assignment_that_is_there_stays(group):
    """sc-N15: the same group once more moves nothing."""
    members, counts = group
    shares = checked_shares(StickyAssignor(), members, counts)
    again = [dataclasses.replace(m, owned=shares[m.member_id], generation=9) for m in members]
    assert checked_shares(StickyAssignor(), again, counts) == shares


@given(groups())
def test_unequal_subscriptions_are_as_balanced_as_can_be(group):
    """sc-N09: no chain of members along which each hands one partition on would level the loads.

    That is more than Kafka's "balanced", which looks at one step only.
    """
    members, counts = group
    shares = checked_shares(StickyAssignor(), members, counts)
    takers = {t: [m.member_id for m in members if t in m.topics] for t in TOPICS}
    for start in shares:
        reached, new = {start}, [start]
        while new:
            for key in shares[new.pop()]:
                fresh = set(takers[key.topic]) - reached
                reached |= fresh
                new += fresh
        assert all(len(shares[m]) + 2 > len(shares[start]) for m in reached)


@given(groups(members_max=3))
def test_unequal_subscriptions_against_everything_there_is(group):
    """sc-N09: no other assignment has a smaller sum of squared loads; of those that have the same
    none moves fewer claimed partitions. Small groups only.
    """
    members, counts = group
    counts = {t: min(n, 2) for t, n in counts.items()}
    shares = checked_shares(StickyAssignor(), members, counts)
    owner = undisputed(members, counts)

    def cost(chosen):
        moved = sum(owner.get(key, m) != m for key, m in chosen)
        return sum(n * n for n in Counter(m for _, m in chosen).values()), moved

    given_to = sorted((key, m) for m, keys in shares.items() for key in keys)
    options = [
        [(key, m.member_id) for m in members if key.topic in m.topics] for key, _ in given_to
    ]
    assert cost(given_to) == min(cost(chosen) for chosen in itertools.product(*options))


@given(groups())
def test_no_two_members_swap_partitions_of_one_topic(group):
    """sc-N09: where c1 gives up a partition of a topic, it gets none of that topic from others."""
    members, counts = group
    shares = checked_shares(StickyAssignor(), members, counts)
    owner = undisputed(members, counts)
    for m, topic in itertools.product(members, TOPICS):
        had = {key for key, who in owner.items() if who == m.member_id and key.topic == topic}
        has = {key for key in shares[m.member_id] if key.topic == topic}
        assert not (had - has and has - had)


@given(groups(), st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=1, max_size=4))
def test_cooperative_rounds_end_after_two_and_nobody_ever_shares(group, changes):
    """sc-N11: whatever the subscriptions; members come and go, and claims are what they own.

    In no round is a partition given to one while another one still works on it.
    """
    everybody, counts = group
    everybody = kept_by(dataclasses.replace(m, owned=()) for m in everybody)
    there = {m.member_id: m for m in everybody[:1]}
    generation = 0
    for joins, which in changes:
        one = everybody[which % len(everybody)]
        if joins:
            there.setdefault(one.member_id, one)
        elif len(there) > 1:
            there.pop(one.member_id, None)
        for number in itertools.count(1):
            generation += 1
            before = {key: m.member_id for m in there.values() for key in m.owned}
            owned = round_of(list(there.values()), counts)
            taken = {key for m, keys in owned.items() for key in keys if before.get(key, m) != m}
            assert not taken
            waits = before.keys() - {key for keys in owned.values() for key in keys}
            there = {
                m: dataclasses.replace(one, owned=owned[m], generation=generation)
                for m, one in there.items()
            }
            if not waits:
                break
            assert number < 2, "a third round"
        wanted = {t for m in there.values() for t in m.topics}
        total = sum(n for t, n in counts.items() if t in wanted)
        assert sum(len(m.owned) for m in there.values()) == total


@pytest.mark.timeout(60)
def test_a_group_at_its_limits_takes_bounded_time():
    """sc-N09, large: 1,000 members, 100 topics, 10,000 partitions, all of them with one member."""
    topics = tuple(f"t{i:02}" for i in range(100))
    counts = dict.fromkeys(topics, 100)
    everything = tuple(TopicPartition(t, p) for t in topics for p in range(100))
    members = [Subscriber(f"m{i:03}", topics, everything if i == 0 else ()) for i in range(999)]
    members.append(Subscriber("odd", topics[:1]))
    shares = sticky_shares(members, counts)
    assert {len(keys) for keys in shares.values()} == {10}
