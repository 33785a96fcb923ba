"""Limits of modern groups, at their real numbers."""

from dataclasses import replace

import pytest

from muster.bounds import CAPACITY_MAX, CAPACITY_MIN
from muster.group.consumer_protocol import encode_assignment, encode_subscription
from muster.types import TopicPartition
from musterd.coordinator.machine.commands import (
    ConsumerGroupHeartbeat,
    CreateTopic,
    NoteTopics,
    Protocol,
    Reconcile,
    StoreTarget,
    TargetChange,
    TopicCount,
)
from musterd.coordinator.machine.envelope import FORMAT
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import LevelRaised, Subscription
from musterd.coordinator.machine.limits import LIMITS, LIMITS_VERSION
from musterd.coordinator.machine.modern.consumer_protocol import (
    FIELDS_MAX,
    UnreadableError,
    read_subscription,
)
from musterd.coordinator.machine.modern.conversion import READ_MAX, why_not
from musterd.coordinator.machine.modern.group import Consumer, begin_grants
from musterd.coordinator.machine.modern.topics import unknown_topics
from musterd.coordinator.machine.plan.pace import finished
from musterd.coordinator.machine.replies import Done, Heard, Refused
from musterd.coordinator.machine.shard_state import (
    Entry,
    ShardState,
    apply_entry,
    evolve_shard_counted,
)
from musterd.coordinator.machine.state import Group, Member, Phase
from musterd.coordinator.runtime.answers import Shed
from musterd.coordinator.runtime.calls import Call, NodeCallLimits
from musterd.coordinator.runtime.held_changes import HeldChanges
from musterd.coordinator.runtime.patterns import matching
from musterd.levels import LEVEL
from tests.limits.rows import limit

JOIN = ConsumerGroupHeartbeat(
    "g", "m", 0, session_timeout_ms=10_000, rebalance_timeout_ms=60_000, topics=("t",), owned=()
)


def applied(state: ShardState, *commands):
    """Apply an entry of these; returns the answers."""
    entry = Entry(FORMAT, LEVEL, 1, 1, LIMITS_VERSION, commands)
    return [result.reply for result in apply_entry(state, entry, 1)]


def shard() -> ShardState:
    state = ShardState()
    evolve_shard_counted(state, LevelRaised(LEVEL))
    return state


@limit("member_max_topics")
def test_topics_of_a_member(step):
    """One more is refused, and leaves no group."""
    state, count = shard(), LIMITS.member_max_topics + step
    topics = tuple(f"t{n:04}" for n in range(count))
    (reply,) = applied(state, replace(JOIN, topics=topics))
    if step > 0:
        assert isinstance(reply, Refused)
        assert reply.error is Error.INVALID_REQUEST
        assert not state.groups
    else:
        assert isinstance(reply, Heard)


@pytest.mark.parametrize("capacity", [CAPACITY_MIN, CAPACITY_MAX])
def test_capacities_that_the_sdk_takes_are_those_that_the_coordinator_takes(capacity):
    """The coordinator refuses one thousandth beyond either end."""
    thousandths = round(capacity * 1000)
    beyond = thousandths + (1 if capacity > 1 else -1)
    (taken,) = applied(shard(), replace(JOIN, capacity=thousandths))
    assert isinstance(taken, Heard)
    (refused,) = applied(shard(), replace(JOIN, capacity=beyond))
    assert refused.error is Error.INVALID_REQUEST


@limit("pattern_max_bytes")
def test_bytes_of_a_pattern(step):
    """One more is refused, and leaves no group."""
    state, pattern = shard(), "x" * (LIMITS.pattern_max_bytes + step)
    (reply,) = applied(state, replace(JOIN, topics=(), pattern=pattern))
    if step > 0:
        assert reply.error is Error.INVALID_REGULAR_EXPRESSION
        assert not state.groups
    else:
        assert isinstance(reply, Heard)


@limit("group_max_patterns")
def test_patterns_of_a_group(step):
    """Another one is refused; a member with one that is there is not."""
    state, count = shard(), LIMITS.group_max_patterns + step
    joins = [replace(JOIN, member_id=f"m{n}", topics=(), pattern=f"p{n}") for n in range(count)]
    *_, last = applied(state, *joins)
    if step > 0:
        assert last.error is Error.GROUP_MAX_SIZE_REACHED
    else:
        assert isinstance(last, Heard)
    (reply,) = applied(state, replace(joins[0], member_id="another"))
    assert isinstance(reply, Heard)


@limit("pattern_max_topics")
def test_topics_that_a_pattern_stands_for(step):
    """Of more those that it stood for before stay, and others come in order of names."""
    names = [f"t{n:04}" for n in range(LIMITS.pattern_max_topics + step)]
    found = finished(matching("t.*", names, names[-1:], lambda _: True))
    if step > 0:
        assert list(found) == [*names[:-2], names[-1]]
    else:
        assert list(found) == names


@limit("member_grant_epochs")
def test_epochs_at_which_grants_began(step):
    """Of one more the first two count as the later one; the others are as they were."""
    consumer = Consumer("m", "", Subscription("", "", 1, 1, ()), 0, 1, 1, 0, "")
    count = LIMITS.member_grant_epochs + step
    for number in range(1, count + 1):
        consumer.epoch = 10 * number
        begin_grants(consumer, 2 * number)
    first = 2 if step > 0 else 1
    assert consumer.assignment_epoch(2) == 10 * first
    assert [consumer.assignment_epoch(2 * n) for n in range(2, count + 1)] == [
        10 * n for n in range(2, count + 1)
    ]


@limit("away_max_ms")
def test_how_long_a_member_is_away(step):
    """It is longer away than it may be: the time is cut."""
    state, wanted_ms = shard(), LIMITS.away_max_ms + step
    away = ConsumerGroupHeartbeat("g", "m", -2, back_in_ms=wanted_ms)
    _, reply = applied(state, JOIN, away)
    assert reply.away_until_ms == 1 + min(wanted_ms, LIMITS.away_max_ms)


@limit("modern_max_partitions")
def test_partitions_that_a_modern_group_reads(step):
    """One more is refused, and the group knows nothing of the topics."""
    state, count = shard(), LIMITS.modern_max_partitions + step
    _, reply = applied(state, JOIN, NoteTopics("g", (TopicCount("t", count),), (), 1))
    if step > 0:
        assert reply.error is Error.INVALID_REQUEST
        assert state.groups["g"].modern.topics == {}
    else:
        assert reply == Done()
        assert state.groups["g"].modern.topics == {"t": count}


@limit("note_topics_max")
def test_topics_of_which_a_group_is_told_at_once(step):
    """The rest comes with the next command."""
    state, count = shard(), LIMITS.note_topics_max + step
    names = tuple(f"t{n:04}" for n in range(count))
    applied(state, *(CreateTopic(name, 1) for name in names))
    half = len(names) // 2
    applied(
        state,
        replace(JOIN, topics=names[:half]),
        replace(JOIN, member_id="m2", topics=names[half:]),
    )
    told = []
    while (note := unknown_topics(state.groups["g"], state, LIMITS.note_topics_max)) is not None:
        applied(state, note)
        told.append(len(note.counts))
    assert told == [min(count, LIMITS.note_topics_max), *([1] if step > 0 else [])]


@limit("note_zones_max_bytes")
def test_zones_of_which_a_group_is_told_at_once(step):
    """The rest comes with the next command."""
    state, size = shard(), LIMITS.topic_zones_max_bytes
    full = ("zz;" * size)[: size - 1] + "z"
    zones = [full] * (LIMITS.note_zones_max_bytes // size - 1)
    zones += [full[1:]] if step < 0 else [full]
    zones += ["z"] * (step > 0)
    names = tuple(f"t{n}" for n in range(len(zones)))
    topics = (CreateTopic(name, 1, text) for name, text in zip(names, zones, strict=True))
    applied(state, *topics, replace(JOIN, topics=names))
    told = []
    while (note := unknown_topics(state.groups["g"], state, LIMITS.note_topics_max)) is not None:
        applied(state, note)
        told.append(len(note.counts))
    assert told == [len(zones) - (step > 0), *([1] if step > 0 else [])]
    assert state.groups["g"].modern.zones == dict(zip(names, zones, strict=True))


@limit("reconcile_max_partitions")
def test_partitions_in_one_part_of_a_target(step):
    """A larger part is refused; a member gets no more at once, and the rest with the next."""
    state, count = shard(), LIMITS.reconcile_max_partitions + step
    applied(state, JOIN, NoteTopics("g", (TopicCount("t", count),), (), 1))
    modern = state.groups["g"].modern
    change = TargetChange("t", tuple(range(count)), (0,) * count, (0,) * count)
    (reply,) = applied(state, StoreTarget("g", modern.spec_version, 0, (change,), last=True))
    if step > 0:
        assert reply.error is Error.INVALID_REQUEST
        assert set(modern.target["t"]) == {-1}
    else:
        assert reply == Done()
        assert set(modern.target["t"]) == {0}


@limit("reconcile_max_members")
def test_members_whose_grants_one_command_changes(step):
    """Of one more the last has to wait for the next command."""
    state, count = shard(), LIMITS.reconcile_max_members + step
    applied(state, *(replace(JOIN, member_id=f"m{n:04}") for n in range(count)))
    applied(state, NoteTopics("g", (TopicCount("t", count),), (), 1))
    modern = state.groups["g"].modern
    change = TargetChange("t", tuple(range(count)), tuple(range(count)), (0,) * count)
    applied(state, StoreTarget("g", modern.spec_version, 0, (change,), last=True), Reconcile("g"))
    assert modern.granted == count - max(step, 0)
    assert len(modern.behind) == max(step, 0)
    applied(state, Reconcile("g"))
    assert modern.granted == count


def test_a_classic_member_says_as_many_topics_as_there_may_be_and_not_much_more():
    names = tuple(f"{n:x}" for n in range(LIMITS.max_topics))
    assert read_subscription(encode_subscription(names, keeps_owned=True)).keeps == {}
    field = b"\x10\x01"
    assert read_subscription(field * FIELDS_MAX).keeps == {}
    with pytest.raises(UnreadableError):
        read_subscription(field * (FIELDS_MAX + 1))


def test_a_group_whose_members_say_more_than_is_read_at_once_stays_classic():
    """Nor may they together hold a replica for long: fields of a subscription, and partitions."""

    def reason(many, metadata, assigned):
        members = {}
        for number in range(many):
            each = encode_subscription((f"t{number}",)) + metadata
            said = (Protocol("range", each),)
            fields = (f"m{number}", "", "", 10_000, 60_000, said, ("t",), number)
            one = Member(*fields, joined_round=1, assignment=assigned(number))
            members[one.member_id] = one
        group = Group("g", phase=Phase.STABLE, protocol_name="range", members=members)
        return why_not(group, LIMITS)

    field, many = b"\x38\x01", READ_MAX // FIELDS_MAX
    half = field * (FIELDS_MAX - 1_000)
    assert reason(many, half, lambda _: b"") == ""
    assert f"more than the {READ_MAX:,} fields" in reason(many + 3, half, lambda _: b"")
    owned = [tuple(range(n * 90_000, (n + 1) * 90_000)) for n in range(3)]
    sets = [encode_assignment([TopicPartition("t", p) for p in some]) for some in owned]
    assert reason(1, b"", sets.__getitem__) == ""
    assert f"more than the {READ_MAX:,} fields" in reason(3, b"", sets.__getitem__)


class Asker:
    """Calls that are held, and what those are told that were not."""

    def __init__(self):
        self.held, self.shed, self.calls = HeldChanges(), [], []

    def ask(self, size):
        call = Call(JOIN, self.shed.append, NodeCallLimits())
        self.calls.append(call)
        self.held.hold("g", call, size)


@limit("held_changes_max")
def test_changes_that_wait_for_a_plan(step):
    """One too many is shed, and may come again; those before are kept in their order."""
    asker = Asker()
    for _ in range(LIMITS.held_changes_max + step):
        asker.ask(1)
    assert asker.shed == [Shed("the changes that wait for a plan")] * max(step, 0)
    kept = [call for call, _ in asker.held.free(lambda _: False)]
    assert kept == asker.calls[: LIMITS.held_changes_max]
    asker.ask(1)
    assert len(asker.held.free(lambda _: False)) == 1


@limit("held_changes_max_bytes")
def test_bytes_of_changes_that_wait_for_a_plan(step):
    """Counted as their commands are announced; they count until they go on."""
    asker = Asker()
    asker.ask(LIMITS.held_changes_max_bytes - 1_000)
    asker.ask(1_000 + step)
    assert asker.shed == [Shed("the changes that wait for a plan")] * max(step, 0)
    assert asker.held.free(lambda _: True) == []
    asker.ask(2)
    assert len(asker.shed) == 1
