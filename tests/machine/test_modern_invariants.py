"""Each invariant of modern groups is really checked: a state that is broken in one way is found."""

import copy
from dataclasses import replace

import pytest

from musterd.coordinator.machine.commands import Protocol
from musterd.coordinator.machine.invariants import check
from musterd.invariant import InvariantError
from tests.machine.world import World


@pytest.fixture
def group():
    """Two members that have two partitions each."""
    world = World()
    for line in ("topic t 4", "hear a join topics=t", "hear b join topics=t", "settle"):
        world.run(line)
    return copy.deepcopy(world.state.groups["g"])


def two_owners(group):
    """The second member has a partition of the first one, too, under a later token."""
    first, second = group.modern.members.values()
    partition = next(iter(first.assigned["t"]))
    second.assigned["t"] = {**second.assigned["t"], partition: group.fence}


def untaken_token(group):
    """A grant has a token that the group has not taken yet."""
    member = group.modern.members["a"]
    partition = next(iter(member.assigned["t"]))
    member.assigned["t"] = {**member.assigned["t"], partition: group.fence + 1}


def told_to_join(group):
    """A classic member's grants changed since its Join, and it has no deadline to join again."""
    member = group.modern.members["a"]
    member.protocols, member.version = (Protocol("range", b""),), member.given + 1


def given_up(group):
    """A member has lost a grant, and what is derived says that it has it."""
    member = group.modern.members["a"]
    member.assigned["t"] = dict(list(member.assigned["t"].items())[1:])


def of_strangers(group):
    """The target gives a partition to a member that never joined."""
    group.modern.target["t"] = (group.modern.next_join_seq, *group.modern.target["t"][1:])


BROKEN = {
    "I2, has no members": lambda g: g.modern.members.clear(),
    "I5, a partition with two owners": two_owners,
    "I5, who holds what is not its members'": given_up,
    "I9, a token not taken yet": untaken_token,
    "I6, a target of a later epoch": lambda g: setattr(g.modern, "target_epoch", g.generation + 1),
    "I6, a plan of a later epoch": lambda g: setattr(
        g.modern, "planned_epoch", g.modern.target_epoch + 1
    ),
    "I6, a member of a later epoch": lambda g: setattr(
        g.modern.members["a"], "epoch", g.generation + 1
    ),
    "I7, an owner that never joined": of_strangers,
    "I7, another count": lambda g: g.modern.topics.update(t=5),
    "I7, a member under another's id": lambda g: setattr(g.modern.members["a"], "member_id", "z"),
    "I7, join sequence behind its members": lambda g: setattr(g.modern, "next_join_seq", 1),
    "a deadline for nothing": lambda g: setattr(g.modern.members["a"], "deadline_ms", 9),
    "something without a deadline": told_to_join,
    "grants that are not counted": lambda g: setattr(g.modern.members["a"], "size", 9),
    "topics out of order": lambda g: setattr(
        g.modern.members["a"], "said", replace(g.modern.members["a"].said, topics=("t", "s"))
    ),
    "somebody is to be told of more": lambda g: setattr(g.modern.members["a"], "telling", True),
    "or was, and no entry goes on": lambda g: setattr(g.modern.members["a"], "has_stopped", True),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_invariant_of_modern_groups_is_really_checked(group, name):
    """What is wrong is said in the words of the name."""
    check(group)
    BROKEN[name](group)
    with pytest.raises(InvariantError, match=name.partition(", ")[2] or name):
        check(group)
