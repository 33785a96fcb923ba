"""More clients than a node may have files open: it turns them away, and goes on."""

import contextlib
import socket
import time
from pathlib import Path

import pytest

from musterd.chaos.world.world import World
from musterd.coordinator.node.config import split_address
from musterd.coordinator.node.launcher import Equipment
from tests.chaos.faults.load import TOPIC, Load

pytestmark = pytest.mark.processes

FILES = 160
CONNECTIONS = 2 * FILES


MORE_FILES = 1_000
FLOOD = 2_000


class FewFiles(Equipment):
    """Nodes that may have few files open."""

    def __init__(self, files=FILES):
        self.files = files

    def command(self, node_id, argv):
        return [*argv[:2], str(Path(__file__).parent / "few_files.py"), str(self.files), *argv[2:]]


def test_a_flood_of_connections_does_not_end_a_node() -> None:
    """Its disk, its peers and the clients that it has go on; later it takes new ones again."""
    with World(1, 1, equipment=[FewFiles()]) as cluster:
        cluster.create_topic(TOPIC, 1)
        with Load(cluster.endpoints, groups=1) as load, contextlib.ExitStack() as flood:
            load.wait_progress()
            for _ in range(CONNECTIONS):
                flood.enter_context(
                    socket.create_connection(split_address(cluster.nodes[0].endpoint), 10.0)
                )
            end = time.monotonic() + 2.0  # the durable mark is renewed every 0.5 s
            while time.monotonic() < end:
                load.wait_progress()
            assert cluster.nodes[0].running, cluster.log_tail(0)
            flood.close()
            with Load(cluster.endpoints, groups=1) as another:
                another.wait_progress()


@pytest.mark.parametrize("hosts", [1, 6])
def test_hosts_with_2000_connections_keep_no_other_host_out(hosts) -> None:
    """A client of another host that comes while they stand commits; so does one that was there."""
    with World(1, 1, equipment=[FewFiles(MORE_FILES)]) as cluster:
        cluster.create_topic(TOPIC, 1)
        with Load(cluster.endpoints, groups=1) as load, contextlib.ExitStack() as flood:
            load.wait_progress()
            at = split_address(cluster.nodes[0].endpoint)
            for number in range(FLOOD):
                host = f"127.0.0.{2 + number % hosts}"
                one = socket.create_connection(at, 10.0, source_address=(host, 0))
                flood.enter_context(one)
            with Load(cluster.endpoints, groups=1) as another:
                another.wait_progress()
            load.wait_progress()
            assert cluster.nodes[0].running, cluster.log_tail(0)
