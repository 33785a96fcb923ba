"""Nodes that store what was never committed: the shipped build heals them, and nobody else."""

from random import Random

import pytest

from musterd.chaos.check import disks
from musterd.chaos.faults.catalog import kinds
from musterd.chaos.history import History
from musterd.chaos.run.states import states_of
from musterd.chaos.world.networks.network import Network
from musterd.chaos.world.world import World
from tests.chaos.faults import apart
from tests.chaos.faults.load import TOPIC, Load

pytestmark = [pytest.mark.processes, pytest.mark.faults]

SHARDS = 4


@pytest.mark.parametrize(("kind", "nodes"), apart.NODES.items())
def test_a_fault_is_real_and_heals(kind, nodes) -> None:
    """Who differs is outvoted and takes the others' state; no acknowledged offset is another."""
    with World(nodes, SHARDS, network=Network()) as world:
        world.create_topic(TOPIC, 1)
        with Load(world.endpoints) as load:
            load.wait_progress()
            made = kinds()[kind]()
            try:
                injected = made.inject(world, Random(1))
            finally:
                made.heal(world)
                made.heal(world)
            assert made.unreal == ""
            states = states_of(kind, injected.facts, injected.facts["at_ns"] + 1)
            assert [f"node-{one.node}" for one in states] == list(injected.targets)
            assert disks.check_corrupt(History(node_states=states)).violations == ()
            world.wait_settled()
            load.wait_progress()
            load.stop()
            assert not load.lost()
