"""Metrics of modern groups: rebalances from a new epoch until its target is carried out."""

from types import SimpleNamespace

import pytest

from musterd.coordinator.machine.commands import PartitionSet, Reconcile, RoundTimer
from musterd.coordinator.machine.events import (
    ConsumerGroupEmptied,
    ConsumerRejoined,
    ConsumerRemoved,
    GrantsChanged,
    RemovalCause,
    SpecChanged,
    Subscription,
    TargetStored,
    Trigger,
)
from musterd.coordinator.machine.state import Phase
from musterd.coordinator.metrics.groups import GroupCounts, GroupMeter, Ownership, ownership
from musterd.raft.contract import Role


class Metered:
    """A shard that leads one modern group g, with a meter."""

    def __init__(self):
        self.modern = SimpleNamespace(
            members={}, target_epoch=0, behind={}, timers={}, topics={"t": 3}, held={}
        )
        self.group = SimpleNamespace(
            phase=Phase.STABLE, modern=self.modern, generation=0, history=()
        )
        state = SimpleNamespace(groups={"g": self.group})
        shard = SimpleNamespace(log=SimpleNamespace(role=Role.LEADER), state=state)
        self.meter = GroupMeter([shard], lambda: 0.0)
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


def test_partitions_that_get_another_owner_than_their_last_one_have_moved(metered):
    """The first one is none; nor is the new process of a static member."""
    said = Subscription("c", "h", 1, 1, ("t",))
    metered.tell(granted("a", 0, 1, 2))
    metered.tell(granted("b", 1))
    assert metered.counts.partitions_moved == 1
    metered.tell(ConsumerRejoined("g", "c", "b", said, 2, 5, 0, ""), granted("c", 1))
    assert metered.counts.partitions_moved == 1
    metered.tell(granted("a", 1))
    assert metered.counts.partitions_moved == 2


@pytest.mark.parametrize(
    ("cause", "count"), [(RemovalCause.SESSION_EXPIRED, 1), (RemovalCause.LEFT, 0)]
)
def test_an_expired_session_is_counted(metered, cause, count):
    """As that of a classic group is."""
    metered.tell(granted("a", 0), ConsumerRemoved("g", "a", cause, ""))
    assert metered.counts.expirations == count


def test_what_nobody_owns_is_known_of_a_group_at_rest(metered):
    """What a member that is away keeps has an owner; a member without anything is idle."""
    busy = SimpleNamespace(assigned={"t": {0: 1}}, revoking={})
    idle = SimpleNamespace(assigned={}, revoking={})
    metered.modern.members = {"a": busy, "b": idle}
    metered.modern.held = {"t": {0: "a"}}
    assert ownership(metered.group, GroupCounts(), {"t": 3}) == Ownership(2, 1)
    metered.modern.behind = {0: None}
    assert ownership(metered.group, GroupCounts(), {"t": 3}) is None
