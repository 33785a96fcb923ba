"""Members of modern groups at their coordinator: what is a sign of life, and who takes a place."""

from dataclasses import replace

from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Heard
from musterd.coordinator.runtime.sessions import MemberKey
from tests.coordinator.runtime.test_held_changes import JOIN, Churned, beat

SESSION_MS = JOIN.session_timeout_ms


def test_a_member_is_alive_by_its_own_heartbeats_alone():
    """Clients in other languages may hold no call; who is silent goes after its session."""
    rig = Churned()
    for name in ("a", "b"):
        rig.answer_to(replace(JOIN, member_id=name))
    for _ in range(4):
        rig.run(SESSION_MS // 2)
        assert isinstance(rig.answer_to(beat(rig, "a")), Heard)
    assert [*rig.modern.members] == ["a"]
    rig.run(SESSION_MS + 100)
    assert rig.modern is None, "it is a member still"


def test_a_static_member_is_replaced_once_its_connection_is_gone():
    """Not while it is heard; who comes then has what it had, and nobody else is told anything."""
    rig = Churned()
    rig.answer_to(replace(JOIN, member_id="old", group_instance_id="i"))
    rig.settle()
    newcomer = replace(JOIN, member_id="new", group_instance_id="i")
    assert rig.answer_to(newcomer).error is Error.UNRELEASED_INSTANCE_ID
    rig.shard.sessions.call_opened(MemberKey("g", "old"), heartbeat=True)
    rig.shard.sessions.call_closed(MemberKey("g", "old"), replied=False)
    rig.run(100)
    answer = rig.answer_to(newcomer)
    assert sorted(grant.partition for grant in answer.grants) == [*range(8)]
    assert [*rig.modern.members] == ["new"]
