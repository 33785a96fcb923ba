"""What a replica is to its callers, and what it may become next, over all pairs."""

import re

import pytest

from musterd.coordinator.runtime.coordinator_state import CoordinatorState
from musterd.coordinator.runtime.leadership import Leadership
from musterd.invariant import InvariantError
from musterd.raft.contract import Role
from tests.coordinator.fakes import Rig

FOLLOWER, LOADING, SERVING, CUT_OFF, QUARANTINED, CLOSED = CoordinatorState

ALLOWED = """
follower:    loading                             quarantined closed
loading:     follower          serving  cut off  quarantined closed
serving:     follower                   cut off  quarantined closed
cut off:     follower          serving           quarantined closed
quarantined: follower loading                                closed
closed:
"""


def put(rig, state):
    """Make the facts those of `state`, however they came about."""
    leads = state in (LOADING, SERVING, CUT_OFF)
    rig.log.role = Role.LEADER if leads else Role.FOLLOWER
    rig.log.quorum_heard = state is SERVING
    rig.log.trusted = (1,) if state is QUARANTINED else ()
    rig.shard._closed = state is CLOSED
    rig.shard.leadership = Leadership(rig.shard) if state in (SERVING, CUT_OFF) else None


ON_THE_WAY = {SERVING: [LOADING], CUT_OFF: [LOADING]}


@pytest.mark.parametrize("before", CoordinatorState)
@pytest.mark.parametrize("after", CoordinatorState)
def test_a_replica_becomes_only_what_the_table_allows(before, after):
    """Each of the 36 pairs: a step that the table does not name stops the process."""
    row = re.search(rf"^{before.value}:(.*)$", ALLOWED, re.MULTILINE)[1]
    rig = Rig()
    for state in (FOLLOWER, *ON_THE_WAY.get(before, ()), before):
        put(rig, state)
        assert rig.shard.coordinator_state is state
    put(rig, after)
    if after is before or after.value in row:
        assert rig.shard.coordinator_state is after
        assert after.elsewhere == (after not in (LOADING, SERVING))
    else:
        with pytest.raises(InvariantError, match=f"{before.value} became {after.value}"):
            rig.turn()
