"""Networks and worlds for tests. What needs root is skipped where there is none."""

import pytest

from musterd.chaos.world.networks.choice import Wanted, choose_network
from musterd.chaos.world.networks.netns import Netns
from musterd.coordinator.node.loopback import ClusterError


def _needs_namespaces() -> Netns:
    try:
        network = choose_network(Wanted.NETNS, seed=7).network
    except ClusterError as error:
        pytest.skip(str(error))
    assert isinstance(network, Netns)
    return network


@pytest.fixture(scope="session")
def netns_works() -> None:
    """Skips where this machine has no network namespaces for us."""
    _needs_namespaces()
