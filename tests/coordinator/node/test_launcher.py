"""What a launcher says of a node that was signalled, with another program in its place."""

import signal
import socket
import subprocess

import pytest

from musterd.coordinator.node.launcher import Cluster
from musterd.coordinator.node.loopback import ClusterError, Loopback


@pytest.mark.parametrize("kill", [lambda c: c.signal(0, signal.SIGKILL), lambda c: c.kill(0)])
def test_a_node_that_was_killed_has_not_ended_by_itself(tmp_path, kill):
    """Whoever waits for something meanwhile is not told that the cluster broke."""
    cluster = Cluster(tmp_path, nodes=1)
    try:
        cluster.nodes[0].process = subprocess.Popen(["sleep", "60"])
        kill(cluster)
        assert not cluster.nodes[0].running
        assert list(cluster.ended()) == []
    finally:
        cluster.close()


def test_a_port_whose_closed_connections_linger_can_be_reserved():
    """A cluster starts right after another one on its ports."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as caller:
            server.accept()[0].close()  # first, so that this end is the one that lingers
            assert caller.recv(1) == b""
    network = Loopback()
    assert network.reserve(port) == f"127.0.0.1:{port}"
    network.close()
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ClusterError):
        Loopback().reserve(server.getsockname()[1])
