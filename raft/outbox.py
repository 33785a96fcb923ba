"""Messages on their way out: they wait for their epoch, then share frames by peer and lane.

By raft-2 a message leaves only when all hard data that was put before it is synced; a leader's
appends alone need not wait, but for the write.
"""

from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from musterd.raft import codec
from musterd.raft.codec import Message
from musterd.raft.contract import ShardId
from musterd.raft.settings import RaftSettings

Outgoing = tuple[int, ShardId, Message]
"""To which node, of which shard, what."""


class Link(Protocol):
    """The network as the driver sees it."""

    def send(self, node: int, frame: bytes, bulk: bool) -> bool:
        """Send one encoded frame; False where it was dropped, which is legal at any time."""
        ...

    def hang_up(self, node: int) -> None:
        """Close all connections to `node`: its store was replaced."""
        ...


@dataclass(slots=True)
class DriverStats:
    """Plain counters since the start; `coordinator/metrics/node.py` reads them."""

    turns: int = 0
    ticks: int = 0
    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    messages_in: int = 0
    messages_out: int = 0
    frames_dropped: int = 0
    held_dropped: int = 0
    strangers: int = 0
    """Frames of a store, or of a life of it, that is not the one known under its node id."""
    write_stalls: int = 0
    transfers: int = 0
    leaders_lost: int = 0
    """Control connections that broke."""


class _Held(NamedTuple):
    epoch: int
    """It leaves when this is synced."""
    outgoing: Outgoing


class Outbox:
    """The queues between a node's replicas and its link."""

    def __init__(
        self,
        link: Link,
        sender: Callable[[], codec.Sender],
        settings: RaftSettings,
        stats: DriverStats,
    ) -> None:
        """`sender()` is what a frame that leaves now says of this node."""
        self._link = link
        self._sender = sender
        self._settings = settings
        self._stats = stats
        self._free: list[Outgoing] = []
        self._bound: list[Outgoing] = []
        self._held: deque[_Held] = deque()

    def post(self, outgoing: Outgoing, hold: bool) -> None:
        """Queue a message; `hold`: until all that is pending now is synced."""
        (self._bound if hold else self._free).append(outgoing)

    @property
    def waiting(self) -> bool:
        """Whether something was posted since the last flush."""
        return bool(self._free or self._bound)

    def keep(self) -> None:
        """The database stalled: nothing leaves now. The oldest beyond the limit are dropped."""
        for queue in (self._free, self._bound):
            surplus = len(queue) - self._settings.held_messages
            if surplus > 0:
                del queue[:surplus]
                self._stats.held_dropped += surplus

    def flush(self, hard_epoch: int, synced_epoch: int, connected: Container[int]) -> None:
        """The turn is written: send what may leave, hold the rest for `hard_epoch`."""
        free, self._free = self._free, []
        bound, self._bound = self._bound, []
        if hard_epoch <= synced_epoch and not self._held:
            free.extend(bound)
        else:
            self._held.extend(_Held(hard_epoch, one) for one in bound)
            while len(self._held) > self._settings.held_messages:
                self._held.popleft()
                self._stats.held_dropped += 1
            self._release(synced_epoch, free)
        self._transmit(free, connected)

    def synced(self, synced_epoch: int, connected: Container[int]) -> None:
        """The disk has more: what waited for it leaves."""
        released: list[Outgoing] = []
        self._release(synced_epoch, released)
        self._transmit(released, connected)

    def _release(self, synced_epoch: int, into: list[Outgoing]) -> None:
        while self._held and self._held[0].epoch <= synced_epoch:
            into.append(self._held.popleft().outgoing)

    def _transmit(self, outgoing: list[Outgoing], connected: Container[int]) -> None:
        """All messages of one peer and lane in one frame, or a few if they are long."""
        frames: dict[tuple[int, bool], list[tuple[int, Message]]] = {}
        sizes: dict[tuple[int, bool], int] = {}
        for node, shard, message in outgoing:
            if node not in connected:
                continue
            size = codec.message_bytes(message)
            lane = (node, size > self._settings.control_bytes)
            frames.setdefault(lane, []).append((shard, message))
            sizes[lane] = sizes.get(lane, 0) + size
            if sizes[lane] >= self._settings.frame_bytes:
                self._transmit_one(lane, frames.pop(lane))
                sizes[lane] = 0
        for lane, messages in frames.items():
            self._transmit_one(lane, messages)

    def _transmit_one(self, lane: tuple[int, bool], messages: list[tuple[int, Message]]) -> None:
        node, bulk = lane
        frame = codec.encode_frame(self._sender(), messages)
        if not self._link.send(node, frame, bulk):
            self._stats.frames_dropped += 1
            return
        self._stats.frames_out += 1
        self._stats.messages_out += len(messages)
        self._stats.bytes_out += len(frame)
