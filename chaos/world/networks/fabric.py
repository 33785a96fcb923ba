"""The process that holds the namespaces of a run and works on their links.

`python -m musterd.chaos.world.networks.fabric CONFIG`, one JSON object per line in and out.
It ends with its parent, however that ends; namespaces, bridge, devices and routes go with it and
with the last process inside. Config: `places` (name -> address), `shaped` (names), `control` (path
of a unix socket -> [address, port]), `seed`.
"""

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from musterd.chaos.child import Message, answer, config
from musterd.chaos.world.networks.namespaces import Namespaces
from musterd.chaos.world.networks.network import Shape, serve_links
from musterd.chaos.world.networks.packet_shaper import Link, Shaper
from musterd.chaos.world.networks.relay import Relays

CONTROL = "control"
"""The place of the conductor's own calls; no fault reaches it."""


class Fabric:
    """All links of one run."""

    def __init__(self, namespaces: Namespaces, shaper: Shaper) -> None:
        self._namespaces = namespaces
        self._shaper = shaper
        self._detours: set[Link] = set()

    def shape(self, source: str, target: str, shape: dict[str, Any]) -> Message:
        self._shaper.shape((source, target), Shape(**shape))
        if (source, target) not in self._detours:
            self._namespaces.detour(source, target)
            self._detours.add((source, target))
        return {}

    def heal(self, source: str, target: str) -> Message:
        if (source, target) in self._detours:
            self._namespaces.straight(source, target)
            self._detours.discard((source, target))
        self._shaper.clear((source, target))
        return {}

    def reset(self, source: str, target: str) -> Message:
        """End the connections between two places, at both ends."""
        ended = self._namespaces.destroy(source, target)
        return {"connections": max(ended, self._namespaces.destroy(target, source))}

    def half_open(self, source: str, target: str) -> Message:
        """End them at the source; the RST is lost on its way to the target."""
        cut = (source, target) not in self._detours
        if cut:
            self.shape(source, target, {"loss_percent": 100.0})
        try:
            return {"connections": self._namespaces.destroy(source, target)}
        finally:
            if cut:
                self.heal(source, target)

    def counts(self) -> Message:
        """What became of the packets of shaped links: [source, target, what, packets]."""
        return {"counts": [[*key, count] for key, count in sorted(self._shaper.counts.items())]}


async def _serve(given: Message, namespaces: Namespaces) -> None:
    held = {place: one for place, one in namespaces.places.items() if one.tun >= 0}
    shaper = Shaper(
        {place: one.tun for place, one in held.items()},
        {socket.inet_aton(one.address): place for place, one in held.items()},
        given["seed"],
    )
    relays = Relays()
    for path, (host, port) in given["control"].items():
        await relays.listen_unix(path, (host, port))
    answer(ready=True, handles={place: one.handle for place, one in namespaces.places.items()})
    await serve_links(Fabric(namespaces, shaper))
    shaper.close()
    await relays.close()


def main() -> None:
    """Build everything, then serve until the parent hangs up."""
    given = config()
    try:
        namespaces = Namespaces()
        for place, address in given["places"].items():
            namespaces.add(place, address, tun=place in given["shaped"])
        namespaces.settle(CONTROL)
    except Exception as error:  # noqa: BLE001  # whatever the machine refuses is the answer
        answer(error=f"no network namespaces: {error}")
        os._exit(1)
    try:
        asyncio.run(_serve(given, namespaces))
    finally:
        for path in given["control"]:
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
        namespaces.close()


if __name__ == "__main__":
    main()
