"""One real cluster of three nodes for all cases: each leaves it as it found it."""

import pytest

from musterd.coordinator.node.launcher import Cluster
from tests.bad_input.crowds import GROUP_BYTES_MAX
from tests.bad_input.world import SHARDS, World


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Three `muster serve` processes and a topic."""
    folder = tmp_path_factory.mktemp("bad-input")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTERD_STATE_GROUP_MAX_BYTES", str(GROUP_BYTES_MAX))
        yield from _running(folder)


def _running(folder):
    with Cluster(folder / "cluster", nodes=3, shards=SHARDS) as cluster:
        cluster.wait_ready()
        made = World(cluster, folder)
        try:
            made.create_topic()
            made.commit_succeeds()
            yield made
        finally:
            made.close()
