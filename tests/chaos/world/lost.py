"""A runner that starts a world, says what it made, and waits to be killed."""

import signal
from contextlib import closing
from pathlib import Path

from musterd.chaos.child import Child, answer
from musterd.chaos.world.networks.netns import Netns
from musterd.chaos.world.networks.replay_proxy import ReplayProxy
from musterd.chaos.world.world import World


def main() -> None:
    """Start everything there is, name the processes and namespaces, wait."""
    network = Netns()
    with (
        World(3, 2, network=network) as world,
        closing(ReplayProxy(world, 20.0, (0.0, 5_000.0))) as replaying,
    ):
        worker = Child("tests.chaos.world.prober", {"ports": False}, world.client_command)
        worker.ready()
        nodes = [node.pid for node in world.nodes.values()]
        pids = [network.process.pid, worker.pid, replaying.child.pid, *nodes]
        spaces = {str(Path(f"/proc/{pid}/ns/net").readlink()) for pid in pids}
        spaces -= {str(Path("/proc/self/ns/net").readlink())}
        answer(pids=pids, spaces=sorted(spaces), folders=[str(world.directory), network.folder])
        signal.pause()


if __name__ == "__main__":
    main()
