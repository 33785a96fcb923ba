"""The protocol of a generation: what it costs to select it, and that it is the right one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musterd.coordinator.machine.commands import Protocol
from musterd.coordinator.machine.decide.protocols import select
from musterd.coordinator.machine.state import Member


def member(protocols):
    """A member that lists these."""
    return Member("m", "m", "h", 10_000, 60_000, protocols, (), 0, 1)


class Counted(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other):
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize(("members", "names"), [(2, 1_000), (40, 50), (1_000, 2)])
def test_selection_looks_at_each_name_a_few_times(members, names, alike):
    """Linear in the names, where all list the same and where they share the last one alone."""
    lists = [
        [f"{'x' if alike else number}-{name}" for name in range(names - 1)] + ["common"]
        for number in range(members)
    ]
    everybody = [member(tuple(Protocol(Counted(name), b"") for name in own)) for own in lists]
    Counted.compared = 0
    assert select(everybody, everybody[0]) == ("x-0" if alike else "common")
    assert Counted.compared <= 3 * members * names


@given(st.lists(st.lists(st.sampled_from("abcde"), max_size=6), min_size=1, max_size=5))
def test_selection_is_what_counting_by_hand_gives(lists):
    """gp-3.1, read off its words: who is a candidate, who votes for whom, who wins a tie."""
    lists = [["z", *names] if number % 2 else [*names, "z"] for number, names in enumerate(lists)]
    members = [member(tuple(Protocol(n, b"") for n in names)) for names in lists]
    for leader, own in zip(members, lists, strict=True):
        common = [name for name in own if all(name in names for names in lists)]
        votes = [next(name for name in names if name in common) for names in lists]
        most = max(votes.count(name) for name in common)
        assert select(members, leader) == next(n for n in common if votes.count(n) == most)
