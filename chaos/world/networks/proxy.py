"""The process that stands on every link where there are no namespaces.

`python -m musterd.chaos.world.networks.proxy CONFIG`, driven by a `ChildNetwork`. Config: `links`,
a list of [[host, port], dialler, listener, [host, port] of the listener]; `seed`.
"""

import asyncio
import socket
from collections.abc import Iterator
from random import Random
from typing import Any

from musterd.chaos.child import Message, answer, config
from musterd.chaos.world.networks.network import ALL, BULK_CUT, Shape, serve_links
from musterd.chaos.world.networks.relay import Gate, Relays
from musterd.coordinator.node.loopback import ClusterError


class Proxy:
    """All links of one run."""

    def __init__(self, relays: Relays, gates: dict[tuple[str, str], Gate]) -> None:
        """`gates`: by (source, target)."""
        self._relays = relays
        self._gates = gates

    def shape(self, source: str, target: str, shape: dict[str, Any]) -> Message:
        wanted = Shape(**shape)
        if 0 < wanted.loss_percent < ALL or wanted.duplicate_percent or wanted.reorder:
            raise ClusterError("a proxy passes a stream on: it cannot lose, double, reorder parts")
        if wanted.bulk_only and wanted != BULK_CUT:
            raise ClusterError("a proxy cuts bulk connections, and does nothing else to them alone")
        self._gates[source, target].set(wanted)
        return {}

    def heal(self, source: str, target: str) -> Message:
        """Let a direction pass everything at once; places that are not linked have nothing."""
        if (source, target) in self._gates:
            self._gates[source, target].set(Shape())
        return {}

    def reset(self, source: str, target: str) -> Message:
        """Reset the connections between two places, at both ends."""
        found = self._relays.between(source, target)
        for connection, _ in found:
            connection.reset()
        return {"connections": len(found)}

    def half_open(self, source: str, target: str) -> Message:
        """Reset them at the source alone."""
        found = self._relays.between(source, target)
        return {"connections": sum(one.lose(near=near == source) for one, near in found)}

    def counts(self) -> Message:
        """What became of chunks: [source, target, passed | delayed | held, how many]."""
        return {"counts": list(self._counted())}

    def _counted(self) -> Iterator[list[object]]:
        for (source, target), gate in sorted(self._gates.items()):
            for what, count in sorted(gate.counts.items()):
                yield [source, target, what, count]


async def _serve() -> None:
    given = config()
    rng = Random(given["seed"])
    relays = Relays()
    gates: dict[tuple[str, str], Gate] = {}
    for address, dialler, listener, target in given["links"]:
        there, back = Gate(rng), Gate(rng)
        gates[dialler, listener], gates[listener, dialler] = there, back
        at = socket.socket()
        at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # the conductor has reserved it
        at.bind(tuple(address))
        await relays.listen(at, (dialler, listener), tuple(target), (there, back))
    answer(ready=True)
    await serve_links(Proxy(relays, gates))
    await relays.close()


if __name__ == "__main__":
    asyncio.run(_serve())
