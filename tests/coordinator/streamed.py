"""A node in this process whose calls an acceptor takes, with streams; and a stream to it."""

import asyncio
import contextlib
import itertools

import grpc

from muster.v1 import group_pb2 as pb
from musterd.coordinator.api.limits.call_acceptor import CallAcceptor, open_answers
from musterd.coordinator.api.rpcs.services import Services
from musterd.coordinator.api.server import make_server
from musterd.coordinator.api.stream.client_stream import ClientStreams
from musterd.coordinator.integrity.verify import Verifier
from musterd.coordinator.metrics.grpc import GrpcMetrics
from tests.coordinator.local import LocalNode, NoPeers

METHODS = {
    pb.FindCoordinatorRequest: (pb.ClientFrame.FIND_COORDINATOR, pb.FindCoordinatorResponse),
    pb.JoinGroupRequest: (pb.ClientFrame.JOIN_GROUP, pb.JoinGroupResponse),
    pb.SyncGroupRequest: (pb.ClientFrame.SYNC_GROUP, pb.SyncGroupResponse),
    pb.HeartbeatRequest: (pb.ClientFrame.HEARTBEAT, pb.HeartbeatResponse),
    pb.LeaveGroupRequest: (pb.ClientFrame.LEAVE_GROUP, pb.LeaveGroupResponse),
    pb.OffsetCommitRequest: (pb.ClientFrame.OFFSET_COMMIT, pb.OffsetCommitResponse),
    pb.OffsetFetchRequest: (pb.ClientFrame.OFFSET_FETCH, pb.OffsetFetchResponse),
}


class StreamedNode(LocalNode):
    """As it ships: services behind an acceptor, whose streams are `streams`."""

    def serve(self):
        metrics = GrpcMetrics()
        self.metrics = metrics
        self.failures = []
        self.server = make_server((metrics,))
        limits = self.call_limits.large
        self.acceptor = CallAcceptor(
            self.server, self.core.admission, open_answers(), limits, (metrics,), self.ended
        )
        self.streams = ClientStreams(self.acceptor, self.core.access)
        verifier = Verifier(0, self.shards, self, NoPeers())
        Services(self.core, self, verifier, self.access, self.streams).add_to(self.acceptor)

    async def take(self):
        await super().take()
        self.acceptor.start()

    def ended(self, task):
        if not task.cancelled() and task.exception() is not None:
            self.failures.append(task.exception())

    async def stop(self):
        self.streams.end()
        await super().stop()
        await self.acceptor.stop()
        assert not self.failures


class ToNode:
    """A stream that says what a test wants; `frames` are what came."""

    def __init__(self, channel, metadata=None):
        self.call = channel.stream_stream("/muster.v1.GroupCoordinator/Session")(metadata=metadata)
        self.frames = []
        self.answers = {}
        self.ids = itertools.count(1)
        self._came = asyncio.Event()
        self.reader = asyncio.create_task(self._read())

    async def _read(self):
        with contextlib.suppress(grpc.aio.AioRpcError):
            while (raw := await self.call.read()) is not grpc.aio.EOF:
                frame = pb.ServerFrame.FromString(raw)
                self.frames.append(frame)
                self.answers.update((one.call_id, one) for one in frame.answers)
                self._came.set()
                self._came = asyncio.Event()
        self._came.set()

    def requests(self, *messages):
        """The entries of a frame, with new call ids."""
        return [
            pb.ClientFrame.Request(
                call_id=next(self.ids),
                method=METHODS[type(message)][0],
                message=message.SerializeToString(),
            )
            for message in messages
        ]

    async def say(self, *messages, **more):
        """Send them in one frame; their call ids."""
        requests = self.requests(*messages)
        await self.write(pb.ClientFrame(requests=requests, **more))
        return [one.call_id for one in requests]

    async def write(self, frame):
        await self.call.write(frame.SerializeToString())

    async def came(self, holds):
        """Wait until something of what came fulfils it."""
        async with asyncio.timeout(10):
            while not holds():
                assert not self.reader.done(), "the stream has ended"
                await self._came.wait()

    async def answer(self, call_id, response=None):
        """The answer of a call, decoded; where it has a code, code and details."""
        await self.came(lambda: call_id in self.answers)
        one = self.answers[call_id]
        if one.code:
            return grpc_code(one.code), one.details
        return response.FromString(one.message)

    async def ask(self, message):
        """One request and its answer."""
        (call_id,) = await self.say(message)
        return await self.answer(call_id, METHODS[type(message)][1])

    async def end(self):
        """How the node ended it."""
        await asyncio.wait((self.reader,), timeout=20)
        assert self.reader.done(), "the stream goes on"
        return await self.call.code(), await self.call.details()


def grpc_code(number):
    return next(code for code in grpc.StatusCode if code.value[0] == number)


@contextlib.asynccontextmanager
async def streamed_node(**settings):
    """A started one, stopped at the end."""
    node = StreamedNode(**settings)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
