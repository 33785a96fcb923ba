"""How a node hands its audit entries to the leader of shard 0, and what it says of those lost."""

import asyncio
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from muster.v1 import admin_pb2 as pb
from muster.v1 import admin_pb2_grpc
from musterd.coordinator.api.frame.audit_trail import AuditTrail
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.node import audit_sender
from musterd.coordinator.node.audit_sender import AuditSender
from musterd.coordinator.runtime.answers import NotHere

UNKNOWN = max(Error) + 1
"""An error of a later release."""


class Leader:
    """Node 2, which leads shard 0: its answers' codes, in order, and what arrived."""

    def __init__(self, *codes):
        self.codes, self.batches, self.numbers = list(codes), [], []

    async def record_audit(self, request, **_):
        self.numbers.append(request.batch)
        self.batches.append([one.request_id for one in request.entries])
        answer = pb.RecordAuditResponse()
        if self.codes:
            answer.status.code = self.codes.pop(0)
        return answer

    RecordAudit = record_audit


@pytest.fixture
def sender(monkeypatch):
    """Of node 1, which follows."""

    async def ask(*_):
        return NotHere(leader=2, term=1)

    shard = SimpleNamespace(
        node=SimpleNamespace(wall_ms=lambda: 1_000),
        state=SimpleNamespace(level=audit_sender.AUDIT_LEVEL, audit_batches={}),
        current=True,
    )
    core = SimpleNamespace(shards=[shard], audit=AuditTrail(), ask=ask)
    monkeypatch.setattr(admin_pb2_grpc, "AdminStub", lambda channel: channel)
    made = AuditSender(core, 1, lambda _: made.leader, lambda _: ())
    made.leader = None
    return made


def note(sender, request_id):
    sender.trail.note("operator", "ipv4:1.2.3.4:5", "CreateTopic", request_id, "OK", "{}")


def test_an_error_that_this_release_does_not_know_ends_nobody(sender):
    """The entries go again; the log has the number."""
    sender.leader = Leader(UNKNOWN)
    note(sender, "a")
    with capture_logs() as logs:
        asyncio.run(sender.stop())
        asyncio.run(sender.stop())
    assert sender.leader.batches == [["a"], ["a"]]
    assert [one["error"] for one in logs] == [str(UNKNOWN)]
    assert sender.trail.waiting == 0


def test_what_the_last_calls_left_is_handed_over_at_the_end(sender):
    """Those that are answered while the server stops, after the drain's hand-over."""
    sender.leader = Leader()
    note(sender, "a")
    asyncio.run(sender.stop())
    note(sender, "b")
    with capture_logs() as logs:
        asyncio.run(sender.end())
    assert sender.leader.batches == [["a"], ["b"]]
    assert logs == []


def test_a_node_that_starts_with_a_clock_set_back_loses_no_entry(sender):
    """It hands over nothing before its copy of shard 0 has the last batch of its former life."""
    shard = sender._shard
    shard.current = False
    sender.leader = Leader()
    note(sender, "a")
    asyncio.run(sender.stop())
    assert (sender.leader.batches, sender.trail.waiting) == ([], 1)
    shard.state.audit_batches[1] = 5_000  # its clock says 1,000
    shard.current = True
    asyncio.run(sender.stop())
    assert (sender.leader.batches, sender.leader.numbers) == ([["a"]], [5_001])


def test_entries_that_nobody_takes_at_the_end_are_said_to_be_lost(sender):
    """By their number."""
    note(sender, "a")
    with capture_logs() as logs:
        asyncio.run(sender.end())
    assert [(one["event"], one["entries"]) for one in logs] == [("audit entries are lost", 1)]
