"""Metrics of modern groups: rebalances from a new epoch until its target is carried out."""

from types import SimpleNamespace

import pytest

from musterd.coordinator.machine.commands import (
    NO_OWNER,
    PartitionSet,
    Reconcile,
    RoundTimer,
    TargetChange,
)
from musterd.coordinator.machine.events import (
    ConsumerGroupEmptied,
    ConsumerRemoved,
    GrantsChanged,
    RemovalCause,
    SpecChanged,
    TargetStored,
    Trigger,
)
from musterd.coordinator.machine.history import Moves, Rebalance, Who
from musterd.coordinator.machine.modern.group import ModernGroup
from musterd.coordinator.machine.modern.spec import NUMBER_OF
from musterd.coordinator.machine.modern.unowned import WhyUnowned
from musterd.coordinator.machine.plan import Why
from musterd.coordinator.machine.state import Phase
from musterd.coordinator.metrics.groups import (
    GroupCounts,
    GroupMeter,
    Ownership,
    is_rebalancing,
    ownership,
    type_and_state,
    workers_died,
)
from musterd.coordinator.metrics.node import _GroupPage
from musterd.coordinator.runtime.claims import Claim
from musterd.raft.contract import Role
from tests.machine.world import World


class Metered:
    """A shard that leads one modern group g, with a meter."""

    def __init__(self):
        self.modern = ModernGroup(topics={"t": 3})
        self.group = SimpleNamespace(
            phase=Phase.STABLE, modern=self.modern, generation=0, history=(), rebalances={}
        )
        state = SimpleNamespace(groups={"g": self.group})
        self.shard = SimpleNamespace(log=SimpleNamespace(role=Role.LEADER), state=state)
        self.meter = GroupMeter([self.shard], lambda: 0.0)
        self.time_ms = 0

    @property
    def counts(self):
        return self.meter.own["g"]

    def tell(self, *events, ms=1_000):
        """One entry, so much later than the one before."""
        self.time_ms += ms
        result = SimpleNamespace(command=Reconcile("g"), events=events)
        self.meter.applied(0, 1, SimpleNamespace(time_ms=self.time_ms), [result])

    def took_s(self, trigger):
        """How many rebalances have ended, and in how many seconds."""
        histogram = self.meter.durations[trigger]
        return histogram.cumulative()[-1][1], histogram.total


@pytest.fixture
def metered():
    """A group that nothing has happened to."""
    return Metered()


def changed(epoch, trigger=Trigger.MEMBER_JOINED):
    return SpecChanged("g", epoch, epoch, trigger, "m", "", 0, 0)


def granted(member_id, *numbers):
    sets = (PartitionSet("t", numbers),)
    return GrantsChanged("g", member_id, 1, (), (), sets, 1, 0, behind=False)


def planned(generation, moves):
    record = Rebalance(
        0, 0, 0, Trigger.MEMBER_LEFT, Who(), "", initial=False, members_before=1, first_join_seq=0
    )
    record.generation, record.moves = generation, moves
    return record


def stored(epoch):
    return TargetStored("g", 1, 0, (), epoch, 0)


def test_a_rebalance_lasts_until_the_target_is_carried_out(metered):
    """Another epoch in between is counted, and it is still one; by what opened it."""
    metered.tell(changed(1))
    metered.tell(changed(1))
    metered.tell(changed(2, Trigger.MEMBER_LEFT))
    metered.modern.target_epoch, metered.modern.behind = 2, {0: None}
    metered.tell(stored(2))
    metered.modern.behind, metered.modern.timers = {}, {"m": (9, RoundTimer.REVOCATION, 1)}
    metered.tell(granted("a", 0))
    assert metered.took_s(Trigger.MEMBER_JOINED) == (0, 0)
    metered.modern.timers = {"m": (9, RoundTimer.AWAY, 1)}
    metered.tell(granted("b", 1))
    assert metered.took_s(Trigger.MEMBER_JOINED) == (1, 5.0)
    metered.tell(changed(2))
    assert metered.counts.rebalances[Trigger.MEMBER_JOINED] == 1
    assert metered.counts.rebalances[Trigger.MEMBER_LEFT] == 1


def test_a_group_without_members_rebalances_no_more(metered):
    """Its last member is gone, and with it what only a modern group has."""
    metered.tell(changed(1))
    metered.group.modern = None
    metered.tell(ConsumerGroupEmptied("g", 2, 0))
    assert metered.took_s(Trigger.MEMBER_JOINED) == (1, 1.0)


def test_what_a_plan_gives_to_another_owner_has_moved_whoever_leads(metered):
    """All parts count with the last one, by the group's history, whoever led before.

    The first owner of a partition is no move, nor is none at all.
    """
    moves = Moves()
    for former, owner, why in [(NO_OWNER, 4, Why.NEW), (1, NO_OWNER, Why.GONE), (1, 4, Why.LEFT)]:
        moves.add(former, owner, NUMBER_OF[why])
    metered.group.rebalances = {
        6: planned(generation=1, moves=moves),
        7: planned(generation=0, moves=Moves()),
    }
    change = TargetChange("t", (0, 1), (4, 5), (NUMBER_OF[Why.LEFT],) * 2)
    metered.tell(TargetStored("g", 1, 0, (change,), 0, 0))
    assert metered.counts.partitions_moved == 0
    metered.tell(TargetStored("g", 1, 1, (change,), 1, 0), changed(2))
    assert metered.counts.partitions_moved == 1
    metered.tell(granted("a", 0, 1, 2))
    assert metered.counts.partitions_moved == 1


def test_a_group_is_counted_by_type_and_state(metered):
    """A plan is due, the target is not carried out, all hold what they shall."""
    metered.modern.storing = 0
    metered.group.generation = 1
    assert (type_and_state(metered.group), is_rebalancing(metered.group)) == (
        ("consumer", "Assigning"),
        True,
    )
    metered.modern.target_epoch, metered.modern.behind = 1, {0: None}
    assert (type_and_state(metered.group), is_rebalancing(metered.group)) == (
        ("consumer", "Reconciling"),
        True,
    )
    metered.modern.behind = {}
    assert (type_and_state(metered.group), is_rebalancing(metered.group)) == (
        ("consumer", "Stable"),
        False,
    )


@pytest.mark.parametrize("how", ["expire", "bye"])
def test_nobody_reads_a_modern_group_whose_workers_died(how):
    """Its last plan says that it was emptied, and by whom; whoever left on its own is quiet."""
    world = World()
    for line in ("topic t 2", "hear a join", "settle"):
        world.run(line)
    world.run("hear a bye" if how == "bye" else "expire a round=1")
    assert workers_died(world.state.groups["g"]) == (how == "expire")


@pytest.mark.parametrize(
    ("cause", "count"), [(RemovalCause.SESSION_EXPIRED, 1), (RemovalCause.LEFT, 0)]
)
def test_an_expired_session_is_counted(metered, cause, count):
    """As that of a classic group is."""
    metered.tell(changed(1), ConsumerRemoved("g", "a", cause, ""))
    assert metered.counts.expirations == count


def test_what_nobody_owns_is_known_while_a_group_rebalances_and_who_is_idle_at_rest(metered):
    """What waits for a member that is away does not count; a member without anything is idle."""
    busy = SimpleNamespace(assigned={"t": {0: 1}}, revoking={})
    idle = SimpleNamespace(assigned={}, revoking={})
    metered.modern.members = {"a": busy, "b": idle}
    metered.modern.held = {"t": {0: "a"}}
    unowned = {WhyUnowned.OVER_LIMIT: 3, WhyUnowned.GRANT_DUE: 2, WhyUnowned.AWAY: 7}
    assert ownership(metered.group, GroupCounts(), {"t": 3}, unowned) == Ownership(5, 1)
    metered.modern.behind = {0: None}
    assert ownership(metered.group, GroupCounts(), {"t": 3}, unowned) == Ownership(5, None)
    assert ownership(metered.group, GroupCounts(), {"t": 3}, {}) == Ownership(0, None)


def test_partitions_without_an_owner_have_a_series_for_each_reason(metered):
    """As the leader of the group's shard saw them last; a group that it does not know has none."""
    page = _GroupPage()
    counts = {WhyUnowned.OVER_LIMIT: 3, WhyUnowned.AWAY: 7}
    known = SimpleNamespace(counts=lambda group_id: counts if group_id == "g" else None)
    metered.meter._shards[0].leadership = SimpleNamespace(unowned=known)
    assert metered.meter.unowned("other") == {}
    metered.group.group_id, metered.group.member_count = "g", 1
    page.gauges(metered.group, GroupCounts(), {}, metered.meter.unowned("g"))
    found = {sample.labels["reason"]: sample.value for sample in page.unowned.samples}
    assert found == {why.value: counts.get(why, 0) for why in WhyUnowned}
    assert [sample.value for sample in page.unassigned.samples] == [3]


def test_partitions_that_a_member_reports_though_they_are_anothers_are_counted(metered):
    metered.meter.claimed(0, [Claim("g", "t", number, "b", "a") for number in range(3)])
    metered.meter.claimed(0, [Claim("g", "t", 0, "b", "a")])
    assert metered.counts.partitions_claimed == 4


def test_a_group_that_is_gone_while_it_rebalances_takes_no_place(metered):
    """Of those that rebalance so many are counted, and it is none of them any more."""
    metered.tell(changed(2))
    assert metered.meter._epochs
    metered.shard.state.groups.clear()
    metered.meter.choose()
    assert not metered.meter._opened
    assert not metered.meter._epochs
