"""The shard on a log of one replica: parked calls, early refusals, promotion, demotion, expiry."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from musterd.coordinator.machine.commands import Checkpoint
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import (
    Committed,
    Joined,
    LeaveResult,
    Left,
    Refused,
    Synced,
)
from musterd.coordinator.machine.shard_state import recount
from musterd.coordinator.machine.state import Phase
from musterd.coordinator.node.node import Node
from musterd.coordinator.runtime import command_router
from musterd.coordinator.runtime.answers import Loading, NotHere, ParkOver, Shed, Superseded
from musterd.coordinator.runtime.persist import scrub
from musterd.coordinator.runtime.sessions import MemberKey
from musterd.coordinator.runtime.timeouts import FIRST_HEARTBEAT_MS, PARK_MS_MAX
from musterd.coordinator.runtime.turn import Joins, Turn
from musterd.raft.contract import NodeId, Role
from tests.coordinator.fakes import Rig, commit, id_of, join, leave, sync


@pytest.fixture
def rig():
    """A shard that leads."""
    rig = Rig()
    rig.log.lead()
    return rig


def settle(rig, *members, group="g"):
    """Bring members into a stable generation; returns it."""
    for member in members:
        rig.ask(f"join {member}", join(member, group))
    rig.run(1_100)
    joined = rig.answers[f"join {members[0]}"]
    assert isinstance(joined, Joined)
    for member in members:
        everybody = {m: m.encode() for m in members} if id_of(member) == joined.leader_id else {}
        rig.ask(f"sync {member}", sync(member, joined.generation, everybody, group))
    rig.turn()
    assert all(isinstance(rig.answers[f"sync {m}"], Synced) for m in members)
    return joined.generation


def group_of(rig, name="g"):
    """A group's applied state."""
    return rig.shard.state.groups[name]


def test_a_round_from_first_join_to_assignments(rig):
    """Joins park until the initial delay is over, syncs until the leader's vector is applied."""
    rig.ask("a", join("a"))
    rig.ask("b", join("b"))
    rig.turn()
    assert rig.answers == {}
    assert len(rig.waiters) == 2
    rig.run(1_100)
    a, b = rig.answers["a"], rig.answers["b"]
    assert (a.generation, b.generation) == (1, 1)
    assert a.leader_id == id_of("a")
    assert [m.member_id for m in a.members] == [id_of("a"), id_of("b")]
    assert b.members == ()
    rig.ask("sync b", sync("b", 1))
    rig.turn()
    assert "sync b" not in rig.answers
    rig.ask("sync a", sync("a", 1, {"a": b"A", "b": b"B"}))
    rig.turn()
    assert rig.answers["sync a"].assignment == b"A"
    assert rig.answers["sync b"].assignment == b"B"
    assert len(rig.waiters) == 0
    assert rig.call_limits.parked.used == 0
    assert rig.call_limits.disconnects.held == 0


def test_commands_of_one_turn_share_one_entry(rig):
    """A hundred commits of one turn are one record of the log, answered each."""
    for number in range(100):
        rig.ask(number, commit("", -1, number, group=f"g{number}"))
    rig.turn()
    assert len(rig.log.entries) == 1
    assert all(isinstance(rig.answers[n], Committed) for n in range(100))


def test_an_entry_that_would_grow_too_large_is_closed_before(rig):
    """Three commands of 512 KiB take three entries; nothing is refused."""
    for number in range(3):
        rig.ask(number, commit("", -1, number, group=f"g{number}"), size=LIMITS.command_max_bytes)
    rig.turn()
    assert len(rig.log.entries) == 3
    assert len(rig.answers) == 3


def test_a_full_queue_sheds_and_keeps_what_it_took(rig):
    """The 4,097th command under way is refused for overload; the others are answered."""
    for number in range(LIMITS.queue_max_commands):
        rig.ask(number, commit("", -1, 1, group=f"g{number}"))
    rig.ask("one more", commit("", -1, 1))
    assert rig.answers == {"one more": Shed("the shard's queue of commands")}
    rig.drain()
    assert len(rig.answers) == LIMITS.queue_max_commands + 1
    rig.ask("later", commit("", -1, 1))
    rig.turn()
    assert isinstance(rig.answers["later"], Committed)


def test_a_second_join_of_a_parked_member_takes_its_seat(rig):
    """gp-D1.

    The older call is answered REBALANCE_IN_PROGRESS at once, and no entry is written for the
    newer.
    """
    rig.ask("first", join("a"))
    rig.turn()
    entries = len(rig.log.entries)
    rig.ask("again", join("a"))
    assert rig.answers == {"first": Superseded()}
    rig.turn()
    assert len(rig.log.entries) == entries
    rig.run(1_100)
    assert isinstance(rig.answers["again"], Joined)


def test_the_longest_park_ends_with_park_again(rig):
    """gp-2.16.

    After 25 s the call is let go; the member stays joined and parks again without an entry.
    """
    generation = settle(rig, "a", "b")
    rig.ask("rejoin a", join("a", metadata=b"new", member_id=id_of("a")))
    rig.run(100)
    start_ms = rig.clock_ms
    while "rejoin a" not in rig.answers:
        rig.shard.heartbeat(MemberKey("g", id_of("b")), generation)
        rig.shard.sessions.heard(MemberKey("g", id_of("b")))
        rig.turn()
    assert rig.answers["rejoin a"] == ParkOver()
    assert PARK_MS_MAX - 200 <= rig.clock_ms - start_ms <= PARK_MS_MAX + 200
    entries = len(rig.log.entries)
    rig.ask("parked again", join("a", metadata=b"new", member_id=id_of("a")))
    assert "parked again" not in rig.answers
    assert len(rig.waiters) == 1
    assert not rig.log.waiting
    assert len(rig.log.entries) == entries


def test_an_abandoned_join_keeps_the_member_for_the_grace(rig):
    """A cancelled call is un-parked, the member stays, and goes after the grace of 2 s."""
    settle(rig, "a", "b")
    call = rig.ask("rejoin", join("a", metadata=b"new", member_id=id_of("a")))
    rig.turn()
    rig.shard.abandon(call)
    assert len(rig.waiters) == 0
    rig.run(1_900)
    assert id_of("a") in group_of(rig).members
    rig.run(300)
    assert id_of("a") not in group_of(rig).members
    assert "rejoin" not in rig.answers


def test_a_join_abandoned_before_it_is_applied_leaves_only_the_grace(rig):
    """The caller died while its first Join was in the log.

    The member it became goes after 2 s, not after 10.
    """
    call = rig.ask("a", join("a"))
    rig.shard.abandon(call)
    rig.run(600)
    assert id_of("a") in group_of(rig).members
    rig.run(2_000)
    assert id_of("a") not in group_of(rig).members


def test_what_applied_state_rejects_takes_no_entry(rig):
    """arch-5.1: refused after a quorum confirmed leadership, without a record."""
    settle(rig, "a")
    entries = len(rig.log.entries)
    rig.ask("stale", commit("a", 99, 5))
    assert "stale" not in rig.answers  # leadership is not confirmed yet
    rig.log.run()
    assert rig.answers["stale"].error is Error.ILLEGAL_GENERATION
    assert len(rig.log.entries) == entries


def test_no_early_refusal_while_a_command_of_the_group_is_under_way(rig):
    """A commit behind its own Join is decided by the log, where the Join is first."""
    rig.ask("join", join("a"))
    rig.ask("leave", leave("a"))
    rig.turn()
    assert rig.answers["leave"] == Left((LeaveResult(id_of("a"), Error.NONE),))


def test_a_refusal_that_is_no_longer_true_goes_to_the_log(rig):
    """Between the request and the quorum's word the group moved: the log decides."""
    rig.ask("leave", leave("a"))  # no such group yet: would be refused
    rig.ask("join", join("a"))
    rig.turn()
    rig.turn()
    left = rig.answers["leave"]
    assert left == Left((LeaveResult(id_of("a"), Error.NONE),)) or left == Left(
        (LeaveResult(id_of("a"), Error.UNKNOWN_MEMBER_ID),)
    )


def test_a_deposed_leader_refuses_nothing_by_itself(rig):
    """An early refusal whose leadership is not confirmed becomes NOT_COORDINATOR."""
    settle(rig, "a")
    rig.ask("stale", commit("a", 99, 5))
    rig.log.follow(leader=NodeId(2))
    assert rig.answers["stale"] == NotHere(NodeId(2), rig.log.term)


def test_a_silent_member_is_expired_and_the_others_rebalance(rig):
    """sc-H10: no call for a whole session: removed, and the group opens a round."""
    settle(rig, "a", "b")
    for _ in range(1_100):
        rig.shard.sessions.heard(MemberKey("g", id_of("b")))
        rig.turn()
    group = group_of(rig)
    assert list(group.members) == [id_of("b")]
    assert group.phase is Phase.PREPARING_REBALANCE


def test_members_that_start_with_many_have_longer_to_be_heard_for_the_first_time(rig):
    """docs/adr/0019: their answers may lie unread as long as their Joins did."""
    for member in "ab":
        rig.ask(member, join(member))
    for _ in range(200):
        rig.turn(joins=Joins.MANY)
    assert not rig.answers
    while len(rig.answers) < 2:
        rig.turn()
    assert isinstance(rig.answers["a"], Joined)
    assert isinstance(rig.answers["b"], Joined)
    b = MemberKey("g", id_of("b"))
    rig.shard.sessions.call_opened(b, heartbeat=True)
    rig.shard.sessions.call_closed(b, replied=True)
    rig.run(10_500)
    assert set(group_of(rig).members) == {id_of("a")}
    rig.run(FIRST_HEARTBEAT_MS - 1_000)
    assert set(group_of(rig).members) == {id_of("a")}
    rig.run(1_000)
    assert not group_of(rig).members


def test_members_that_follow_a_fleet_one_by_one_come_into_its_first_generation(rig):
    """docs/adr/0019: each comes a quarter of a second after the one before it, none too late."""
    names = "abcdefghijklmnop"
    for member in names:
        rig.ask(member, join(member))
        for turn in range(24):
            rig.turn(joins=Joins.MANY if member == "a" and turn < 20 else Joins.FEW)
    rig.run(1_000)
    assert {rig.answers[member].generation for member in names} == {1}


@pytest.mark.parametrize("joins", Joins)
def test_a_first_round_waits_while_a_fleet_comes_and_not_when_its_herd_is_over(rig, joins):
    """docs/adr/0019: what is over stops sessions alone."""
    rig.ask("a", join("a"))
    for _ in range(300):
        rig.turn(joins=joins)
    assert ("a" in rig.answers) is (joins in (Joins.FEW, Joins.HERD_OVER))


@pytest.mark.parametrize("joins", [Joins.HERD, Joins.HERD_OVER])
def test_nobody_expires_while_a_herd_of_joins_waits_to_be_taken(rig, joins):
    """The member's own Join may be among those; when it is over the rest of the session runs."""
    settle(rig, "a")
    rig.run(8_000)
    for _ in range(6_000):
        rig.turn(joins=joins)
    rig.run(1_500)
    assert id_of("a") in group_of(rig).members
    rig.run(1_000)
    assert id_of("a") not in group_of(rig).members


def test_commits_keep_a_member_alive(rig):
    """sc-H12: only commits, for three sessions."""
    generation = settle(rig, "a")
    for number in range(6):
        rig.ask(number, commit("a", generation, number, seq=number + 1))
        rig.run(5_000)
    assert id_of("a") in group_of(rig).members


def test_a_stale_generation_does_not_keep_a_member_alive(rig):
    """sc-H06: calls under another generation leave the session as it is."""
    generation = settle(rig, "a")
    for number in range(6):
        rig.ask(number, commit("a", generation + 1, number, seq=number + 1))
        rig.run(2_000)
    assert "a" not in group_of(rig).members
    assert group_of(rig).phase is Phase.EMPTY


def test_promotion_resumes_an_open_round(rig):
    """sc-R40: the joins are in the log, so the next leader completes the round."""
    rig.ask("a", join("a"))
    rig.turn()
    other = Rig(view=rig.log.view)
    other.log.applied_index = rig.log.applied_index
    other.log.lead()
    other.ask("a again", join("a"))
    assert (
        len(other.shard.leadership.waiters) == 1
    )  # parked without an entry: it has joined already
    assert list(group_of(other).members) == [id_of("a")]
    other.run(1_100)
    assert other.answers["a again"].generation == 1


def test_promotion_grants_full_sessions(rig):
    """sc-H22.

    A silent member is removed between one and two sessions after a change of coordinator.
    """
    settle(rig, "a")
    rig.run(9_000)
    other = Rig(view=rig.log.view)
    other.log.applied_index = rig.log.applied_index
    other.log.lead()
    other.run(9_900)
    assert id_of("a") in group_of(other).members
    other.run(500)
    assert id_of("a") not in group_of(other).members


def test_demotion_answers_everybody_with_the_new_leader(rig):
    """Parked, queued and proposed calls are told who leads, once that is known."""
    rig.ask("parked", join("a"))
    rig.turn()
    rig.ask("flying", commit("", -1, 1, group="h"))
    rig.clock_ms += 10
    rig.shard.turn(_turn(rig))
    rig.ask("queued", commit("", -1, 1, group="i"))
    rig.log.follow()
    assert rig.answers == {"queued": NotHere(None, rig.log.term)}
    rig.turn()
    assert "parked" not in rig.answers
    rig.log.leader = NodeId(2)
    rig.turn()
    assert rig.answers["parked"] == rig.answers["flying"] == NotHere(NodeId(2), rig.log.term)
    assert rig.call_limits.parked.used == 0
    assert rig.shard.leadership is None


def test_demotion_without_a_new_leader_answers_soon(rig):
    """Nobody waits longer than the orphan hold for a name that does not come."""
    rig.ask("parked", join("a"))
    rig.turn()
    rig.log.follow()
    rig.run(220)
    assert rig.answers["parked"] == NotHere(None, rig.log.term)


def test_a_follower_sends_callers_away(rig):
    """Every call to a follower names the leader it knows."""
    rig.log.follow(leader=NodeId(1))
    rig.ask("c", commit("", -1, 1))
    assert rig.answers["c"] == NotHere(NodeId(1), rig.log.term)
    assert rig.shard.heartbeat(MemberKey("g", "a"), 1) == NotHere(NodeId(1), rig.log.term)


def test_a_leader_without_its_no_op_is_loading():
    """Between election and its own no-op a leader answers neither yes nor no."""
    rig = Rig()
    rig.log.role, rig.log.term, rig.log.leader = Role.LEADER, 1, NodeId(0)
    rig.ask("c", commit("", -1, 1))
    assert rig.answers["c"] == Loading()
    assert rig.shard.heartbeat(MemberKey("g", "a"), 1) == Loading()


def test_a_leader_without_a_quorum_answers_nothing_but_an_error(rig):
    """sc-H20: check quorum holds for heartbeats too, and nobody expires meanwhile."""
    settle(rig, "a")
    rig.log.quorum_heard = False
    rig.ask("c", commit("", -1, 1))
    assert rig.answers["c"] == NotHere(None, rig.log.term)
    assert isinstance(rig.shard.heartbeat(MemberKey("g", id_of("a")), 1), NotHere)
    rig.run(30_000)
    rig.log.quorum_heard = True
    rig.run(1_000)
    assert id_of("a") in group_of(rig).members


def test_a_leader_that_stood_still_asks_its_quorum_before_it_sends_its_callers_away(rig):
    """One turn later it knows; callers that are not asked about are told nothing meanwhile."""
    settle(rig, "a")
    moved = []
    rig.shard_moved = moved.append
    rig.log.quorum_heard = False
    rig.turn(ms=350, lag_ms=330)
    rig.log.quorum_heard = True
    rig.turn()
    assert moved == []
    rig.log.quorum_heard = False
    rig.turn(ms=350, lag_ms=330)
    assert moved == []
    rig.turn()
    assert moved == [0]


def test_an_overloaded_log_is_passed_on(rig):
    """An entry that the log refuses sheds each of its commands."""
    rig.log.overloaded = True
    rig.ask("c", commit("", -1, 1))
    rig.turn()
    assert rig.answers["c"] == Shed("the log")
    rig.log.overloaded = False
    rig.ask("d", commit("", -1, 1))
    rig.turn()
    assert isinstance(rig.answers["d"], Committed)


def test_nobody_is_named_while_leadership_is_being_handed_over(rig):
    """The target leads in a later term, or never; a client believes a name for the whole term."""
    rig.log.handed_to = NodeId(2)
    rig.ask("c", commit("", -1, 1))
    rig.turn()
    assert rig.answers["c"] == NotHere(None, rig.log.term)


def test_parked_calls_have_a_maximum(rig):
    """The 10,001st held Join is refused before it reaches the log."""
    rig.call_limits.parked.used = LIMITS.max_parked_calls
    rig.ask("a", join("a"))
    assert rig.answers["a"] == Shed("parked calls")
    assert not rig.log.waiting


def test_a_full_shard_names_its_limit_and_serves_the_groups_it_has(rig, monkeypatch):
    """Waiting makes no room while groups are never removed, so it is no overload."""
    monkeypatch.setattr(command_router, "LIMITS", replace(LIMITS, shard_max_groups=2))
    generation = settle(rig, "a", group="first")
    rig.ask("second", commit("", -1, 1, group="second"))
    rig.turn()
    for name, command in (
        ("join", join("b", "third")),
        ("commit", commit("", -1, 1, group="third")),
    ):
        rig.ask(name, command)
        assert rig.answers[name].error is Error.INVALID_REQUEST
        assert "shard_max_groups" in rig.answers[name].message
    rig.ask("lost", leave("b", "third"))
    rig.ask("more", commit("a", generation, 5, group="first"))
    rig.turn()
    assert isinstance(rig.answers["more"], Committed)
    assert rig.answers["lost"] != command_router._TOO_MANY_GROUPS
    assert set(rig.shard.state.groups) == {"first", "second"}


def test_removal_answers_the_members_own_calls(rig):
    """A member that leaves while its Join is parked: the Join is answered UNKNOWN_MEMBER_ID."""
    settle(rig, "a", "b")
    rig.ask("rejoin", join("a", metadata=b"new", member_id=id_of("a")))
    rig.turn()
    rig.ask("leave", leave("a"))
    rig.turn()
    refused = rig.answers["rejoin"]
    assert isinstance(refused, Refused)
    assert refused.error is Error.UNKNOWN_MEMBER_ID


def test_a_round_that_opens_answers_parked_syncs(rig):
    """gp-1.5: RebalanceStarted answers syncs with REBALANCE_IN_PROGRESS."""
    rig.ask("a", join("a"))
    rig.ask("b", join("b"))
    rig.run(1_100)
    rig.ask("sync b", sync("b", 1))
    rig.turn()
    rig.ask("c", join("c"))
    rig.turn()
    assert rig.answers["sync b"].error is Error.REBALANCE_IN_PROGRESS


def test_checkpoints_only_where_something_moved(rig):
    """One after promotion, one per interval of movement, none in silence."""
    rig.run(2_000)
    assert len(rig.shard.persist.checkpoints) == 1
    rig.run(40_000)
    assert len(rig.shard.persist.checkpoints) == 1
    rig.ask("c", commit("", -1, 1))
    rig.run(10_100)
    assert len(rig.shard.persist.checkpoints) == 2
    rig.shard.checkpoint_soon()
    rig.turn()
    assert len(rig.shard.persist.checkpoints) == 3


def test_a_checkpoint_that_the_log_refuses_is_proposed_again(rig):
    """Otherwise a group that falls silent is never compared."""
    rig.run(2_000)
    kept = len(rig.shard.persist.checkpoints)
    rig.log.overloaded = True
    rig.shard.checkpoint_soon()
    rig.turn()
    assert len(rig.shard.persist.checkpoints) == kept
    rig.log.overloaded = False
    rig.run(10_100)
    assert len(rig.shard.persist.checkpoints) == kept + 1


def test_what_is_on_disk_hashes_to_the_running_digest(rig):
    """What is stored and the running digest agree after a life of joins, commits, leaves."""
    generation = settle(rig, "a", "b")
    for number in range(20):
        rig.ask(number, commit("a", generation, number, seq=number + 1, partition=number % 3))
        rig.turn()
    rig.ask("leave", leave("b"))
    rig.run(100)
    *_, stored = scrub(rig.log.view)
    assert stored.total == rig.shard.state.digest == recount(rig.shard.state)
    again = Rig(view=rig.log.view)
    assert again.shard.state.digest == rig.shard.state.digest


def test_observers_see_each_applied_entry(rig):
    """Metrics and others are told shard, index, entry and results, on leader and follower alike."""
    seen = []
    rig.shard.subscribe(lambda *applied: seen.append(applied))
    rig.ask("c", commit("", -1, 1))
    rig.turn()
    ((number, index, entry, results),) = [s for s in seen if not _is_checkpoint(s)]
    assert (number, index) == (0, rig.log.applied_index)
    assert len(entry.commands) == len(results) == 1


def _is_checkpoint(applied):
    return isinstance(applied[2].commands[0], Checkpoint)


def _turn(rig):
    return Turn(rig.clock_ms, 0, rig.loop_round)


def test_a_node_is_not_ready_while_a_replica_loads(rig):
    """It knows a leader and its applied index is the newest, but its state is an older one."""
    node = SimpleNamespace(driver=SimpleNamespace(identity=SimpleNamespace(node_id=NodeId(0))))
    assert Node._is_ready(node, rig.shard)
    rig.log.loading = True
    assert not Node._is_ready(node, rig.shard)
