"""Limits that are a time: before it nothing happens, at it and after it what it is for."""

from musterd.coordinator.machine.commands import CloseRound, PartitionCommit, RoundTimer
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import OffsetRemoved
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Joined
from musterd.coordinator.runtime.answers import ParkOver
from musterd.coordinator.runtime.heartbeats import BeatAnswer
from musterd.coordinator.runtime.retention import RETENTION, Sweep
from musterd.coordinator.runtime.sessions import MemberKey, Sessions
from tests.coordinator.fakes import Rig, join
from tests.coordinator.runtime.test_heartbeats import Held
from tests.limits.rows import limit
from tests.limits.test_machine import Shard, commit
from tests.machine.test_phase_table import join as joining
from tests.machine.text import WALL_MS


@limit("offset_retention_ms")
def test_retention(step):
    """The default of a coordinator that nobody has told otherwise; both sides count alike."""
    shard = Shard()
    shard.apply(commit(PartitionCommit("t", 0, 1, "", None)))
    wall_ms = WALL_MS + LIMITS.offset_retention_ms + step
    sweep = Sweep(RETENTION, 0)
    commands = list(sweep.turn(RETENTION.interval_ms, wall_ms, shard.state.groups))
    removed = [
        event
        for result in shard.apply(*commands, wall_ms=wall_ms)
        for event in result.events
        if isinstance(event, OffsetRemoved)
    ]
    assert len(commands) == len(removed) == (0 if step < 0 else 1)


@limit("initial_delay_ms")
def test_the_initial_delay(step):
    """A round from Empty closes at its end, not before; hearing it late changes nothing."""
    shard = Shard()
    shard.apply(joining(client="a"), time_ms=1_000)
    group = shard.state.groups["g"]
    assert (group.timer, group.deadline_ms) == (
        RoundTimer.INITIAL_DELAY,
        1_000 + LIMITS.initial_delay_ms,
    )
    firing = CloseRound("g", group.round, group.timer, group.deadline_ms)
    shard.apply(firing, time_ms=group.deadline_ms + step)
    assert shard.state.groups["g"].generation == (0 if step < 0 else 1)


@limit("park_max_ms")
def test_the_longest_park(step):
    """Then the caller is told to park again; its member keeps its place."""
    rig = Rig()
    rig.log.lead()
    rig.ask("a", join("a"))
    rig.run(1_100)
    assert isinstance(rig.answers["a"], Joined)
    rig.ask("b", join("b"))  # a does not come back: the round stays open
    rig.turn(ms=1)
    parked_ms = rig.clock_ms
    rig.waiters.turn(parked_ms + LIMITS.park_max_ms + step)
    assert rig.answers.get("b") == (None if step < 0 else ParkOver())
    assert len(rig.shard.state.groups["g"].members) == 2


@limit("heartbeat_interval_ms")
def test_a_held_heartbeat(step):
    """Nothing to say: answered when the interval is over."""
    node = Held()
    node.stable("a")
    node.beat("1", 1, "a")
    node.beats.turn(node.rig.clock_ms + LIMITS.heartbeat_interval_ms + step)
    answer = BeatAnswer((Error.NONE,), LIMITS.heartbeat_interval_ms)
    assert node.answers.get("1") == (None if step < 0 else answer)


@limit("session_timeout_ms")
def test_a_heartbeat_of_a_member_that_is_not_known(step):
    """Where no session says how often to come, the default does: a third of it is no bound."""
    node = Held()
    node.stable("a", session_ms=LIMITS.session_timeout_ms + step)
    node.beat("1", 1, "a", "nobody")
    node.beat("2", 2, "nobody")
    assert node.answers["1"].interval_ms == LIMITS.heartbeat_interval_ms


def ends_ms(sessions, key):
    """When the session ends, in its own clock."""
    return sessions._ends.get(key)


@limit("disconnect_grace_ms")
def test_the_disconnect_grace(step):
    """What a member keeps of its session when its only call breaks off."""
    sessions, key = Sessions(), MemberKey("g", "a")
    sessions.member_present(key, LIMITS.session_timeout_ms)
    sessions.call_opened(key)
    sessions.call_closed(key, replied=False)
    assert ends_ms(sessions, key) == LIMITS.disconnect_grace_ms
    shorter = LIMITS.disconnect_grace_ms + step
    sessions.member_present(key, shorter)
    sessions.call_opened(key)
    sessions.call_closed(key, replied=False)
    assert ends_ms(sessions, key) == min(shorter, LIMITS.disconnect_grace_ms)
