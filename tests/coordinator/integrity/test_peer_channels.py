"""Channels to other nodes: new certificates cut no call that is under way."""

import asyncio

import grpc
import pytest

from muster.v1 import admin_pb2 as pb
from muster.v1 import admin_pb2_grpc
from musterd.coordinator.integrity import peer_checkpoints
from musterd.coordinator.integrity.peer_checkpoints import PeerCheckpoints
from musterd.coordinator.runtime.routing import Directory
from musterd.raft.contract import NodeId

PEER = NodeId(2)


class Peer(admin_pb2_grpc.AdminServicer):
    """Answers RecordAudit when it is told to, everything else at once."""

    def __init__(self):
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def record_audit(self, _request, _context):
        self.asked.set()
        await self.answers.wait()
        return pb.RecordAuditResponse()

    async def checkpoints(self, _request, _context):
        return pb.CheckpointsResponse(node_id=PEER)

    RecordAudit, Checkpoints = record_audit, checkpoints


async def ask_and_change(former_ms, monkeypatch):
    """Hand over audit entries; meanwhile certificates change, and a round of questions ends."""
    monkeypatch.setattr(peer_checkpoints, "FORMER_CHANNEL_MS", former_ms)
    server, peer = grpc.aio.server(), Peer()
    admin_pb2_grpc.add_AdminServicer_to_server(peer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    directory = Directory(NodeId(1), "", lambda: {PEER: f"127.0.0.1:{port}"})
    peers = PeerCheckpoints([PEER], directory, None, lambda _: b"")
    try:
        channel = peers.channel(PEER)

        async def hand_over():
            return await admin_pb2_grpc.AdminStub(channel).RecordAudit(pb.RecordAuditRequest())

        calling = asyncio.create_task(hand_over())
        await peer.asked.wait()
        peers.use(None)
        await peers.refresh()
        assert peers.channel(PEER) is not channel
        peer.answers.set()
        await asyncio.wait([calling])
        return calling
    finally:
        await peers.close()
        await server.stop(None)


def test_new_certificates_cut_no_hand_over_of_audit_entries(monkeypatch):
    """It is answered on the channel that it began on; the next one takes a new one."""
    calling = asyncio.run(ask_and_change(60_000, monkeypatch))
    assert calling.result() == pb.RecordAuditResponse()


@pytest.mark.filterwarnings("ignore")
def test_a_channel_that_is_closed_under_a_call_cancels_the_task_that_made_it(monkeypatch):
    """So gRPC does it: why former channels stay open for longer than any call."""
    assert asyncio.run(ask_and_change(0, monkeypatch)).cancelled()
