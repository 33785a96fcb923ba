"""What probes and a rolling restart ask of real nodes, beside the metrics page."""

import time
from http import HTTPStatus
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from musterd.coordinator.node.launcher import Cluster

WAIT_S = 30


def ask(node, path):
    """Status and body."""
    try:
        with urlopen(f"http://{node.metrics_endpoint}/{path}", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def until(node, path, status):
    """Ask until the status is this one; the body."""
    end_s = time.monotonic() + WAIT_S
    while (said := ask(node, path))[0] != status:
        assert time.monotonic() < end_s, said
    return said[1]


@pytest.mark.processes
def test_a_node_may_be_restarted_while_the_others_go_on_and_lives_without_a_majority(tmp_path):
    """Of three, one is stopped: no other may be. Then another: it is not ready, and live."""
    with Cluster(tmp_path, nodes=3, shards=4) as cluster:
        cluster.wait_ready()
        nodes = cluster.nodes
        for node in nodes.values():
            until(node, "safe-to-restart", HTTPStatus.OK)
            assert ask(node, "live") == ask(node, "ready") == (HTTPStatus.OK, "yes\n")
        cluster.stop(2)
        for number in (0, 1):
            said = until(nodes[number], "safe-to-restart", HTTPStatus.SERVICE_UNAVAILABLE)
            assert said.startswith("no: shard 0-3: 1 of 3 nodes")
        cluster.stop(1)
        assert until(nodes[0], "ready", HTTPStatus.SERVICE_UNAVAILABLE) == "no: not ready\n"
        assert ask(nodes[0], "live") == (HTTPStatus.OK, "yes\n")
