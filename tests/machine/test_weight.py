"""What a group weighs (arch-5), and what becomes of a member that weighs too much.

That the group leader's Join answer fits a message is shown in tests/limits/test_wire.py.
"""

from dataclasses import replace

import pytest

from musterd.coordinator.machine.decide.dispatch import decide
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import PARKED
from tests.machine.test_phase_table import join
from tests.machine.world import World


@pytest.fixture
def stable():
    """Two members, synced, a-1 leads."""
    world = World()
    for line in ("join a", "join b", "fire", "fire", "sync a-1 a-1:A b-1:B", "sync b-1"):
        world.run(line)
    return world


def test_under_rules_1_a_group_weighs_its_metadata_alone(stable):
    """arch-3.7: an old entry's newcomer is let in by names and metadata."""
    env = stable.envelope()
    limits = replace(env.limits, group_metadata_max_bytes=3 * len("rangext"))
    old = replace(env, limits=limits, level=1)
    assert decide(stable.state.groups["g"], join(), old).reply is PARKED
    refused = decide(stable.state.groups["g"], join(), replace(old, level=2)).reply
    assert refused.error is Error.GROUP_MAX_SIZE_REACHED
    less = replace(old, limits=replace(limits, group_metadata_max_bytes=3 * len("rangext") - 1))
    assert decide(stable.state.groups["g"], join(), less).events == ()


def test_a_group_of_rules_1_that_weighs_more_comes_back(stable):
    """Who says no more than before has a place, and who says more is turned away (gp-J6)."""
    env = stable.envelope()
    env = replace(env, limits=replace(env.limits, group_metadata_max_bytes=2 * len("rangext")))
    group = stable.state.groups["g"]
    same = join("a-1", "a")
    assert decide(group, same, env).reply is PARKED
    more = replace(same, subscribed_topics=(*same.subscribed_topics, "u"))
    decision = decide(group, more, env)
    assert decision.reply.error is Error.GROUP_MAX_SIZE_REACHED
    assert decision.events[0].member_id == "a-1"
    assert decide(group, more, replace(env, level=1)).events == ()
