"""The simulated network: two streams per node pair (control, bulk), each with its own mood.

`fifo`: a stream keeps its order and a reconnect drops what was on its way. `late`: after a
reconnect most of the old connection's frames still arrive. `udp`: frames get lost, repeated,
reordered and up to five seconds late. Frames are the bytes that the shipped driver sends.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Schedule = Callable[..., None]
"""(delay in seconds, function, *arguments)"""

Damage = Callable[[bytes], bytes]

REFUSED_S = 0.1
"""After so long a node calls again that was not let in."""

CLIENTS = -1
"""All clients, as the end of a link that is blocked."""


class Endpoint(Protocol):
    """A node as the network sees it."""

    @property
    def alive(self) -> bool: ...
    def receive(self, src: int, frame: bytes) -> None: ...
    def greets(self, peer: Any) -> bool:
        """Whether it takes the hello of `peer`, which is of its own kind."""

    def connected(self, peer: int) -> None: ...
    def disconnected(self, peer: int) -> None: ...


@dataclass(slots=True)
class _Stream:
    stalled_until: float = 0.0
    last_arrival: float = 0.0


@dataclass(slots=True)
class _Pair:
    up: bool = False
    epoch: int = 0
    bulk_epoch: int = 0
    refused: bool = False
    """One did not take the other's hello, and is called again soon."""


@dataclass(slots=True)
class Network:
    """Carries frames between `nodes`; `clock` gives virtual seconds."""

    kind: str
    rng: random.Random
    clock: Callable[[], float]
    schedule: Schedule
    nodes: Sequence[Endpoint]
    counts: Counter[str]
    """What it did to frames: loss, duplication, reordering, delay, cut, stale."""
    latency_s: float = 0.004
    """Mean of most deliveries."""
    _pairs: dict[tuple[int, int], _Pair] = field(default_factory=dict)
    _streams: dict[tuple[int, int, bool], _Stream] = field(default_factory=dict)
    _blocked_until: dict[tuple[int, int], float] = field(default_factory=dict)
    _bulk_dead_until: dict[tuple[int, int], float] = field(default_factory=dict)
    _garbage: dict[tuple[int, int], tuple[str, Damage]] = field(default_factory=dict)
    """What becomes of the next frame, by sender and receiver, and the fault's name."""
    _sent_garbage: dict[bytes, str] = field(default_factory=dict)

    def is_up(self, a: int, b: int) -> bool:
        return self._pair(a, b).up

    def connect(self, a: int, b: int) -> None:
        """Open both connections of a pair of living nodes that accept each other's hello."""
        pair = self._pair(a, b)
        one, other = self.nodes[a], self.nodes[b]
        if pair.up or not (one.alive and other.alive):
            return
        # The node that was called judges first, and what it answers carries its own replacements.
        if not (other.greets(one) and one.greets(other)):
            if not pair.refused:
                pair.refused = True
                self.schedule(REFUSED_S, self._call_again, a, b)
            return
        pair.up = True
        pair.epoch += 1
        if self.kind != "late":
            for x, y in ((a, b), (b, a)):
                for bulk in (False, True):
                    self._streams.pop((x, y, bulk), None)
        for x, y in ((a, b), (b, a)):
            if self.nodes[x].alive:
                self.nodes[x].connected(y)

    def _call_again(self, a: int, b: int) -> None:
        self._pair(a, b).refused = False
        self.connect(a, b)

    def disconnect(self, a: int, b: int) -> None:
        pair = self._pair(a, b)
        if not pair.up:
            return
        pair.up = False
        for x, y in ((a, b), (b, a)):
            if self.nodes[x].alive:
                self.nodes[x].disconnected(y)

    def reconnect_bulk(self, a: int, b: int) -> None:
        self._pair(a, b).bulk_epoch += 1
        if self.kind != "late":
            for x, y in ((a, b), (b, a)):
                self._streams.pop((x, y, True), None)

    def stall(self, src: int, dst: int, seconds: float) -> None:
        """Hold what `src` sends to `dst`; it arrives afterwards, in order."""
        for bulk in (False, True):
            self._stream(src, dst, bulk).stalled_until = self.clock() + seconds

    def block(self, src: int, dst: int, seconds: float) -> None:
        """Lose what arrives at `dst` from `src`, without either noticing."""
        until = self.clock() + seconds
        self._blocked_until[src, dst] = max(until, self._blocked_until.get((src, dst), 0.0))

    def kill_bulk(self, a: int, b: int, seconds: float) -> None:
        """Lose what arrives on a pair's bulk connection, which stays up; control goes on."""
        for link in ((a, b), (b, a)):
            self._bulk_dead_until[link] = self.clock() + seconds

    def garble(self, src: int, dst: int, fault: str, damage: Damage) -> None:
        """Let the next frame from `src` to `dst` be what `damage` makes of it: no frame."""
        self._garbage[src, dst] = fault, damage

    def damaged_by(self, frame: bytes) -> str | None:
        """The fault that made this, where `garble` was called for it; None for a sound frame."""
        return self._sent_garbage.get(frame)

    def is_blocked(self, src: int, dst: int) -> bool:
        """Whether what arrives now at `dst` from `src` is lost."""
        return self.clock() < self._blocked_until.get((src, dst), 0.0)

    def heal(self) -> None:
        """End every stall and block; from now on the network is fifo."""
        was, self.kind = self.kind, "fifo"
        self._blocked_until.clear()
        self._bulk_dead_until.clear()
        self._garbage.clear()
        for stream in self._streams.values():
            stream.stalled_until = 0.0
            if was == "udp":  # what is on its way need not come before what is sent now
                stream.last_arrival = 0.0

    def send(self, src: int, dst: int, frame: bytes, *, bulk: bool) -> None:
        """Accept a frame; what becomes of it depends on the network's kind."""
        if not self.is_up(src, dst):
            return
        if self._garbage and (found := self._garbage.pop((src, dst), None)) is not None:
            fault, damage = found
            frame = damage(frame)
            self._sent_garbage[frame] = fault
        if self.kind == "udp":
            self._send_udp(src, dst, frame, bulk=bulk)
            return
        stream = self._stream(src, dst, bulk)
        now = self.clock()
        latency = 0.001 + self.rng.expovariate(1 / (self.latency_s - 0.001))
        at = max(now + latency, stream.last_arrival + 1e-6, stream.stalled_until)
        stream.last_arrival = at
        self.schedule(at - now, self._arrive, src, dst, self._epoch(src, dst, bulk), bulk, frame)

    def _send_udp(self, src: int, dst: int, frame: bytes, *, bulk: bool) -> None:
        rng = self.rng
        if rng.random() < 0.05:
            self.counts["loss"] += 1
            return
        copies = 2 if rng.random() < 0.10 else 1
        self.counts["duplication"] += copies - 1
        stream = self._stream(src, dst, bulk=False)
        for _ in range(copies):
            luck = rng.random()
            if luck < 0.92:
                delay = rng.expovariate(1 / self.latency_s)
            else:
                delay = rng.random() * (0.6 if luck < 0.985 else 5.0)
                self.counts["delay"] += 1
            arrival = self.clock() + delay
            self.counts["reordering"] += arrival < stream.last_arrival
            stream.last_arrival = max(arrival, stream.last_arrival)
            self.schedule(delay, self._arrive, src, dst, None, bulk, frame)

    def _epoch(self, src: int, dst: int, bulk: bool) -> tuple[int, int]:
        pair = self._pair(src, dst)
        return pair.epoch, pair.bulk_epoch if bulk else 0

    def _arrive(
        self, src: int, dst: int, epoch: tuple[int, int] | None, bulk: bool, frame: bytes
    ) -> None:
        if self.is_blocked(src, dst):
            self.counts["cut"] += 1
            return
        if bulk and self.clock() < self._bulk_dead_until.get((src, dst), 0.0):
            self.counts["dead_bulk"] += 1
            return
        pair = self._pair(src, dst)
        is_old = epoch is not None and epoch != self._epoch(src, dst, bulk)
        if is_old and (self.kind != "late" or self.rng.random() < 0.4):
            self.counts["loss"] += 1
            return
        if is_old:
            self.counts["stale"] += 1
        if not pair.up or not self.nodes[dst].alive:
            return
        self.nodes[dst].receive(src, frame)

    def _pair(self, a: int, b: int) -> _Pair:
        return self._pairs.setdefault((min(a, b), max(a, b)), _Pair())

    def _stream(self, src: int, dst: int, bulk: bool) -> _Stream:
        return self._streams.setdefault((src, dst, bulk), _Stream())
