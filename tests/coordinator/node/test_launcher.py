"""What a launcher says of a node that was signalled, with another program in its place."""

import signal
import subprocess

import pytest

from musterd.coordinator.node.launcher import Cluster


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
