"""Backups of a cluster that is broken meanwhile are whole, and a restored cluster has them all."""

import pytest

from musterd.chaos.run.restore_drill import drill
from musterd.chaos.world.world import World

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(600)]

KINDS = ("kill_leader", "pause_leader", "transfer_leadership", "rolling_restart")


def test_backups_under_faults_are_whole_and_restored(tmp_path):
    """Digests equal the replayed history; nothing that was acknowledged before is missing."""
    with World(3, 4, seed=7) as world:
        done = drill(world, tmp_path, KINDS, seed=7)
    assert (done.backups, done.cuts) == (len(KINDS), 4)
    assert done.restored_s > 0
