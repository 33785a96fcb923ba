"""Nodes that store what was never committed: the shipped build heals them, and nobody else."""

from random import Random

import pytest

from chaos.check import disks
from chaos.faults.catalog import kinds
from chaos.history import History
from chaos.mutants.installed import BrokenBuild
from chaos.run.states import states_of
from chaos.world.loopback import Loopback
from chaos.world.world import World
from tests.chaos.faults import apart
from tests.chaos.faults.load import TOPIC, Load

pytestmark = [pytest.mark.processes, pytest.mark.faults]

SHARDS = 4


def broken(kind, nodes, *builds):
    """What inv-I14 says of the fault, injected under load; else it has healed, and none is lost."""
    with World(nodes, SHARDS, network=Loopback(), equipment=builds) as world:
        world.create_topic(TOPIC, 1)
        with Load(world.endpoints) as load:
            load.wait_progress()
            made = kinds()[kind]()
            try:
                injected = made.inject(world, Random(1))
            finally:
                made.heal(world)
            states = states_of(kind, injected.facts, injected.facts["at_ns"] + 1)
            assert len(states) == len(injected.targets)
            verdict = disks.check_corrupt(History(node_states=states))
            if not builds:
                assert made.unreal() == ""
                world.wait_settled()
                load.wait_progress()
                load.stop()
                assert not load.lost()
            return [one.what for one in verdict.violations]


@pytest.mark.parametrize(("kind", "nodes"), apart.NODES.items())
def test_a_fault_is_real_and_heals(kind, nodes) -> None:
    """Who differs is outvoted and takes the others' state; no acknowledged offset is another."""
    assert broken(kind, nodes) == []


def test_a_build_to_which_two_are_a_majority_is_seen_to_believe_them() -> None:
    """Of five: nodes that are right are outvoted."""
    (first, *_) = broken("two_diverge", 5, BrokenBuild("two_suffice"))
    assert "believed" in first
