"""Byte streams handed on, each direction by its own gate: open, shut, slow.

Used twice: as the conductor's own way into the namespaces (a unix socket for each node), and, where
there are no namespaces, as the proxy on every link.
"""

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import Callable
from random import Random

from musterd.chaos.world.networks.lanes import Handshake
from musterd.chaos.world.networks.network import ALL, Shape

_CHUNK_BYTES = 1 << 16
_QUEUE_CHUNKS_MAX = 64
"""What waits in one direction of one connection; beyond it the sender is not read."""
CONNECTIONS_MAX = 4_000
_LINGER_RST = struct.pack("ii", 1, 0)
_CONNECT_S_MAX = 5.0


class Gate:
    """One direction of a link, for all its connections."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.shape = Shape()
        self._opened = asyncio.Event()
        self._opened.set()
        self._bulk_opened = asyncio.Event()
        self._bulk_opened.set()
        self._free_at = 0.0
        self.counts: Counter[str] = Counter()
        """passed | delayed | held -> chunks."""

    def set(self, shape: Shape) -> None:
        """Treat bytes so. A cut holds them back: TCP would send them again until they arrive."""
        self.shape = shape
        self._free_at = 0.0
        shut = shape.loss_percent >= ALL
        for opened, is_shut in (
            (self._opened, shut and not shape.bulk_only),
            (self._bulk_opened, shut),
        ):
            if is_shut:
                opened.clear()
            else:
                opened.set()

    def delay_s(self) -> float:
        """What a chunk that arrives now has to wait."""
        return (self.shape.delay_ms + self._rng.uniform(0.0, self.shape.jitter_ms)) / 1_000

    async def admit(self, size: int, *, bulk: bool) -> None:
        """Wait until the gate is open and the bandwidth has room for `size` bytes.

        `bulk`: they are on a bulk connection.
        """
        opened = self._bulk_opened if bulk else self._opened
        if not opened.is_set():
            self.counts["held"] += 1
            await opened.wait()
        self.counts["passed"] += 1
        if self.shape.bytes_per_s:
            now = asyncio.get_running_loop().time()
            self._free_at = max(now, self._free_at) + size / self.shape.bytes_per_s
            self.counts["delayed"] += 1
            await asyncio.sleep(self._free_at - now)
            await opened.wait()

    async def opened(self) -> None:
        await self._opened.wait()


_Queue = asyncio.Queue[tuple[float, bytes]]
"""Chunks with the time at which they are due; b"" is the end."""
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Connection:
    """One connection that is handed on: the dialler's end and the listener's."""

    def __init__(self, near: Ends, forward: Gate, backward: Gate) -> None:
        """`near`: the dialler's end. `forward`: from dialler to listener."""
        self._near = near
        self._far: Ends | None = None
        self._forward, self._backward = forward, backward
        self._tasks: list[asyncio.Task[None]] = []
        self._handshake = Handshake()
        self._dark: Ends | None = None
        """The end that does not know yet that the other one is gone."""

    async def run(self, dial: Callable[[], "asyncio.Future[Ends]"]) -> None:
        """Dial the listener and hand on until both have ended."""
        try:
            await self._forward.opened()  # a SYN gets through, and its answer
            await self._backward.opened()
            async with asyncio.timeout(_CONNECT_S_MAX):
                self._far = await dial()
            self._tasks = [
                asyncio.ensure_future(
                    _hand_on(
                        self._near[0],
                        self._far[1],
                        self._forward,
                        self._handshake,
                        self._handshake.said,
                    )
                ),
                asyncio.ensure_future(
                    _hand_on(self._far[0], self._near[1], self._backward, self._handshake)
                ),
            ]
            await asyncio.gather(*self._tasks)
        except (OSError, TimeoutError):
            pass  # refused or broken: the other end learns it just below
        except asyncio.CancelledError:
            if self._dark is None:
                raise
            await self._dark[0].read(1)  # who speaks to a host that forgot him gets an RST
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.reset()

    def reset(self) -> None:
        """An RST to both ends. After an orderly end it changes nothing any more."""
        _reset(self._near[1])
        if self._far is not None:
            _reset(self._far[1])

    def lose(self, *, near: bool) -> bool:
        """Reset one end and leave the other in the dark; False where there is only one end yet."""
        if self._far is None:
            return False
        gone, self._dark = (self._near, self._far) if near else (self._far, self._near)
        for task in self._tasks:
            task.cancel()
        _reset(gone[1])
        return True


class Relays:
    """Listeners, and the connections that came through them."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._open: dict[Connection, tuple[str, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen_unix(self, path: str, target: tuple[str, int]) -> None:
        """Hand on what connects to a unix socket; its gates are always open."""
        gate = Gate(Random())
        accept = self._acceptor(("control", path), target, gate, gate)
        self._servers.append(await asyncio.start_unix_server(accept, path))

    async def listen(
        self,
        at: socket.socket,
        link: tuple[str, str],
        to: tuple[str, int],
        gates: tuple[Gate, Gate],
    ) -> None:
        """Hand on what connects to a bound socket, by gates (there, back)."""
        accept = self._acceptor(link, to, *gates)
        self._servers.append(await asyncio.start_server(accept, sock=at))

    def between(self, one: str, other: str) -> list[tuple[Connection, str]]:
        """Every connection between two places, each with the place that dialled."""
        ends = {(one, other), (other, one)}
        return [(kept, link[0]) for kept, link in self._open.items() if link in ends]

    async def close(self) -> None:
        """Stop listening, reset what is open."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _acceptor(
        self, link: tuple[str, str], target: tuple[str, int], forward: Gate, backward: Gate
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def dial() -> "asyncio.Future[Ends]":
            return asyncio.ensure_future(asyncio.open_connection(*target))

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(self._open) >= CONNECTIONS_MAX:
                _reset(writer)
                return
            made = Connection((reader, writer), forward, backward)
            self._open[made] = link
            task = asyncio.get_running_loop().create_task(made.run(dial))
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._ended(done, made))

        return accept

    def _ended(self, task: "asyncio.Task[None]", made: Connection) -> None:
        self._tasks.discard(task)
        self._open.pop(made, None)
        if not task.cancelled():
            task.result()  # what nobody expected is heard of


async def _hand_on(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    gate: Gate,
    handshake: Handshake,
    passed: Callable[[bytes], None] | None = None,
) -> None:
    """One direction of one connection, until its end has been handed on.

    `passed` is told of what was.
    """
    queue = _Queue(_QUEUE_CHUNKS_MAX)
    feeding = asyncio.ensure_future(_feed(reader, queue, gate))
    try:
        await _drain(queue, writer, gate, handshake, passed)
        await feeding
    finally:
        feeding.cancel()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await feeding


async def _feed(reader: asyncio.StreamReader, queue: _Queue, gate: Gate) -> None:
    loop = asyncio.get_running_loop()
    due = 0.0
    data = b"-"
    while data:
        try:
            data = await reader.read(_CHUNK_BYTES)
        except OSError:
            data = b""  # an RST ends the stream as an orderly end does; both ends are reset then
        due = max(due, loop.time() + gate.delay_s())
        await queue.put((due, data))


async def _drain(
    queue: _Queue,
    writer: asyncio.StreamWriter,
    gate: Gate,
    handshake: Handshake,
    passed: Callable[[bytes], None] | None,
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due, data = await queue.get()
        if (wait := due - loop.time()) > 0:
            gate.counts["delayed"] += 1
            await asyncio.sleep(wait)
        await gate.admit(len(data), bulk=handshake.bulk)
        if not data:
            if writer.can_write_eof():
                writer.write_eof()
            return
        writer.write(data)
        if passed is not None:
            passed(data)
        await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):  # it is closed already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RST)
    writer.transport.abort()
