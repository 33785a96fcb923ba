"""Syncs of the leader hang: the shipped build leaves its shards, one that stays is seen to."""

import re
import time
from random import Random

import pytest

from musterd.chaos.faults.contract import create, reason_missing
from musterd.chaos.faults.disk import LeaderFsyncHangs
from musterd.chaos.mutants.installed import BrokenBuild
from musterd.chaos.world.equipment.all_equipment import all_equipment
from musterd.chaos.world.networks.network import Network
from musterd.chaos.world.world import World
from tests import machine_lacks
from tests.chaos.faults.load import TOPIC, Load

pytestmark = [pytest.mark.processes, pytest.mark.faults]

SHARDS = 4
HUNG_S = 8.0
"""By then it was left, handed over or not."""
SEEN_S = 40.0
UNSYNCED = re.compile(r"^muster_wal_unsynced_seconds (\S+)$", re.MULTILINE)


def still_led(*builds):
    """The shards that a node leads after its syncs have hung for `HUNG_S`, by its own account."""
    with World(3, SHARDS, network=Network(), equipment=[*builds, *all_equipment(192)]) as world:
        machine_lacks.refuse(reason_missing(LeaderFsyncHangs, world))
        world.create_topic(TOPIC, 1)
        with Load(world.endpoints) as load:
            load.wait_progress()
            fault = create(LeaderFsyncHangs.kind)
            try:
                injected = fault.inject(world, Random(1))
                deadline = time.monotonic() + SEEN_S
                while float(UNSYNCED.search(world.metrics(injected.facts["node"]))[1]) < HUNG_S:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            finally:
                fault.heal(world)
            assert fault.unreal == ""
            world.wait_settled()
            load.wait_progress()
            load.stop()
            assert not load.lost()
            return injected.facts["leads"]


def test_the_shipped_build_leaves_its_shards() -> None:
    """Nothing that was acknowledged is lost."""
    assert still_led() == []


def test_a_build_that_stays_is_seen_to_lead() -> None:
    """The same fault finds it."""
    assert still_led(BrokenBuild("hung_leader")) != []
