"""What the tables say of a modern group: who was in it, who had what, what its plans moved."""

from types import SimpleNamespace

import pytest

from musterd.coordinator.machine.commands import NO_OWNER, PartitionSet, TargetChange
from musterd.coordinator.machine.events import (
    ConsumerAway,
    ConsumerGroupEmptied,
    ConsumerJoined,
    ConsumerRejoined,
    ConsumerRemoved,
    ConsumerUpdated,
    GrantsChanged,
    RemovalCause,
    SpecChanged,
    Subscription,
    TargetStored,
    Trigger,
)
from musterd.coordinator.machine.plan import Why
from musterd.replay.modern_trackers import GrantTracker, PlanTracker
from musterd.replay.moment import Moment
from musterd.replay.ownership_spans import Spans
from musterd.replay.trackers import SessionTracker

SAID = Subscription("client", "/127.0.0.1", 10_000, 60_000, ("t",))


class Told:
    """One tracker, told an event each second."""

    def __init__(self, tracker, group=None, spans=None):
        self.tracker, self.group = tracker(0, "g") if spans is None else tracker(spans), group
        self.spans, self.index = spans, 0

    def __call__(self, *events):
        rows = []
        for event in events:
            self.index += 1
            at = Moment(self.index, 0, self.index * 1_000, self.index * 1_000, 1)
            rows += self.tracker.on(event, self.group, at)
        return rows

    def end(self, how="open"):
        return list(self.spans.close_all(None, how) if self.spans else self.tracker.finish(how))


def grants_told():
    return Told(GrantTracker, spans=Spans(0, "g"))


def joined(member_id="a", epoch=1, instance=""):
    return ConsumerJoined("g", member_id, instance, SAID, epoch, 0, "")


def rejoined(member_id="a", replaced_id="", token=0, epoch=2, keeps=()):
    kept = (PartitionSet("t", tuple(keeps)),)
    return ConsumerRejoined(
        "g", member_id, replaced_id, SAID, epoch, token, 0, "", keeps=kept if keeps else ()
    )


def grants(member_id="a", released=(), revoking=(), granted=(), token=0, epoch=2):
    sets = ((PartitionSet("t", tuple(numbers)),) for numbers in (released, revoking, granted))
    return GrantsChanged("g", member_id, epoch, *sets, token, 0, behind=False)


def removed(member_id="a", cause=RemovalCause.LEFT):
    return ConsumerRemoved("g", member_id, cause, "done")


# ---- ownership


def spans(rows):
    return [(r.member_id, r.partition, r.token, r.owned_ms, r.released) for r in rows]


def test_a_partition_is_owned_from_its_grant_until_it_is_released():
    """One that is to be released has its owner until it has said so."""
    told = grants_told()
    assert told(joined(), grants(granted=(0, 1), token=7), grants(revoking=(1,))) == []
    assert spans(told(grants(released=(1,)))) == [("a", 1, 7, 2_000, "released")]
    assert spans(told(grants("b", granted=(1,), token=8), removed())) == [
        ("a", 0, 7, 4_000, "left")
    ]
    assert spans(told.end()) == [("b", 1, 8, None, "open")]


def test_who_joins_again_owns_the_same_under_another_token():
    """What it was told to release is free."""
    told = grants_told()
    told(grants(granted=(0, 1), token=7), grants(revoking=(1,)))
    assert spans(told(rejoined(token=9))) == [
        ("a", 1, 7, 2_000, "released"),
        ("a", 0, 7, 2_000, "rejoined"),
    ]
    assert spans(told.end("unknown")) == [("a", 0, 9, None, "unknown")]


def test_who_joins_and_works_on_what_it_shall_release_owns_it_yet():
    """As a classic member of a modern group does, under its new token, until it has released it."""
    told = grants_told()
    told(grants(granted=(0, 1), token=7), grants(revoking=(0, 1)))
    assert spans(told(rejoined(token=9, keeps=(1,)))) == [
        ("a", 0, 7, 2_000, "released"),
        ("a", 1, 7, 2_000, "rejoined"),
    ]
    assert spans(told(grants(released=(1,)))) == [("a", 1, 9, 1_000, "released")]


def test_a_static_member_s_new_process_owns_what_the_old_one_did():
    """It has another id and another token."""
    told = grants_told()
    told(grants(granted=(0,), token=7))
    assert spans(told(rejoined("b", "a", token=8))) == [("a", 0, 7, 1_000, "replaced")]
    assert spans(told(removed("b", RemovalCause.NOT_BACK))) == [("b", 0, 8, 1_000, "not_back")]


def test_a_member_that_is_away_owns_what_it_keeps():
    """It gave up what it was told to release."""
    told = grants_told()
    told(grants(granted=(0, 1), token=7), grants(revoking=(1,)))
    assert spans(told(ConsumerAway("g", "a", 9_000, ""))) == [("a", 1, 7, 2_000, "released")]
    assert spans(told.end()) == [("a", 0, 7, None, "open")]


def test_grants_of_a_base_stand_since_an_unknown_time():
    """Those that are revoked are free where their owner goes away."""
    grant = SimpleNamespace(topic="t", token=5)
    member = SimpleNamespace(
        member_id="a",
        revoking={"t": {1: 5}},
        grants=lambda: [SimpleNamespace(**vars(grant), partition=number) for number in (0, 1)],
    )
    told = grants_told()
    told.tracker.begin(SimpleNamespace(modern=SimpleNamespace(members={"a": member})))
    assert spans(told(ConsumerAway("g", "a", 9_000, ""))) == [("a", 1, 5, None, "released")]
    assert spans(told.end()) == [("a", 0, 5, None, "open")]


# ---- member_sessions


def test_a_member_s_session_has_its_epochs():
    """It joined, joined again, said other things, was granted something, and left."""
    told = Told(SessionTracker)
    told(joined(epoch=3), rejoined(epoch=4), grants(epoch=6))
    said = Subscription("client", "/127.0.0.1", 20_000, 90_000, ("t",))
    (row,) = told(ConsumerUpdated("g", "a", said), removed(cause=RemovalCause.SESSION_EXPIRED))
    assert (row.end, row.reason, row.session_ms, row.rejoins) == (
        "session_expired",
        "done",
        4_000,
        1,
    )
    assert (row.first_generation, row.last_generation) == (3, 6)
    assert (row.session_timeout_ms, row.rebalance_timeout_ms) == (20_000, 90_000)


def test_the_session_of_a_static_member_s_old_process_ends():
    """That of the new one begins."""
    told = Told(SessionTracker)
    (row,) = told(joined(instance="i"), rejoined("b", "a", epoch=5))
    assert (row.member_id, row.end) == ("a", "replaced")
    (row,) = told.end()
    assert (row.member_id, row.end, row.first_generation, row.rejoins) == ("b", "open", 5, 0)


# ---- rebalances


@pytest.fixture
def group():
    """Of two members, by join sequence 0 and 1; the target of epoch 4 is in force."""
    modern = SimpleNamespace(
        members={"a": None, "b": None},
        by_seq={0: "a", 1: "b"},
        target_epoch=4,
        target={"t": [0, 0, NO_OWNER]},
        in_force={},
    )
    return SimpleNamespace(modern=modern, generation=4)


WHY = [why.name.lower() for why in Why]
"""Reasons by number."""


def changed(epoch, trigger=Trigger.MEMBER_JOINED, member_id="b"):
    return SpecChanged("g", epoch, epoch, trigger, member_id, "hello", 0, 0)


def stored(part, epoch, **owners):
    numbers = tuple(int(name[1:]) for name in owners)
    change = TargetChange("t", numbers, tuple(owners.values()), (1,) * len(numbers))
    return TargetStored("g", 5, part, (change,), epoch, 0)


def test_an_epoch_says_what_its_target_moves(group):
    """Of all parts, with the last one; what never had an owner has not moved."""
    told = Told(PlanTracker, group)
    told.tracker.begin(group)
    assert not told(changed(5), stored(0, 0, p0=1))
    group.generation = 5
    group.modern.members["c"] = None
    group.modern.target["t"][0], group.modern.in_force = 1, {"t": {0: (0, 4)}}
    moved, new, row = told(stored(1, 5, p2=1))
    assert (moved.partition, moved.generation) == (0, 5)
    assert (moved.from_member_id, moved.to_member_id, moved.reason) == ("a", "b", WHY[4])
    assert (new.partition, new.from_member_id, new.to_member_id) == (2, None, "b")
    assert (row.round, row.from_generation, row.generation) == (5, 4, 5)
    assert (row.outcome, row.trigger, row.cause_member_id) == ("published", "member_joined", "b")
    assert (row.reason, row.duration_ms) == ("hello", 2_000)
    assert (row.moved, row.first_assigned) == (1, 1)
    assert (row.members_before, row.members_after, row.members_added) == (2, 3, 1)


def test_what_parts_of_a_dropped_plan_changed_moves_once_or_not_at_all(group):
    """From the owner in the target that was in force, to the one in the next; also in a base."""
    group.modern.target["t"] = [1, 1, 1]
    group.modern.in_force = {"t": {0: (0, 4), 1: (0, 4), 2: (NO_OWNER, 0)}}
    group.modern.by_seq[2] = "c"
    told = Told(PlanTracker, group)
    told.tracker.begin(group)
    one, two, row = told(changed(5), stored(0, 5, p0=2, p1=0))
    assert (one.partition, one.from_member_id, one.to_member_id) == (0, "a", "c")
    assert one.reason == WHY[4]
    assert (two.partition, two.from_member_id, two.to_member_id) == (2, None, "b")
    assert (row.moved, row.first_assigned) == (1, 1)


def test_an_epoch_before_whose_target_comes_another_is_superseded(group):
    """What is no new epoch is no row."""
    told = Told(PlanTracker, group)
    told(changed(5), changed(4))
    (row,) = told(changed(6, Trigger.RETURNED))
    assert (row.round, row.outcome, row.generation) == (5, "superseded", None)
    (row,) = told.end()
    assert (row.round, row.outcome, row.trigger) == (6, "open", "returned")


def test_a_plan_that_is_due_in_a_base_has_no_known_start(group):
    """Nor a cause."""
    group.generation = 6
    told = Told(PlanTracker, group)
    told.tracker.begin(group)
    _, row = told(stored(0, 6, p0=1))
    assert (row.round, row.from_generation, row.generation) == (6, 4, 6)
    assert (row.trigger, row.started_ts, row.members_before) == (None, None, None)


def test_the_last_member_empties_a_modern_group(group):
    """With nobody in it the next epoch has no target."""
    told = Told(PlanTracker, group)
    told.tracker.begin(group)
    (row,) = told(ConsumerGroupEmptied("g", 5, 0))
    assert (row.outcome, row.generation, row.members_gone) == ("emptied", 5, 2)
    assert told.end() == []


def test_a_static_member_under_another_id_is_no_other_member(group):
    """It is neither added nor gone."""
    told = Told(PlanTracker, group)
    told.tracker.begin(group)
    told(rejoined("c", "b"))
    group.modern.members = {"a": None, "c": None}
    _, row = told(changed(5), stored(0, 5, p0=1))
    assert (row.members_added, row.members_gone) == (0, 0)
