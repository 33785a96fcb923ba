"""The process that holds the namespaces of a run and works on their links.

`python -m musterd.chaos.world.networks.link_process CONFIG`, one JSON object per line in and out.
It ends with its parent, however that ends; namespaces, bridge, devices and routes go with it and
with the last process inside. Config: `places` (name -> address), `control` (path of a unix
socket -> [address, port]), `seed`.
"""

import asyncio
import contextlib
import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

from musterd.chaos.child import Message, answer, commands, config
from musterd.chaos.world.networks.namespaces import Namespaces
from musterd.chaos.world.networks.network import Shape
from musterd.chaos.world.networks.packet_shaper import Link, Shaper

CONTROL = "control"
"""The place of the runner's own calls; no fault reaches it."""
_CHUNK_BYTES = 1 << 16
_CONNECT_S_MAX = 5.0


class LinkProcess:
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
        """Return the packets of shaped links by outcome: [source, target, what, packets]."""
        return {"counts": [[*key, count] for key, count in sorted(self._shaper.counts.items())]}


async def _hand_on(
    host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """One of the runner's connections, handed on to a node until either hangs up."""
    try:
        async with asyncio.timeout(_CONNECT_S_MAX):
            far_reader, far_writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):  # the runner learns it from the end of its connection
        writer.close()
        return
    await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:  # one of the two broke off: the other learns it just below
        pass
    finally:
        writer.close()


async def _serve(given: Message, namespaces: Namespaces) -> None:
    places = namespaces.places
    shaper = Shaper(
        {place: one.tun for place, one in places.items()},
        {socket.inet_aton(one.address): place for place, one in places.items()},
        given["seed"],
    )
    links = LinkProcess(namespaces, shaper)
    for path, target in given["control"].items():
        await asyncio.start_unix_server(partial(_hand_on, *target), path)
    answer(ready=True, namespaces={place: namespaces.paths(place) for place in places})
    async for message in commands():
        verb = message.pop("verb")
        try:
            reply: Message = getattr(links, verb)(**message)
        except (OSError, LookupError) as error:
            answer(error=f"{verb} {message}: {error!r}")
        else:
            answer(**reply)


def main() -> None:
    """Build everything, then serve until the parent hangs up."""
    given = config()
    try:
        namespaces = Namespaces()
        for place, address in given["places"].items():
            namespaces.add(place, address)
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
