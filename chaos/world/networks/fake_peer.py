"""A process that passes for a node of a cluster: it says that node's hello, then garbage.

`python -m musterd.chaos.world.networks.fake_peer {}`, one JSON object per line in and out.
Verbs: `learn` (host, port): be told by a node what it tells strangers; `steal` (database): find the
rest of its hello in its store, once it is down; `garble` (host, port, lane, kind): say that to
another node, wait until that has agreed, send what is no frame, wait for its end.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from muster.v1 import peer_pb2 as pb
from musterd.chaos.child import Message, answer, commands
from musterd.raft import codec
from musterd.raft.codec import FRAME_BYTES_MAX, CodecError
from musterd.raft.identity import load_identity
from musterd.raft.lives import RUN_ID_BYTES
from musterd.raft.peer_connection import HEAD_BYTES, MAGIC, framed, head, size_of
from musterd.storage import keys
from musterd.storage.life import Life
from musterd.storage.secondary import Secondary
from musterd.storage.store import Family

STEP_S_MAX = 5.0
_STRANGER = 1_000
"""No node of any cluster: whoever is asked by it says who it is, and refuses."""
GARBAGE = {
    # No protobuf begins with this byte: a field of wire type 7.
    "noise": lambda: framed(b"\xff" + os.urandom(64)),
    "long noise": lambda: _summed(b"\xff" + os.urandom(64 * 1024)),
    "too long": lambda: head(FRAME_BYTES_MAX + 1),
}
"""By kind, what is sent where a frame is expected."""


def _summed(data: bytes) -> bytes:
    return framed(codec.checksum(data) + data)


class FakePeer:
    """Gets together the hello of one node and says it to another."""

    def __init__(self) -> None:
        self._hello = pb.Hello()

    async def learn(self, host: str, port: int) -> Message:
        """Ask a node who it is; `node`: what it says."""
        reader, writer = await asyncio.open_connection(host, port)
        try:
            asked = pb.Hello(node_id=_STRANGER, lane=pb.LANE_CONTROL)
            writer.write(MAGIC + framed(codec.encode_hello(asked)))
            self._hello = await _heard(reader)
        finally:
            writer.close()
        self._hello.refused = ""
        return {"node": self._hello.node_id}

    async def steal(self, database: str) -> Message:
        """Nodes tell no stranger of their stores: `node`: whose this one is."""
        with TemporaryDirectory(prefix="muster-fake-peer-") as scratch:
            view = Secondary(Path(database), Path(scratch))
            try:
                identity = load_identity(view)
                life = Life.decode(view.get(Family.META, keys.LIFE))
            finally:
                view.close()
        hello = self._hello
        hello.shards, hello.store_uuid = identity.shards, identity.store_uuid
        hello.nodes[:] = identity.nodes
        hello.life, hello.run_id = life.number, os.urandom(RUN_ID_BYTES)
        for one in life.starts:
            hello.starts.add(life=one.life, epoch=one.epoch)
        return {"node": identity.node_id}

    async def garble(self, host: str, port: int, lane: str, kind: str) -> Message:
        """`refused`: why it was not taken for that node; `ended`: whether the other hung up."""
        reader, writer = await asyncio.open_connection(host, port)
        try:
            self._hello.lane = pb.Lane.Value(lane)
            writer.write(MAGIC + framed(codec.encode_hello(self._hello)))
            if refused := (await _heard(reader)).refused:
                return {"refused": refused, "ended": True}
            writer.write(framed(codec.encode_hello(pb.Hello())))
            writer.write(GARBAGE[kind]())
            return {"refused": "", "ended": await _ended(reader)}
        finally:
            writer.transport.abort()


async def _heard(reader: asyncio.StreamReader) -> pb.Hello:
    """The other's hello. Raises EOFError, CodecError, TimeoutError."""
    async with asyncio.timeout(STEP_S_MAX):
        begin = await reader.readexactly(len(MAGIC) + HEAD_BYTES)
        size = size_of(begin[len(MAGIC) :])
        return codec.decode_hello(await reader.readexactly(size))


async def _ended(reader: asyncio.StreamReader) -> bool:
    """Whether the other hangs up in time; until then it may send frames."""
    try:
        async with asyncio.timeout(STEP_S_MAX):
            while await reader.read(1 << 16):
                pass
    except TimeoutError:
        return False
    except OSError:  # with an RST, as there was something unread
        return True
    return True


async def _serve() -> None:
    fake_peer = FakePeer()
    verbs: dict[str, Callable[..., Awaitable[Message]]] = {
        "learn": fake_peer.learn,
        "steal": fake_peer.steal,
        "garble": fake_peer.garble,
    }
    answer(ready=True)
    async for message in commands():
        try:
            reply = await verbs[message.pop("verb")](**message)
        except (OSError, EOFError, TimeoutError, CodecError) as error:
            answer(error=f"{type(error).__name__}: {error}")
        else:
            answer(**reply)


if __name__ == "__main__":
    asyncio.run(_serve())
