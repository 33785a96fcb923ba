"""Which network a world gets: namespaces where the machine allows them, else proxies."""

from dataclasses import dataclass
from enum import StrEnum

from musterd.chaos.world.networks.netns import Netns
from musterd.chaos.world.networks.network import Network
from musterd.chaos.world.networks.proxied import Proxied
from musterd.coordinator.node.loopback import ClusterError


class Wanted(StrEnum):
    """What the user asks for."""

    AUTO = "auto"
    NETNS = "netns"
    PROXY = "proxy"
    LOOPBACK = "loopback"


@dataclass(frozen=True, slots=True)
class Choice:
    """A network that is not open yet, and why it is that one, for people."""

    network: Network
    reason: str


def choose_network(wanted: Wanted = Wanted.AUTO, seed: int = 0, client_hosts: int = 2) -> Choice:
    """The wanted network; by default the best that this machine can have.

    Raises ClusterError where the wanted one cannot be had.
    """
    if wanted is Wanted.LOOPBACK:
        return Choice(Network(), "plain loopback, as asked for: links cannot be broken")
    if wanted is Wanted.PROXY:
        return Choice(Proxied(seed), "a proxy on every link, as asked for")
    network = Netns(client_hosts, seed)
    reason = network.lacks() or _tried(network)
    if not reason:
        return Choice(network, "network namespaces")
    if wanted is Wanted.NETNS:
        raise ClusterError(reason)
    return Choice(Proxied(seed), f"a proxy on every link, because {reason}")


def _tried(network: Netns) -> str:
    """Build the smallest one and remove it: what the machine refuses is not known before."""
    try:
        network.open(1)
    except ClusterError as error:
        return str(error)
    finally:
        network.close()
    return ""
