"""Each invariant of modern groups is really checked: a state that is broken in one way is found.

So is an event that would break one.
"""

import ast
import copy
import fnmatch
import inspect
from dataclasses import fields, replace

import pytest

from musterd.coordinator.machine.commands import NO_OWNER, PartitionSet, Protocol, TargetChange
from musterd.coordinator.machine.events import (
    ConsumerGroupEmptied,
    ConsumerJoined,
    ConsumerRejoined,
    ConsumerRemoved,
    GrantsChanged,
    GroupDowngraded,
    GroupUpgraded,
    MembersBehind,
    MemberSynced,
    PartDropped,
    RemovalCause,
    SpecChanged,
    TargetStored,
    Trigger,
)
from musterd.coordinator.machine.evolve import evolve
from musterd.coordinator.machine.invariants import check
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.modern import evolve_modern, invariants
from musterd.coordinator.machine.modern.group import ModernGroup, retarget
from musterd.invariant import InvariantError
from tests.machine.world import World


@pytest.fixture
def group():
    """Two members that have two partitions each."""
    world = World()
    for line in ("topic t 4", "hear a join topics=t", "hear b join topics=t", "settle"):
        world.run(line)
    return copy.deepcopy(world.state.groups["g"])


def member(**changed):
    """Return what sets these fields of the first member."""

    def breaks(group):
        for name, value in changed.items():
            setattr(group.modern.members["a"], name, value)

    return breaks


def modern(**changed):
    """Return what sets these fields of the group."""

    def breaks(group):
        for name, value in changed.items():
            setattr(group.modern, name, value)

    return breaks


def of_classic_members(group):
    """A classic member is in it, too."""
    world = World()
    world.run("join c topics=t")
    group.members.update(world.state.groups["g"].members)


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


def nobodys(group):
    """A partition is nobody's that the target gives to a member, and no entry grants it."""
    member = group.modern.members["a"]
    (partition, _), *others = member.assigned["t"].items()
    member.assigned["t"] = dict(others)
    member.recount()
    del group.modern.held["t"][partition]


def not_told(group):
    """The target gives a partition to nobody, and its owner is not told to release it."""
    partition = next(iter(group.modern.members["a"].assigned["t"]))
    retarget(group.modern, TargetChange("t", (partition,), (NO_OWNER,), (0,)))


def of_strangers(group):
    """The target gives a partition to a member that never joined."""
    group.modern.target["t"] = (group.modern.next_join_seq, *group.modern.target["t"][1:])


def is_to_release(group):
    """The first member is to release all that it has, and is behind."""
    member = group.modern.members["a"]
    member.assigned, member.revoking = {}, member.assigned
    group.modern.behind[member.join_seq] = None
    return member


def told_after_it_stopped(group):
    """A member has stopped, which ends its deadline, and is to be told of more all the same."""
    member = is_to_release(group)
    member.telling = member.has_stopped = True


def away_with_more_to_release(group):
    """A member that went away has not given up what it was told to release."""
    is_to_release(group).away_until_ms = 9


def begun_after_all_grants(group):
    """The first epoch of grants is one that began under a token above those of the grants."""
    member = group.modern.members["a"]
    assert group.fence > max(member.assigned["t"].values())
    member.begun = ((group.fence, member.epoch),)


def one_more(name):
    """Return what adds to a derived field something that nothing says."""

    def breaks(group):
        value = getattr(group.modern, name)
        more = value + 1 if isinstance(value, int) else {**value, "nobody's": 1}
        setattr(group.modern, name, more)

    return breaks


DERIVED = [one.name for one in fields(ModernGroup) if one.metadata.get("derived")]
DERIVED.remove("held")  # which has an invariant of its own
BROKEN = [
    ("classic members in it", of_classic_members),
    ("has no members (I2)", lambda g: g.modern.members.clear()),
    ("a partition with two owners (I5)", two_owners),
    ("who holds what is not its members' (I5)", given_up),
    ("who holds what is not its members' (I5)", one_more("held")),
    ("a token not taken yet (I9)", untaken_token),
    ("renewed by a token not taken yet (I9)", lambda g: member(renewed=g.fence + 1)(g)),
    ("a target of a later epoch (I6)", lambda g: modern(target_epoch=g.generation + 1)(g)),
    ("a plan of a later epoch (I6)", lambda g: modern(planned_epoch=g.modern.target_epoch + 1)(g)),
    ("a member of a later epoch (I6)", lambda g: member(epoch=g.generation + 1)(g)),
    ("an owner that never joined (I7)", of_strangers),
    ("a topic without partitions in the target (I7)", lambda g: g.modern.target.update(s=[])),
    ("another count (I7)", lambda g: g.modern.topics.update(t=5)),
    (
        "owners of before a plan that is in force (I7)",
        modern(replaced=[(TargetChange("t", (0,), (0,), (0,)),)]),
    ),
    ("a member under another's id (I7)", member(member_id="z")),
    (
        "members not in join order (I7)",
        lambda g: modern(members=dict(reversed(g.modern.members.items())))(g),
    ),
    ("join sequence behind its members (I7)", modern(next_join_seq=1)),
    ("somebody gone is behind", lambda g: g.modern.behind.update({99: None})),
    ("a deadline for nothing, or something without a deadline", member(deadline_ms=9)),
    ("a deadline for nothing, or something without a deadline", told_to_join),
    ("grants that are not counted", member(size=9)),
    ("an empty topic among the grants", lambda g: g.modern.members["a"].assigned.update(s={})),
    ("a grant that began at no epoch", member(begun=())),
    ("a grant that began at no epoch", begun_after_all_grants),
    (
        "too many epochs of grants",
        member(begun=tuple((n, n) for n in range(LIMITS.member_grant_epochs + 1))),
    ),
    ("epochs of grants fell", member(begun=((1, 2), (2, 1)))),
    ("epochs of grants fell", member(begun=((2, 1), (1, 2)))),
    ("a grant of a later epoch (I6)", lambda g: member(begun=((1, g.generation + 1),))(g)),
    (
        "topics out of order",
        lambda g: member(said=replace(g.modern.members["a"].said, topics=("t", "s")))(g),
    ),
    ("topics of a pattern out of order", modern(patterns={"[st]": ("t", "s")})),
    (
        "somebody is to be told of more, or was, and no entry goes on with it",
        member(telling=True),
    ),
    (
        "somebody is to be told of more, or was, and no entry goes on with it",
        member(has_stopped=True),
    ),
    ("told after it has stopped", told_after_it_stopped),
    ("somebody away is to release", away_with_more_to_release),
    *((f"{name} does not follow from the rest", one_more(name)) for name in DERIVED),
    ("a partition that nobody is to get", nobodys),
    ("a partition beyond the target that nobody is told to release", not_told),
]


@pytest.mark.parametrize(("message", "breaks"), BROKEN)
def test_each_invariant_of_modern_groups_is_really_checked(group, message, breaks):
    """What is wrong is said in the words of the table, and the check of all groups finds it."""
    check(group)
    breaks(group)
    with pytest.raises(InvariantError) as said:
        invariants.check_modern(group, group.modern, "")
    assert str(said.value) == message
    with pytest.raises(InvariantError):
        check(group)


def messages(module):
    """What the invariants say, from the source; `*` is what a message names of the group."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "invariant":
            text = node.args[1]
            text = text.right if isinstance(text, ast.BinOp) else text  # of `where + text`
            parts = text.values if isinstance(text, ast.JoinedStr) else [text]
            yield "".join(one.value if isinstance(one, ast.Constant) else "*" for one in parts)


def test_the_table_has_each_invariant_of_modern_groups():
    """An invariant without a row fails here, and so do two with the same words."""
    found = sorted(messages(invariants))
    assert len(found) == len(set(found))
    assert [one for one in found if not any(fnmatch.fnmatch(row, one) for row, _ in BROKEN)] == []


# ---- events that would break one


def grants(group, member_id="b", *, released=(), revoking=(), granted=(), token=0):
    """Return what changes grants of partitions of `t`."""
    sets = ((PartitionSet("t", some),) if some else () for some in (released, revoking, granted))
    epoch = group.generation
    return GrantsChanged(group.group_id, member_id, epoch, *sets, token, 0, behind=False)


def joined(group, member_id, instance_id=""):
    """Return what makes it a member, at the group's epoch."""
    said = group.modern.members["a"].said
    return ConsumerJoined("g", member_id, instance_id, said, group.generation, 0, "")


def rejoined(group, member_id="a", replaced_id="", *, target_epoch=0):
    """Return what brings it back under the next token."""
    said = group.modern.members["a"].said
    epoch, token = group.generation + 1, group.fence + 1
    event = ConsumerRejoined("g", member_id, replaced_id, said, epoch, token, 0, "")
    return replace(event, target_epoch=target_epoch)


def stored(group, **changed):
    """Return the whole of an empty target, of what the group is now."""
    modern = group.modern
    event = TargetStored("g", modern.spec_version, 0, (), group.generation, 0)
    return replace(event, **changed)


def changes_spec(group, **changed):
    """Return what makes a plan due."""
    epoch, version = group.generation + 1, group.modern.spec_version + 1
    event = SpecChanged("g", epoch, version, Trigger.METADATA_CHANGED, "a", "", 0, 0)
    return replace(event, **changed)


def held_by_a(group):
    """The partitions of the first member."""
    return tuple(group.modern.members["a"].assigned["t"])


def holds_an_instance(group):
    """Let another member hold an instance id first."""
    evolve(group, joined(group, "c", "i"))
    return joined(group, "d", "i")


def due(group):
    """Let a plan be due first."""
    evolve(group, changes_spec(group))
    return rejoined(group, target_epoch=group.generation + 1)


def classic_ones(group, **changed):
    """Let the first member be a classic one, that joined."""
    consumer = group.modern.members["a"]
    consumer.protocols, consumer.generation = (Protocol("range", b""),), group.fence
    consumer.given = consumer.version
    for name, value in changed.items():
        setattr(consumer, name, value)
    return consumer


def downgraded(group):
    """Let both be classic ones, and go back to a generation that was one of theirs."""
    for member_id in ("a", "b"):
        group.modern.members[member_id].protocols = (Protocol("range", b""),)
    return GroupDowngraded("g", group.fence - 1, "range")


def emptied(group):
    """Let both be gone, and the epoch fall."""
    for member_id in ("a", "b"):
        evolve(group, ConsumerRemoved("g", member_id, RemovalCause.LEFT, ""))
    return ConsumerGroupEmptied("g", group.generation - 1, 0)


def synced(group, later=0, **changed):
    """Return the Sync of a classic member, by default in its generation."""
    consumer = classic_ones(group, **changed)
    return MemberSynced("g", "a", consumer.generation + later)


REFUSED = [
    (
        "a partition with two owners (I5)",
        lambda g: grants(g, granted=held_by_a(g), token=g.fence + 1),
    ),
    ("a fencing token is taken once (I9)", lambda g: grants(g, granted=(9,), token=g.fence)),
    ("a grant that is not there changed", lambda g: grants(g, revoking=held_by_a(g))),
    ("grants of a stranger", lambda g: grants(g, "z")),
    ("somebody gone is behind", lambda _: MembersBehind("g", (99,))),
    ("a member joined twice", lambda g: joined(g, "a")),
    ("an instance id held twice (sc-G24)", holds_an_instance),
    ("a stranger came back", lambda g: rejoined(g, "z")),
    ("replaced by a member", lambda g: rejoined(g, "b", "a")),
    ("a plan is due, and not made (I6)", due),
    ("the group epoch fell (I6)", lambda g: rejoined(g, target_epoch=g.generation)),
    ("the group epoch fell (I6)", lambda g: changes_spec(g, epoch=g.generation - 1)),
    ("the group epoch fell (I6)", emptied),
    ("a spec version was left out", lambda g: changes_spec(g, spec_version=99)),
    ("a target of another spec (I7)", lambda g: stored(g, spec_version=99)),
    ("a part of a target was left out (I7)", lambda g: stored(g, part=1)),
    ("a target of another epoch (I6)", lambda g: stored(g, target_epoch=g.generation + 1)),
    ("a part of no plan is dropped (I7)", lambda _: PartDropped("g")),
    ("a stranger was removed", lambda _: ConsumerRemoved("g", "z", RemovalCause.LEFT, "")),
    ("emptied with members (I2)", lambda g: ConsumerGroupEmptied("g", g.generation + 1, 0)),
    ("a stranger synced", lambda _: MemberSynced("g", "z", 1)),
    ("synced in another generation", lambda g: synced(g, later=1)),
    ("synced twice, or too late", lambda g: synced(g, synced=g.modern.members["a"].version)),
    ("it fell (I6)", downgraded),
]


@pytest.mark.parametrize(("message", "made"), REFUSED)
def test_an_event_that_breaks_a_promise_is_not_applied(group, message, made):
    """As a defect of what decides would bring it about: an entry says so on every node."""
    event = made(group)
    with pytest.raises(InvariantError) as said:
        evolve(group, event)
    assert str(said.value) == message


@pytest.mark.parametrize(
    ("message", "event"),
    [
        ("a classic group with members (gp-1.11)", joined),
        ("a group without an assignment is upgraded", lambda *_: GroupUpgraded("g")),
    ],
)
def test_a_classic_group_becomes_none_in_an_open_round(group, message, event):
    """Neither by a modern member nor by a conversion."""
    world = World()
    world.run("join c topics=t")
    made = event(group, "z")
    with pytest.raises(InvariantError) as said:
        evolve(world.state.groups["g"], made)
    assert str(said.value) == message


def test_the_tables_have_each_promise_that_events_keep():
    """An invariant without a row fails here."""
    of_classic = {
        "a classic group with members (gp-1.11)",
        "a group without an assignment is upgraded",
    }
    assert {*messages(evolve_modern)} == {message for message, _ in REFUSED} | of_classic
