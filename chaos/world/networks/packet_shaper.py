"""Links that drop, delay, slow down, double or reorder what passes, packet by packet.

The kernels that this suite runs on have no netem. A shaped link's packets are routed into a tun
device of the sender, are read here, and are written into the receiver's tun device when their time
has come: to both ends it is the same connection, delayed. Other links never come through here.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from musterd.chaos.world.networks.lanes import Lanes
from musterd.chaos.world.networks.network import ALL, QUEUE_S_MAX, Shape

Link = tuple[str, str]
_PACKET_BYTES = 1 << 16
_READS_MAX = 64
"""Packets read in one go."""
_WAITING_MAX = 20_000
"""Packets that wait on one link; more are dropped."""
_TARGET = slice(16, 20)
"""Where an IPv4 packet has the address of its target."""
_IPV4 = 4


@dataclass(slots=True)
class _Line:
    shape: Shape
    free_at: float = 0.0
    """When what was sent before has left, at this bandwidth."""
    due: float = 0.0
    """When the last packet arrives."""
    waiting: int = 0


class Shaper:
    """Moves packets between tun devices, by the shape of their link."""

    def __init__(
        self, devices: Mapping[str, int], addresses: Mapping[bytes, str], seed: int
    ) -> None:
        """Read from now on. `devices`: place -> tun; `addresses`: 4 bytes -> place."""
        self._devices = dict(devices)
        self._addresses = dict(addresses)
        self._lines: dict[Link, _Line] = {}
        self._lanes = Lanes()
        self._rng = Random(seed)
        self._loop = asyncio.get_running_loop()
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """(source, target, passed | delayed | dropped | doubled) -> packets."""
        for place, device in self._devices.items():
            self._loop.add_reader(device, self._readable, place, device)

    def shape(self, link: Link, shape: Shape) -> None:
        """Treat a link so from now on; what waits keeps its time."""
        line = self._lines.get(link)
        if line is None:
            self._lines[link] = _Line(shape)
        else:
            line.shape, line.free_at = shape, 0.0

    def clear(self, link: Link) -> None:
        """Pass what still comes this way at once: the way back to the bridge is open."""
        self._lines.pop(link, None)

    def _readable(self, source: str, device: int) -> None:
        for _ in range(_READS_MAX):
            try:
                packet = os.read(device, _PACKET_BYTES)
            except BlockingIOError:
                return
            if packet[0] >> 4 != _IPV4:
                continue  # the device's own IPv6 announcements
            target = self._addresses.get(packet[_TARGET])
            if target is not None:
                self._take((source, target), packet)

    def _take(self, link: Link, packet: bytes) -> None:
        line = self._lines.get(link)
        if line is None:
            self._pass(link, packet)
            return
        shape, now = line.shape, self._loop.time()
        if shape.bulk_only and not self._lanes.is_bulk(packet):
            self._pass(link, packet)
            return
        if self._happens(shape.loss_percent) or line.waiting >= _WAITING_MAX:
            self.counts[*link, "dropped"] += 1
            return
        sent = now
        if shape.bytes_per_s:
            sent = max(now, line.free_at) + len(packet) / shape.bytes_per_s
            if sent - now > QUEUE_S_MAX:
                self.counts[*link, "dropped"] += 1
                return
            line.free_at = sent
        due = sent + (shape.delay_ms + self._rng.uniform(0.0, shape.jitter_ms)) / 1_000
        if not shape.reorder:
            due = line.due = max(due, line.due)
        if due > now:
            self.counts[*link, "delayed"] += 1
        self._later(line, link, packet, due)
        if self._happens(shape.duplicate_percent):
            self.counts[*link, "doubled"] += 1
            self._later(line, link, packet, due)

    def _happens(self, percent: float) -> bool:
        return percent > 0 and (percent >= ALL or self._rng.random() * ALL < percent)

    def _later(self, line: _Line, link: Link, packet: bytes, due: float) -> None:
        line.waiting += 1
        self._loop.call_at(due, self._arrive, line, link, packet)

    def _arrive(self, line: _Line, link: Link, packet: bytes) -> None:
        line.waiting -= 1
        self._pass(link, packet)

    def _pass(self, link: Link, packet: bytes) -> None:
        try:
            os.write(self._devices[link[1]], packet)
        except BlockingIOError:
            self.counts[*link, "dropped"] += 1  # its queue is full, as a real one may be
            return
        self.counts[*link, "passed"] += 1
