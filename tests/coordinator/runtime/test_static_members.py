"""Static members and pending ids at their coordinator: who is answered, whose session runs."""

from dataclasses import replace

import pytest

from musterd.coordinator.machine.commands import LeaveGroup, LeavingMember
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import IdGiven, Joined, LeaveResult, Left, Refused, Synced
from musterd.coordinator.machine.state import Phase
from musterd.coordinator.runtime.sessions import MemberKey
from musterd.coordinator.runtime.waiters import FENCED
from tests.coordinator.fakes import Rig, id_of, join, sync


@pytest.fixture
def rig():
    """A shard that leads."""
    rig = Rig()
    rig.log.lead()
    return rig


def group_of(rig):
    """The group's applied state."""
    return rig.shard.state.groups["g"]


def stable(rig, *joins):
    """Bring these into a stable generation."""
    for number, command in enumerate(joins):
        rig.ask(f"join {number}", command)
    rig.run(1_100)
    leader = group_of(rig).leader_id
    for number, _ in enumerate(joins):
        answer = rig.answers[f"join {number}"]
        vector = {"a": b"A", "b": b"B"} if answer.member_id == leader else {}
        name = answer.member_id.split("-")[0]
        rig.ask(f"sync {number}", sync(name, answer.generation, vector))
    rig.turn()
    assert all(isinstance(rig.answers[f"sync {n}"], Synced) for n, _ in enumerate(joins))


def back(name, **more):
    """The process behind instance i after a restart: another client id, so another nonce."""
    return join(name, instance="i", **more)


def test_the_parked_join_of_a_replaced_member_is_fenced_at_once(rig):
    """sc-S12: the old call is answered, the new one waits in its place."""
    rig.ask("old", back("b"))
    rig.ask("other", join("a"))
    rig.turn()
    rig.ask("new", back("c"))
    rig.turn()
    assert rig.answers == {"old": FENCED}
    assert len(rig.waiters) == 2
    assert list(group_of(rig).members) == [id_of("c"), id_of("a")]
    rig.run(1_100)
    assert rig.answers["new"].leader_id == id_of("c")
    assert len(rig.shard.sessions) == 2


def test_a_replaced_members_sync_is_fenced(rig):
    """sc-S13: parked in Sync while its successor joins."""
    rig.ask("lead", join("a"))
    rig.turn()
    rig.ask("old", back("b"))
    rig.run(1_100)
    rig.ask("old sync", sync("b", 1))
    rig.turn()
    rig.ask("new", back("c"))
    rig.turn()
    assert rig.answers["old sync"] == FENCED
    assert rig.call_limits.parked.used == 1  # the newcomer's Join


def test_a_restart_within_the_session_is_no_rebalance(rig):
    """sc-S03, sc-S28: answered at once, same generation; the old session never fires."""
    stable(rig, join("a"), back("b"))
    before = group_of(rig).generation
    rig.run(8_000)
    rig.shard.sessions.heard(MemberKey("g", id_of("a")))
    rig.ask("new", back("c"))
    rig.turn()
    assert rig.answers["new"].generation == before
    rig.ask("sync", sync("c", before))
    rig.turn()
    assert rig.answers["sync"].assignment == b"B"
    rig.run(5_000)  # the old member's session would have ended
    assert group_of(rig).phase is Phase.STABLE
    key = MemberKey("g", id_of("b"))
    assert rig.shard.heartbeat(key, before, "i") is Error.FENCED_INSTANCE_ID
    assert rig.shard.heartbeat(key, before) is Error.UNKNOWN_MEMBER_ID


def test_who_takes_over_has_a_token_of_its_own(rig):
    """arch-3.8: in the same generation, in Join and Sync answers, at the next coordinator too."""
    stable(rig, join("a"), back("b"))
    old, other = rig.answers["sync 1"].token, rig.answers["sync 0"].token
    generation = group_of(rig).generation
    rig.ask("new", back("c"))
    rig.turn()
    rig.ask("sync", sync("c", generation))
    rig.turn()
    assert rig.answers["new"].generation == generation
    assert rig.answers["new"].token == rig.answers["sync"].token > old == other
    rig.ask("late", back("c"))  # a retry of its first Join
    rig.ask("same", sync("a", generation))
    rig.turn()
    assert rig.answers["late"].token == rig.answers["sync"].token
    assert rig.answers["same"].token == other


def test_the_newcomers_own_session_timeout_counts(rig):
    """sc-S29: from its answer on, the timeout it asked for.

    In Kafka the first period is the old one's.
    """
    stable(rig, join("a", session_ms=60_000), back("b"))
    rig.ask("new", back("c", session_ms=30_000))
    rig.turn()
    rig.run(29_000)
    assert id_of("c") in group_of(rig).members
    rig.run(1_500)
    assert id_of("c") not in group_of(rig).members


def test_an_absent_static_member_goes_when_its_session_ends(rig):
    """sc-S25, sc-S27, gp-E7: a leave of others does not touch it; its silence does."""
    stable(rig, join("a"), back("b", session_ms=20_000))
    rig.ask("leave", LeaveGroup("g", (LeavingMember(id_of("a"), ""),)))
    rig.turn()
    assert group_of(rig).phase is Phase.PREPARING_REBALANCE
    rig.run(19_000)
    assert list(group_of(rig).members) == [id_of("b")]
    rig.run(2_000)
    assert group_of(rig).phase is Phase.EMPTY


def test_an_operator_removes_a_static_member_by_its_instance(rig):
    """sc-L07: at once, and its parked call is told."""
    stable(rig, join("a"), back("b"))
    rig.ask("leave", LeaveGroup("g", (LeavingMember("", "scaled down", "i"),)))
    rig.turn()
    assert rig.answers["leave"] == Left((LeaveResult("", Error.NONE, "i"),))
    assert list(group_of(rig).members) == [id_of("a")]


def test_an_id_that_is_not_used_expires(rig):
    """sc-J41: after the session timeout that was asked for, whatever else happens."""
    rig.ask("id", join("a", session_ms=5_000, drawn="d"))
    rig.turn()
    assert rig.answers["id"] == IdGiven("a-d")
    rig.run(4_900)
    assert list(group_of(rig).pending) == ["a-d"]
    rig.run(200)
    assert not group_of(rig).pending
    rig.ask("late", join("a", member_id="a-d"))
    rig.turn()
    assert rig.answers["late"].error is Error.UNKNOWN_MEMBER_ID
    assert len(rig.shard.sessions) == 0


def test_an_id_that_is_used_is_a_member_with_a_session(rig):
    """sc-J18: the pending deadline is replaced by the member's own."""
    rig.ask("id", join("a", session_ms=5_000, drawn="d"))
    rig.turn()
    rig.ask("join", join("a", session_ms=9_000, member_id="a-d"))
    rig.run(600)
    assert isinstance(rig.answers["join"], Joined)
    rig.run(8_000)
    assert "a-d" in group_of(rig).members
    rig.run(1_500)
    assert group_of(rig).phase is Phase.EMPTY


def test_a_new_coordinator_gives_pending_ids_a_full_session(rig):
    """gp-5.3: ids handed out survive a failover, and do not stay for ever."""
    rig.ask("id", join("a", session_ms=5_000, drawn="d"))
    rig.turn()
    rig.run(4_000)
    rig.log.follow()
    rig.log.lead()
    rig.run(4_000)
    assert list(group_of(rig).pending) == ["a-d"]
    rig.run(2_000)
    assert not group_of(rig).pending


def test_a_refusal_that_removes_goes_through_the_log(rig, monkeypatch):
    """sc-M09: every replica removes who lost its seat, so it is not refused without an entry."""
    stable(rig, join("a"), join("b"))
    small = {1: replace(LIMITS, group_max_members=1)}
    monkeypatch.setattr("musterd.coordinator.machine.shard_state.LIMITS_BY_VERSION", small)
    monkeypatch.setattr("musterd.coordinator.runtime.shard.LIMITS", small[1])
    leader, other = ("a", "b") if group_of(rig).leader_id == id_of("a") else ("b", "a")
    rig.ask("first", join(leader, member_id=id_of(leader)))
    rig.turn()
    entries = len(rig.log.entries)
    rig.ask("second", join(other, member_id=id_of(other)))
    rig.turn()
    answer = rig.answers["second"]
    assert isinstance(answer, Refused)
    assert answer.error is Error.GROUP_MAX_SIZE_REACHED
    assert len(rig.log.entries) == entries + 1
    assert isinstance(rig.answers["first"], Joined)
    assert list(group_of(rig).members) == [id_of(leader)]


def test_a_broken_call_does_not_shorten_a_static_members_session(rig):
    """gp-E6, gp-E7: its process may be away for the whole session; a dynamic one's gets 2 s."""
    stable(rig, join("a"), back("b"))
    generation = group_of(rig).generation
    for name in ("a", "b"):
        rig.shard.abandon(rig.ask(f"again {name}", sync(name, generation)))
    rig.run(3_000)
    assert list(group_of(rig).members) == [id_of("b")]
    rig.run(6_500)
    assert list(group_of(rig).members) == [id_of("b")]
    rig.run(1_500)
    assert group_of(rig).phase is Phase.EMPTY


def test_a_new_coordinator_knows_who_is_static(rig):
    """The whole session after a broken call, at the next coordinator too."""
    stable(rig, back("b"))
    rig.log.follow()
    rig.log.lead()
    rig.shard.sessions.broke_off(MemberKey("g", id_of("b")))
    rig.run(9_000)
    assert list(group_of(rig).members) == [id_of("b")]
