"""The proxy on a link: what is cut is held, what is slow is slow, a lost end is silent."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from musterd.chaos.world.networks.network import CUT, Shape
from musterd.chaos.world.networks.relay import Gate, Relays

LINK = ("client-0", "node-0")
WAIT_S = 10.0


class Stage:
    """An echo server, a relay in front of it, and one connection through that."""

    def __init__(self, there: Gate, back: Gate, relays: Relays, port: int) -> None:
        self.there, self.back, self.relays, self.port = there, back, relays, port
        self.received = bytearray()
        self.arrived = asyncio.Event()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection, known to work."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"hello")
        assert await asyncio.wait_for(reader.readexactly(5), WAIT_S) == b"hello"
        return reader, writer

    async def until_received(self, size: int) -> None:
        """Wait until the echo server has read so many bytes in all."""
        async with asyncio.timeout(WAIT_S):
            while len(self.received) < size:
                self.arrived.clear()
                await self.arrived.wait()


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    """Everything on free ports of loopback."""
    at = socket.socket()
    at.bind(("127.0.0.1", 0))
    made = Stage(Gate(Random(1)), Gate(Random(2)), Relays(), at.getsockname()[1])

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                made.received += data
                made.arrived.set()
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    await made.relays.listen(at, LINK, (host, port), (made.there, made.back))
    try:
        yield made
    finally:
        await made.relays.close()
        server.close()


async def _silent(reader: asyncio.StreamReader) -> bool:
    """Nothing comes for a fifth of a second."""
    try:
        await asyncio.wait_for(reader.read(1), 0.2)
    except TimeoutError:
        return True
    return False


def test_a_cut_there_holds_bytes_back_until_it_is_healed() -> None:
    """The server gets nothing; after heal it gets everything, in order."""

    async def run() -> None:
        async with stage() as on:
            reader, writer = await on.connect()
            on.there.set(CUT)
            writer.write(b"abc")
            assert await _silent(reader)
            assert on.received == b"hello"
            assert on.there.counts["held"] == 1
            on.there.set(Shape())
            assert await asyncio.wait_for(reader.readexactly(3), WAIT_S) == b"abc"
            writer.close()

    asyncio.run(run())


def test_a_cut_back_lets_the_server_hear_and_not_speak() -> None:
    """The server reads the request; its answer is held."""

    async def run() -> None:
        async with stage() as on:
            reader, writer = await on.connect()
            on.back.set(CUT)
            writer.write(b"abc")
            await on.until_received(8)
            assert await _silent(reader)
            on.back.set(Shape())
            assert await asyncio.wait_for(reader.readexactly(3), WAIT_S) == b"abc"
            writer.close()

    asyncio.run(run())


def test_a_connection_attempt_over_a_cut_link_reaches_the_server_after_heal_alone() -> None:
    """Either direction cut: no hand-shake could have got through."""

    async def run() -> None:
        async with stage() as on:
            for gate in (on.there, on.back):
                before = len(on.received)
                gate.set(CUT)
                reader, writer = await asyncio.open_connection("127.0.0.1", on.port)
                writer.write(b"x")
                assert await _silent(reader)
                assert len(on.received) == before
                gate.set(Shape())
                assert await asyncio.wait_for(reader.readexactly(1), WAIT_S) == b"x"
                writer.close()

    asyncio.run(run())


def test_an_end_that_comes_while_the_link_is_cut_is_not_told_either() -> None:
    """The client hangs up; the server's end stays open until heal."""

    async def run() -> None:
        async with stage() as on:
            _, writer = await on.connect()
            on.there.set(CUT)
            writer.close()
            await asyncio.sleep(0)
            assert len(on.relays.between(*LINK)) == 1
            on.there.set(Shape())
            async with asyncio.timeout(WAIT_S):
                while on.relays.between(*LINK):
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_delay_and_bandwidth_are_lower_bounds() -> None:
    """100 ms each way; then 100 KB at 200 KB/s."""

    async def run() -> None:
        async with stage() as on:
            reader, writer = await on.connect()
            loop = asyncio.get_running_loop()
            on.there.set(Shape(delay_ms=100.0))
            on.back.set(Shape(delay_ms=100.0))
            began = loop.time()
            writer.write(b"x")
            await asyncio.wait_for(reader.readexactly(1), WAIT_S)
            assert loop.time() - began >= 0.2
            on.there.set(Shape(bytes_per_s=200_000))
            on.back.set(Shape())
            began = loop.time()
            writer.write(bytes(100_000))
            await asyncio.wait_for(reader.readexactly(100_000), WAIT_S)
            assert loop.time() - began >= 0.4
            assert on.there.counts["delayed"] >= 2
            writer.close()

    asyncio.run(run())


def test_what_is_delayed_keeps_its_order() -> None:
    """Jitter must not let bytes overtake each other: it is one stream."""

    async def run() -> None:
        async with stage() as on:
            reader, writer = await on.connect()
            on.there.set(Shape(jitter_ms=20.0))
            sent = b"".join(number.to_bytes(2, "big") for number in range(200))
            for at in range(0, len(sent), 2):
                writer.write(sent[at : at + 2])
                await asyncio.sleep(0)
            assert await asyncio.wait_for(reader.readexactly(len(sent)), WAIT_S) == sent
            writer.close()

    asyncio.run(run())


def test_a_reset_reaches_both_ends() -> None:
    """The client reads an RST."""

    async def run() -> None:
        async with stage() as on:
            reader, writer = await on.connect()
            (found,) = on.relays.between(*reversed(LINK))
            found[0].reset()
            try:
                got = await asyncio.wait_for(reader.read(1), WAIT_S)
            except ConnectionResetError:
                got = b""
            assert got == b""
            writer.close()
            async with asyncio.timeout(WAIT_S):
                while on.relays.between(*LINK):
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_lost_end_is_silent_until_the_other_speaks() -> None:
    """The server's end vanishes; the client is told nothing, until it sends."""

    async def run() -> None:
        async with stage() as on:
            reader, writer = await on.connect()
            ((connection, dialler),) = on.relays.between(*LINK)
            assert dialler == LINK[0]
            assert connection.lose(near=False)
            assert await _silent(reader)
            writer.write(b"anybody?")
            try:
                got = await asyncio.wait_for(reader.read(1), WAIT_S)
            except ConnectionResetError:
                got = b""
            assert got == b""
            writer.close()

    asyncio.run(run())


def test_a_server_that_is_not_there_hangs_up_on_the_client() -> None:
    """Nobody listens behind the relay: the connection ends instead of hanging."""

    async def run() -> None:
        relays = Relays()
        at = socket.socket()
        at.bind(("127.0.0.1", 0))
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            nowhere = closed.getsockname()
        await relays.listen(at, LINK, nowhere, (Gate(Random(1)), Gate(Random(2))))
        reader, writer = await asyncio.open_connection(*at.getsockname())
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(1), WAIT_S) == b""
        writer.close()
        await relays.close()

    asyncio.run(run())
