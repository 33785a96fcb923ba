"""A process at one place of a network, which tries what can be reached from there.

A `Child` (chaos/child.py): echoes TCP on port 9001, counts UDP datagrams on port 9000; verbs
are the functions of `Prober`.
"""

import asyncio
import contextlib
import socket
import time

import grpc

import muster
from muster.v1 import admin_pb2, admin_pb2_grpc, errors_pb2, group_pb2, group_pb2_grpc
from musterd.chaos.child import answer, commands, config

UDP_PORT, TCP_PORT = 9000, 9001
_CHUNK = 65536


class _Counter(asyncio.DatagramProtocol):
    heard = 0

    def datagram_received(self, data: bytes, addr) -> None:
        del data, addr
        self.heard += 1


class Prober:
    """One method for each verb; what it returns is the answer."""

    def __init__(self, counter: _Counter) -> None:
        self._counter = counter
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._held: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, host: str, count: int) -> dict:
        """Send datagrams."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            for _ in range(count):
                out.sendto(b"x" * 100, (host, UDP_PORT))
        return {}

    async def heard(self) -> dict:
        """How many datagrams came."""
        return {"heard": self._counter.heard}

    async def echo(self, host: str, size: int, within_s: float) -> dict:
        """Send bytes, read them back: `took_s`, or `failed`."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(within_s):
                reader, writer = await asyncio.open_connection(host, TCP_PORT)
                writer.write(bytes(size))
                writer.write_eof()
                got = await reader.read(-1)
                writer.close()
        except (OSError, TimeoutError) as error:
            return {"failed": repr(error)}
        return {"took_s": time.monotonic() - began, "bytes": len(got)}

    async def hold(self, host: str) -> dict:
        """Open a connection and keep it."""
        self._held, self._writer = await asyncio.open_connection(host, TCP_PORT)
        self._writer.write(b"x")
        await self._held.readexactly(1)
        return {}

    async def held(self, within_s: float) -> dict:
        """Speak on it: `open` where it is echoed, `reset`, or `silent`."""
        try:
            self._writer.write(b"x")
            async with asyncio.timeout(within_s):
                got = await self._held.read(1)
        except TimeoutError:
            return {"held": "silent"}
        except OSError:
            return {"held": "reset"}
        return {"held": "open" if got else "closed"}

    async def describe(self, endpoint: str, within_s: float) -> dict:
        """DescribeCluster on a fresh connection: a gRPC code."""
        async with grpc.aio.insecure_channel(endpoint) as channel:
            stub = admin_pb2_grpc.AdminStub(channel)
            try:
                await stub.DescribeCluster(
                    admin_pb2.DescribeClusterRequest(), timeout=within_s, wait_for_ready=False
                )
            except grpc.aio.AioRpcError as error:
                return {"code": error.code().name}
        return {"code": "OK"}

    async def hold_channel(self, endpoint: str) -> dict:
        """Keep a connection with a node, as the SDK does: a gRPC code."""
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = grpc.aio.insecure_channel(endpoint)
        stub = admin_pb2_grpc.AdminStub(channel)
        try:
            await stub.DescribeCluster(
                admin_pb2.DescribeClusterRequest(), timeout=10.0, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            return {"code": error.code().name}
        return {"code": "OK"}

    async def sdk_commits(self, bootstrap: str, group: str, topic: str, count: int) -> dict:
        """Commits through the SDK, one after the other; `acknowledged`: how many."""
        async with muster.Client(bootstrap) as client:
            for offset in range(1, count + 1):
                await client.commit_offsets(group, {muster.TopicPartition(topic, 0): offset})
        return {"acknowledged": count}

    async def commit(self, endpoint: str, group: str, topic: str, offset: int) -> dict:
        """A simple commit, asked of one node: a gRPC code or an error's name."""
        part = group_pb2.OffsetCommitRequest.Partition(topic=topic, partition=0, offset=offset)
        request = group_pb2.OffsetCommitRequest(group_id=group, generation=-1, partitions=[part])
        async with grpc.aio.insecure_channel(endpoint) as channel:
            try:
                got = await group_pb2_grpc.GroupCoordinatorStub(channel).OffsetCommit(
                    request, timeout=1.0
                )
            except grpc.aio.AioRpcError as error:
                return {"code": error.code().name}
        codes = {got.status.code, *(one.status.code for one in got.partitions)}
        return {"code": "+".join(sorted(errors_pb2.ErrorCode.Name(one) for one in codes))}


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.CancelledError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main() -> None:
    """Serve until the parent hangs up."""
    counter = _Counter()
    if config().get("ports", True):
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: counter, local_addr=("0.0.0.0", UDP_PORT))
        await asyncio.start_server(_echo, "0.0.0.0", TCP_PORT)
    prober = Prober(counter)
    answer(ready=True)
    async for message in commands():
        verb = message.pop("verb")
        try:
            answer(**await getattr(prober, verb)(**message))
        except Exception as error:  # noqa: BLE001  # the test hears of it
            answer(error=f"{verb}: {error!r}")


if __name__ == "__main__":
    asyncio.run(main())
