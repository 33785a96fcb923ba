"""Streams of the SDK against a server that plays the node: frames, order, breaks, and none."""

import asyncio
import contextlib
from unittest import mock

import grpc
import pytest

from muster import timeouts
from muster.net import streams
from muster.net.bearer_token import BearerToken
from muster.net.nodes import Nodes
from muster.net.streams import FRAME_BYTES_MAX, OPEN_MAX, PATH
from muster.v1 import group_pb2 as pb

COMMIT = "/muster.v1.GroupCoordinator/OffsetCommit"
Code = grpc.StatusCode


class Server:
    """Keeps what streams say in `frames`; answers as `answer` tells, a frame for each of theirs."""

    def __init__(self, *, has_streams=True):
        self.has_streams = has_streams
        self.frames = []
        self.opened = []
        """The metadata that each stream came with."""
        self.calls = 0
        """Made without a stream."""
        self.answer = self.echo
        self.outs = []
        """By stream, frames to send besides; None ends it."""
        self.server = grpc.aio.server()
        methods = {
            "OffsetCommit": grpc.unary_unary_rpc_method_handler(self._commit),
        }
        if has_streams:
            methods["Session"] = grpc.stream_stream_rpc_method_handler(self._session)
        name = "muster.v1.GroupCoordinator"
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
        self.endpoint = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"

    async def _commit(self, raw, _context):
        self.calls += 1
        return raw

    @staticmethod
    def echo(frame):
        """Each request is its own answer."""
        return pb.ServerFrame(
            answers=[
                pb.ServerFrame.Answer(call_id=one.call_id, message=one.message)
                for one in frame.requests
            ],
            pong=frame.ping,
        )

    @staticmethod
    def nothing(_frame):
        return None

    async def _session(self, _requests, context):
        self.opened.append(dict(context.invocation_metadata()))
        out = asyncio.Queue()
        self.outs.append(out)
        sending = asyncio.create_task(self._send(context, out))
        reading = asyncio.create_task(self._read(context, out))
        try:
            await asyncio.wait((sending, reading), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            reading.cancel()

    async def _send(self, context, out):
        while (frame := await out.get()) is not None:
            await context.write(frame.SerializeToString())

    async def _read(self, context, out):
        while (raw := await context.read()) is not grpc.aio.EOF:
            frame = pb.ClientFrame.FromString(raw)
            self.frames.append(frame)
            answer = self.answer(frame)
            if answer is not None:
                out.put_nowait(answer)

    def said(self):
        """Messages of all requests, in order."""
        return [one.message for frame in self.frames for one in frame.requests]


@contextlib.asynccontextmanager
async def connected(server=None, **more):
    """A server and the SDK's view of it."""
    server = server or Server()
    await server.server.start()
    nodes = Nodes([server.endpoint], None, streams=True, **more)
    try:
        yield server, nodes
    finally:
        await nodes.close()
        await server.server.stop(None)


def commit(nodes, endpoint, data=b"x", timeout_ms=5_000):
    return nodes.unary(endpoint, COMMIT, bytes, data, timeout_ms)


async def until(holds):
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.002)


async def failure(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_calls_of_one_turn_go_out_in_one_frame_and_each_gets_its_own_answer():
    """Byte for byte what was given; answers in another order are no other call's."""

    def reversed_echo(frame):
        told = Server.echo(frame)
        return pb.ServerFrame(answers=reversed(told.answers))

    async with connected() as (server, nodes):
        server.answer = reversed_echo
        sent = [b"%d" % n for n in range(100)]
        calls = [commit(nodes, server.endpoint, one) for one in sent]
        assert await asyncio.gather(*calls) == sent
        assert len(server.frames) == 1
        assert server.said() == sent
        assert (len(server.opened), server.calls) == (1, 0)


async def test_a_node_without_streams_gets_the_same_calls_one_by_one():
    """Also those that were on their way into the stream; until its connection is another."""
    async with connected(Server(has_streams=False)) as (server, nodes):
        calls = [commit(nodes, server.endpoint, b"%d" % n) for n in range(10)]
        assert await asyncio.gather(*calls) == [b"%d" % n for n in range(10)]
        assert await commit(nodes, server.endpoint) == b"x"
        assert server.calls == 11
        assert set(nodes._streamless) == {server.endpoint}
        await nodes._see_state(server.endpoint, grpc.ChannelConnectivity.IDLE)
        assert not nodes._streamless


async def test_a_stream_that_ends_fails_its_calls_at_once_and_the_next_call_opens_another():
    """As calls over a broken connection: UNAVAILABLE."""
    async with connected() as (server, nodes):
        server.answer = Server.nothing
        calls = [commit(nodes, server.endpoint, timeout_ms=60_000) for _ in range(3)]
        await until(lambda: server.frames)
        server.outs[0].put_nowait(None)
        assert [await failure(one) for one in calls] == [Code.UNAVAILABLE] * 3
        server.answer = Server.echo
        assert await commit(nodes, server.endpoint) == b"x"
        assert len(server.opened) == 2


async def test_a_call_s_deadline_and_its_cancellation_are_told_to_the_node():
    """Nobody waits for the answer; one that comes all the same is dropped."""
    async with connected() as (server, nodes):
        server.answer = Server.nothing
        late = commit(nodes, server.endpoint, b"late", timeout_ms=50)
        given_up = commit(nodes, server.endpoint, b"given up")
        assert await failure(late) is Code.DEADLINE_EXCEEDED
        given_up.cancel()
        ids = {one.call_id for frame in server.frames for one in frame.requests}
        assert len(ids) == 2
        answers = [pb.ServerFrame.Answer(call_id=one) for one in ids]
        server.outs[0].put_nowait(pb.ServerFrame(answers=answers))
        server.answer = Server.echo
        assert await commit(nodes, server.endpoint) == b"x"
        assert {one for frame in server.frames for one in frame.cancelled} == ids


async def test_a_refusal_in_a_stream_is_that_of_a_call():
    """A gRPC status with its words."""
    async with connected() as (server, nodes):

        def refuse(frame):
            code, why = Code.RESOURCE_EXHAUSTED.value[0], "too many"
            return pb.ServerFrame(
                answers=[
                    pb.ServerFrame.Answer(call_id=one.call_id, code=code, details=why)
                    for one in frame.requests
                ]
            )

        server.answer = refuse
        with pytest.raises(grpc.aio.AioRpcError, match="too many") as caught:
            await commit(nodes, server.endpoint)
        assert caught.value.code() is Code.RESOURCE_EXHAUSTED


async def test_frames_hold_a_mib_and_streams_a_thousand_open_calls():
    """A larger request goes alone; what is too much waits here, and nothing is lost."""
    async with connected() as (server, nodes):
        sizes = [FRAME_BYTES_MAX // 2, FRAME_BYTES_MAX // 2, 10, FRAME_BYTES_MAX + 10, 10]
        calls = [commit(nodes, server.endpoint, b"x" * size) for size in sizes]
        assert [len(one) for one in await asyncio.gather(*calls)] == sizes
        taken = [[len(one.message) for one in frame.requests] for frame in server.frames]
        assert taken == [sizes[:2], sizes[2:3], sizes[3:4], sizes[4:]]
        server.frames.clear()
        server.answer = Server.nothing
        calls = [commit(nodes, server.endpoint, b"%d" % n) for n in range(OPEN_MAX + 5)]
        await until(lambda: len(server.said()) == OPEN_MAX)
        first = Server.echo(server.frames[0])
        server.answer = Server.echo
        for frame in [first, *map(Server.echo, server.frames[1:])]:
            server.outs[0].put_nowait(frame)
        assert await asyncio.gather(*calls) == [b"%d" % n for n in range(OPEN_MAX + 5)]


async def test_a_request_larger_than_any_may_be_goes_by_itself():
    """Its refusal by gRPC ends the call that it is part of: that may not be the others' stream."""
    async with connected() as (server, nodes):
        data = b"x" * 2 * 1024 * 1024
        assert await commit(nodes, server.endpoint, data) == data
        assert (server.calls, server.frames) == (1, [])


async def test_calls_under_a_new_token_go_by_a_new_stream_and_those_under_way_go_on(tmp_path):
    """A stream's token is that of its opening."""
    file = tmp_path / "token"
    file.write_text("first")
    async with connected(token=BearerToken(file=str(file))) as (server, nodes):
        server.answer = Server.nothing
        held = commit(nodes, server.endpoint, b"held")
        await until(lambda: server.frames)
        file.write_text("second-and-longer")
        after = commit(nodes, server.endpoint, b"after")
        await until(lambda: len(server.frames) == 2)
        shown = [one["authorization"] for one in server.opened]
        assert shown == ["Bearer first", "Bearer second-and-longer"]
        assert not held.done()
        held.cancel()
        after.cancel()


async def test_a_node_that_drains_keeps_what_is_open_and_gets_nothing_new_in_that_stream():
    """The next call opens a stream, at this node where it still takes one."""
    async with connected() as (server, nodes):
        server.answer = Server.nothing
        held = commit(nodes, server.endpoint, b"held")
        await until(lambda: server.frames)
        server.outs[0].put_nowait(pb.ServerFrame(drain=True))
        (stream,) = nodes._streams.values()
        await until(lambda: stream.is_over)
        server.answer = Server.echo
        assert await commit(nodes, server.endpoint) == b"x"
        assert len(server.opened) == 2
        server.outs[0].put_nowait(Server.echo(server.frames[0]))
        assert await held == b"held"


async def test_a_node_that_says_nothing_is_pinged_and_then_given_up(monkeypatch):
    """A half-open stream: its calls fail, to be made elsewhere; one that pongs is kept."""
    monkeypatch.setattr(timeouts, "STREAM_PING_MS", 20)
    monkeypatch.setattr(timeouts, "STREAM_SILENCE_MS", 100)
    async with connected() as (server, nodes):
        pongs = lambda frame: pb.ServerFrame(pong=True) if frame.ping else None  # noqa: E731
        server.answer = pongs
        held = commit(nodes, server.endpoint, timeout_ms=60_000)
        await until(lambda: sum(frame.ping for frame in server.frames) > 20)
        assert not held.done()
        server.answer = Server.nothing
        with pytest.raises(grpc.aio.AioRpcError, match=streams.SILENT) as caught:
            await held
        assert caught.value.code() is Code.UNAVAILABLE


async def test_a_stream_that_nobody_uses_is_ended_and_the_next_call_opens_another(monkeypatch):
    """A coordinator moved: nothing is left of the stream to where it was, here or there."""
    monkeypatch.setattr(timeouts, "STREAM_PING_MS", 10)
    monkeypatch.setattr(timeouts, "STREAM_REST_MS", 200)
    async with connected() as (server, nodes):
        assert await commit(nodes, server.endpoint) == b"x"
        (stream,) = nodes._streams.values()
        for n in range(60):  # longer than it may rest, and each answered before the next look
            assert await commit(nodes, server.endpoint, b"%d" % n) == b"%d" % n
            await asyncio.sleep(timeouts.STREAM_PING_MS / 1000)
        assert not stream.is_over
        server.answer = Server.nothing
        held = commit(nodes, server.endpoint, timeout_ms=600)
        assert await failure(held) is Code.DEADLINE_EXCEEDED
        assert not stream.has_ended
        server.answer = server.echo
        await until(lambda: stream.has_ended)
        assert await commit(nodes, server.endpoint, b"next") == b"next"
        assert len(server.opened) == 2


async def test_a_node_that_never_answered_is_given_up_though_nobody_waits_any_more(monkeypatch):
    """The next call would wait for the same silence."""
    monkeypatch.setattr(timeouts, "STREAM_PING_MS", 20)
    monkeypatch.setattr(timeouts, "STREAM_SILENCE_MS", 100)
    async with connected() as (server, nodes):
        server.answer = Server.nothing
        with pytest.raises(grpc.aio.AioRpcError):
            await commit(nodes, server.endpoint, timeout_ms=5)
        (stream,) = nodes._streams.values()
        await until(lambda: stream.has_ended)
        server.answer = server.echo
        assert await commit(nodes, server.endpoint, b"next") == b"next"


async def test_a_node_that_reads_nothing_is_given_up_and_late_calls_are_kept_no_longer(monkeypatch):
    """Whatever is open has ended by its deadline; what is new waits behind the frame."""
    monkeypatch.setattr(timeouts, "STREAM_PING_MS", 20)
    monkeypatch.setattr(timeouts, "STREAM_SILENCE_MS", 200)

    class Blocked:
        """A call of gRPC whose window is full."""

        def cancel(self): ...

        async def read(self):
            await asyncio.Event().wait()

        write = done_writing = lambda self, *_: self.read()

    stream = streams.Stream(Blocked, (), lambda _code: None)
    kept = 0
    while not stream.is_over:
        call = stream.call(COMMIT, b"x", bytes, 15, lambda: None)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() in (Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE)
        kept = max(kept, len(stream._waiting))
        if stream.is_over:
            break
    assert kept <= 2
    await stream.close()


async def test_a_client_that_is_closed_cancels_the_calls_of_its_streams():
    """As those without one."""
    async with connected() as (server, nodes):
        server.answer = Server.nothing
        held = commit(nodes, server.endpoint)
        await until(lambda: server.frames)
        await nodes.close()
        assert held.cancelled()


async def test_calls_of_a_former_stream_are_cancelled_with_the_client_too():
    """One whose node drains, and that has calls under way."""
    async with connected() as (server, nodes):
        server.answer = Server.nothing
        held = commit(nodes, server.endpoint, b"held")
        await until(lambda: server.frames)
        (former,) = nodes._streams.values()
        server.outs[0].put_nowait(pb.ServerFrame(drain=True))
        await until(lambda: former.is_over)
        server.answer = Server.echo
        assert await commit(nodes, server.endpoint) == b"x"
        await nodes.close()
        assert held.cancelled()
        assert former.has_ended


async def test_a_stream_that_says_what_is_no_frame_is_ended():
    """Its calls fail as those of a broken connection, at once, and not by their deadlines."""
    async with connected() as (server, nodes):
        server.answer = Server.nothing
        held = commit(nodes, server.endpoint, b"held", timeout_ms=60_000)
        await until(lambda: server.frames)
        server.outs[0].put_nowait(mock.Mock(SerializeToString=lambda: b"\xff"))
        with pytest.raises(grpc.aio.AioRpcError, match=streams.GARBLED) as caught:
            await held
        assert caught.value.code() is Code.UNAVAILABLE


def test_every_method_of_the_proto_has_its_path():
    """And no other."""
    values = {one.number for one in pb.ClientFrame.Method.DESCRIPTOR.values} - {0}
    assert set(streams.METHODS.values()) == values
    service = pb.DESCRIPTOR.services_by_name["GroupCoordinator"]
    paths = {f"/{service.full_name}/{one.name}" for one in service.methods}
    assert set(streams.METHODS) == paths - {PATH}
