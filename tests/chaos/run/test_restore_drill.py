"""Backups of a cluster that is broken meanwhile are whole, and a restored cluster has them all."""

import pytest

from musterd.chaos.run.restore_drill import drill
from musterd.chaos.world.equipment.certificates import CLIENT, Certificates
from musterd.chaos.world.world import World

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(600)]

KINDS = ("kill_leader", "pause_leader", "transfer_leadership", "rolling_restart")


def test_backups_under_faults_are_whole_and_restored(tmp_path):
    """Digests equal the replayed history; nothing that was acknowledged before is missing."""
    with World(3, 4, seed=7) as world:
        done = drill(world, tmp_path, KINDS, seed=7)
    assert (done.backups, done.cuts) == (len(KINDS), 4)
    assert done.restored_s > 0


def test_a_cluster_with_rules_and_tls_is_backed_up_and_restored_by_who_may(tmp_path):
    """Every caller shows the certificate of a superuser: the rules let nobody else do anything."""
    certified = (Certificates("chaos"),)
    with World(3, 4, seed=7, equipment=certified, flags=(f"--superusers={CLIENT}",)) as world:
        world.muster("acl", "grant", "nobody-else", "describe", "cluster")
        done = drill(world, tmp_path, ("kill_leader",), seed=7)
    assert (done.backups, done.cuts) == (1, 4)
