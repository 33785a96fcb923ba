"""Real file systems that fill up on a majority: nobody ends, nothing acknowledged is lost."""

import contextlib
import time
from itertools import count

import grpc
import pytest

from muster.v1 import errors_pb2, group_pb2, group_pb2_grpc
from musterd.chaos.world.equipment.client import EquipmentClient
from musterd.chaos.world.equipment.disk import LoopDisks
from musterd.chaos.world.networks.network import Network
from musterd.chaos.world.world import World
from musterd.raft.contract import Room
from tests import machine_lacks
from tests.chaos.faults.load import TOPIC, Load

pytestmark = [pytest.mark.processes, pytest.mark.faults]

DISK_MB = 128
MAJORITY = (0, 1)
WAIT_S = 60.0
POLL_S = 0.05


@pytest.fixture(scope="module")
def world():
    """Three nodes with a small disk each."""
    disks = LoopDisks(EquipmentClient(), DISK_MB)
    machine_lacks.refuse(disks.lacks())
    with World(3, 4, network=Network(), equipment=[disks]) as made:
        made.create_topic(TOPIC, 10_000)
        yield made


NEW = count(1)
"""Partitions without an offset."""


def answers(world):
    """What the nodes say to a commit of a new offset: codes of the call, or of its partition."""
    found, partition = set(), next(NEW)
    for endpoint in world.endpoints:
        with grpc.insecure_channel(endpoint) as channel, contextlib.suppress(grpc.RpcError):
            stub = group_pb2_grpc.GroupCoordinatorStub(channel)
            request = group_pb2.OffsetCommitRequest(group_id="g0", generation=-1)
            request.partitions.add(topic=TOPIC, partition=partition, offset=1)
            answer = stub.OffsetCommit(request, timeout=2.0)
            found |= {answer.status.code, *(one.status.code for one in answer.partitions)}
    return found - {errors_pb2.NOT_COORDINATOR, errors_pb2.COORDINATOR_LOAD_IN_PROGRESS}


def until(holds):
    """Wait for it."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(POLL_S)


def room(world, node_id):
    """What a node says of its disk."""
    lines = world.metrics(node_id, 20.0).splitlines()
    return next(int(float(x.split()[1])) for x in lines if x.startswith("muster_disk_room "))


REFUSED = {errors_pb2.KAFKA_STORAGE_ERROR}
LOW, FULL, BRIM = 0.6, 0.2, 0.0


@pytest.mark.parametrize("share", [LOW, FULL, BRIM], ids=["low", "full", "brim"])
def test_disks_of_a_majority_fill_up_and_it_all_comes_back(world, share):
    """`share` of the reserve is left. Low: growth is refused, offsets that are there commit.

    Full: nothing is taken, with the same error. To the brim: not even a vote can be written, so
    where there is no leader there is none until there is room. No node ends, nothing is lost.
    """
    disks = world.equipped(LoopDisks)
    with Load(world.endpoints) as load:
        load.wait_progress()
        try:
            for node_id in MAJORITY:
                disks.fill(node_id, int(disks.reserve * share))
            wanted = Room.LOW if share == LOW else Room.NONE
            until(lambda: all(room(world, node_id) == wanted for node_id in MAJORITY))
            if share != BRIM:
                until(lambda: answers(world) == REFUSED)
            if share == LOW:
                load.wait_progress()
                assert answers(world) == REFUSED
            assert world.running() == [0, 1, 2]
        finally:
            for node_id in MAJORITY:
                disks.free(node_id)
        load.wait_progress(WAIT_S)
        until(lambda: errors_pb2.NONE in answers(world))
        assert world.running() == [0, 1, 2]
        load.stop()
        assert not load.lost()
    world.wait_settled()
