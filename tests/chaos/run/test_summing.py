"""How large a run was."""

from pathlib import Path

from musterd.chaos.history import Key, Ownership
from musterd.chaos.run.workload_counts import largest, most_members
from musterd.chaos.workloads.catalog import Setting, plan
from tests.chaos.check.made import history


def owned(member, from_ns, until_ns, partition=0, group="g"):
    """A partition in the hands of a member."""
    return Ownership(member, Key(group, "t", partition), member, 1, from_ns, until_ns, "left")


def test_members_that_follow_each_other_are_not_there_at_one_time():
    """A thousand that came and went one after the other are one, also where they meet."""
    assert most_members(owned(f"m{n}", n, n + 1) for n in range(1_000)) == 1
    made = plan(["W1"], Setting("p", "p", 3, 16, Path("nowhere")))
    followed = history(ownerships=[owned("a", 0, 5), owned("b", 6, 9)])
    assert largest(made, followed)["members"] == 1


def test_members_whose_times_overlap_are_counted_together():
    """In all groups; one that owns several partitions is one, one that still owns is there."""
    held = [
        owned("a", 0, 10),
        owned("a", 0, 10, partition=1),
        owned("b", 4, None),
        owned("a", 6, 8, group="other"),
        owned("c", 12, 14),
    ]
    assert most_members(held) == 3
    assert most_members([]) == 0


def test_a_member_stays_one_between_two_of_its_assignments():
    """An eager round takes everything away for a moment; the group has not shrunk."""
    held = [owned("a", 0, 5), owned("a", 8, 12), owned("b", 0, 6), owned("b", 7, 12)]
    between = [owned("c", 5, 7)]
    assert most_members([*held, *between]) == 3
