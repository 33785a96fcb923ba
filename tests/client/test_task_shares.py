"""Which worker has which task: balance, stickiness and free slots, for any set of any workers."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.assignors import Subscriber, checked_shares, withheld
from muster.errors import InconsistentGroupProtocol
from muster.group.actions import JoinAnswered
from muster.group.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from muster.tasks.task_shares import ASSIGNOR, TaskKind
from muster.tasks.task_store import Definition, TaskSet
from muster.tasks.task_topics import PROGRESS
from muster.types import TopicPartition

SLOTS = st.sets(st.integers(0, 20), max_size=12)


def keys(slots):
    """What a member that has these slots owns."""
    return tuple(TopicPartition(PROGRESS, slot) for slot in sorted(slots))


def task_set(slots, version=1):
    """A task in each of these slots."""
    return TaskSet(version, {i: Definition(f"task {i}", {}, 1, 1) for i in sorted(slots)})


def round_of(slots, owned, *, watchers=()):
    """One round as the group leader plays it: member -> the slots that it is sent."""
    kind = TaskKind(lambda: asyncio.sleep(0, task_set(slots)), lambda: True)

    def metadata(member_id):
        return encode_subscription(
            (),
            owned=keys(owned.get(member_id, ())),
            generation=1 if member_id in owned else -1,
            keeps_owned=member_id in owned,
            user_data=json.dumps({"works": member_id not in watchers, "version": 0}).encode(),
        )

    names = sorted({*owned, *watchers})
    answer = JoinAnswered(
        1, names[0], 2, "tasks", names[0], members=tuple((n, metadata(n), "") for n in names)
    )
    answer = asyncio.run(kind.on_joined(answer))
    members = [decode_subscription(*one) for one in answer.members]
    assert {t for m in members for t in m.topics} <= answer.partition_counts.keys()
    shares = checked_shares(ASSIGNOR, members, answer.partition_counts)
    waiting = withheld(shares, members)
    sent = kind.on_assigning(
        tuple((n, encode_assignment(k for k in shares[n] if k not in waiting)) for n in names)
    )
    return {n: {k.partition for k in decode_assignment(one)} for n, one in sent}


def rounds_of(slots, owned, *, watchers=()):
    """Rounds until nothing is withheld; how many, and what each has at the end."""
    for number in range(1, 4):
        given_out = round_of(slots, owned, watchers=watchers)
        if set().union(*given_out.values()) == set(slots) or set(given_out) == set(watchers):
            return number, given_out
        owned = {n: given_out[n] for n in owned}
    raise AssertionError("it does not come to an end")


@st.composite
def fleets(draw):
    """Workers and what each has of some earlier set; disjoint."""
    names = draw(st.lists(st.sampled_from("abcdefg"), min_size=1, unique=True))
    owned = {name: set() for name in names}
    for slot in draw(SLOTS):
        if (owner := draw(st.sampled_from([*names, None]))) is not None:
            owned[owner].add(slot)
    return owned


@given(slots=SLOTS, owned=fleets())
def test_tasks_are_shared_evenly_and_only_what_must_move_does(slots, owned):
    """At most one more than another; two rounds; as many stay as a balanced assignment can keep."""
    number, shares = rounds_of(slots, owned)
    assert number <= 2
    assert sorted(slot for share in shares.values() for slot in share) == sorted(slots)
    counts = sorted(len(share) for share in shares.values())
    assert counts[-1] - counts[0] <= 1
    kept = sum(len(shares[name] & owned[name]) for name in owned)
    least, extras = divmod(len(slots), len(owned))
    has = sorted((len(owned[name] & slots) for name in owned), reverse=True)
    could = sum(min(n, least + (i < extras)) for i, n in enumerate(has))
    assert kept == could


@given(slots=SLOTS, owned=fleets())
def test_who_does_not_work_is_given_nothing_and_changes_nothing(slots, owned):
    """An administrator that joins a fleet moves no task."""
    _, alone = rounds_of(slots, owned)
    number, shares = rounds_of(slots, alone, watchers=("0", "z"))
    assert number == 1
    assert shares == {**alone, "0": set(), "z": set()}


@given(slots=SLOTS, owned=fleets(), more=SLOTS)
def test_a_change_of_the_set_leaves_alone_what_it_can(slots, owned, more):
    """After a change, who has no more than a fair share keeps all of it that is still there."""
    _, before = rounds_of(slots, owned)
    _, after = rounds_of(more, before)
    fair = len(more) // len(owned)
    for name in owned:
        still = before[name] & more
        if len(still) <= fair:
            assert still <= after[name]


def test_without_a_worker_nobody_is_given_anything():
    """Only administrators there: the tasks wait."""
    assert round_of({1, 2}, {}, watchers=("a", "b")) == {"a": set(), "b": set()}


def test_a_stranger_in_the_group_is_refused():
    """Another program with the same protocol type is an error, not a member without tasks."""
    kind = TaskKind(lambda: asyncio.sleep(0, task_set({1})), lambda: True)
    for user_data in (b"", b"\xff", b"[]", b'{"works": 1, "version": 0}'):
        metadata = encode_subscription((), user_data=user_data)
        answer = JoinAnswered(1, "a", 1, "tasks", "a", members=(("a", metadata, ""),))
        with pytest.raises(InconsistentGroupProtocol):
            asyncio.run(kind.on_joined(answer))


def test_the_assignor_is_pure_and_takes_no_order():
    """The group leader may be anybody."""
    members = [
        Subscriber(n, (PROGRESS,), owned=keys({i}), generation=1, user_data=b"0 2 5 7")
        for i, n in enumerate("abc")
    ]
    counts = {PROGRESS: 8}
    one = checked_shares(ASSIGNOR, members, counts)
    assert checked_shares(ASSIGNOR, members[::-1], counts) == one
