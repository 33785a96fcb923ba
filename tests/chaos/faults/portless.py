"""A network of no ports, for clusters that are never started."""

from musterd.chaos.world.networks.network import Network


class Portless(Network):
    """Whatever is reserved is one address."""

    def reserve(self, port=0):
        return "127.0.0.1:1"
