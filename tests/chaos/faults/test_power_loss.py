"""Power loss of all nodes: the shipped build loses nothing acknowledged, one without fsync does."""

from random import Random

import pytest

from musterd.chaos.faults.contract import create
from musterd.chaos.faults.disk import PowerLossAll
from musterd.chaos.mutants.installed import BrokenBuild
from musterd.chaos.world.equipment.client import EquipmentClient
from musterd.chaos.world.equipment.disk import LoopDisks
from musterd.chaos.world.networks.network import Network
from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import ClusterError
from tests import machine_lacks
from tests.chaos.faults.load import TOPIC, Load

pytestmark = [pytest.mark.processes, pytest.mark.faults]

SHARDS = 2


def power_loss(*builds):
    """One power loss of all nodes under load: total acknowledged, what of it was lost."""
    disks = LoopDisks(EquipmentClient(), 192)
    machine_lacks.refuse(disks.lacks())
    with World(3, SHARDS, network=Network(), equipment=[*builds, disks]) as world:
        world.create_topic(TOPIC, 1)
        with Load(world.endpoints, groups=2) as load:
            load.wait_progress()
            fault = create(PowerLossAll.kind)
            try:
                fault.inject(world, Random(1))
                load.stop()
            finally:
                fault.heal(world)
            world.wait_settled()
            return load.total, load.lost()


def test_the_shipped_build_loses_nothing_acknowledged() -> None:
    """Every offset that a client was told of is read afterwards."""
    total, lost = power_loss()
    assert total > 0
    assert not lost


def test_a_build_without_fsync_loses_acknowledged_commits() -> None:
    """The same schedule finds it: offsets are gone, or nodes have lost what makes them nodes."""
    try:
        total, lost = power_loss(BrokenBuild("no_fsync"))
    except ClusterError as error:
        assert "ended with code" in str(error)  # noqa: PT017
        assert "muster init" in str(error) or "damaged" in str(error)  # noqa: PT017
    else:
        assert total > 0
        assert lost
