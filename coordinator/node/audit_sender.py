"""Hands a node's audit entries to shard 0: to its own replica where it leads, else to who does."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import grpc
import structlog

from muster.v1 import admin_pb2 as pb
from muster.v1 import admin_pb2_grpc
from musterd.coordinator.api.frame.audit_trail import MS, AuditTrail, HandOver
from musterd.coordinator.api.frame.coordination import Coordination
from musterd.coordinator.machine.commands import AuditEntry, RecordAudit
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Done, Refused
from musterd.coordinator.runtime.answers import Answer, NotHere
from musterd.coordinator.runtime.timeouts import AUDIT_CALL_MS, AUDIT_STOP_MS
from musterd.raft.contract import NodeId

log = structlog.get_logger()

COMMAND_BYTES: Final = 80 * 1024
"""A hand-over's encoding is shorter: 16 entries of 4 KiB."""
AUDIT_LEVEL: Final = 6
_FOR_GOOD: Final = frozenset({Error.INVALID_REQUEST, Error.POLICY_VIOLATION})

Channel = Callable[[NodeId], grpc.aio.Channel | None]
"""The channel to another node's client port; None where its address is not known yet."""

Shown = Callable[[NodeId], tuple[tuple[str, bytes], ...]]
"""The metadata of a call to another node."""


class AuditSender:
    """Sees to it that what a node's trail gathers gets into shard 0."""

    def __init__(self, core: Coordination, node_id: int, channel: Channel, shown: Shown) -> None:
        """`shown`: what this node shows another one, so that it is taken for an operator."""
        self._core, self._node_id = core, node_id
        self._channel, self._shown = channel, shown
        self._shard = core.shards[0]
        self._told = ""
        shard = self._shard
        core.audit.follow(
            node_id,
            shard.node.wall_ms,
            lambda: shard.state.level >= AUDIT_LEVEL,
            lambda: shard.state.audit_batches.get(node_id, 0) if shard.current else None,
        )

    @property
    def trail(self) -> AuditTrail:
        return self._core.audit

    async def run(self) -> None:
        """Hand over what waits, each second, for ever."""
        await self.trail.run(self._send)

    async def stop(self) -> None:
        """Hand over what waits, if that is soon done."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AUDIT_STOP_MS / MS):
                await self.trail.flush(self._send)

    async def end(self) -> None:
        """Hand over what the last calls left, after which there are none; says what is lost."""
        await self.stop()
        if self.trail.waiting:
            log.warning("audit entries are lost", entries=self.trail.waiting)

    async def _send(self, batch: int, entries: Sequence[AuditEntry]) -> HandOver:
        command = RecordAudit(self._node_id, batch, tuple(entries))
        answer: Answer = await self._core.ask(self._shard, command, COMMAND_BYTES, _nothing)
        if isinstance(answer, NotHere) and answer.leader is not None:
            return await self._send_to(answer.leader, command)
        if isinstance(answer, Done):
            return self._said("", HandOver.DONE)
        if isinstance(answer, Refused):
            return self._said(answer.error.name, _outcome(int(answer.error)))
        return HandOver.AGAIN

    async def _send_to(self, leader: NodeId, command: RecordAudit) -> HandOver:
        channel = self._channel(leader)
        if channel is None:
            return HandOver.AGAIN
        request = pb.RecordAuditRequest(node_id=command.node_id, batch=command.batch)
        for entry in command.entries:
            request.entries.add(
                wall_ms=entry.wall_ms,
                node_id=entry.node_id,
                principal=entry.principal,
                peer=entry.peer,
                method=entry.method,
                request_id=entry.request_id,
                result=entry.result,
                detail=entry.detail,
            )
        stub: admin_pb2_grpc.AdminAsyncStub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[assignment]
        try:
            answer = await stub.RecordAudit(
                request, timeout=AUDIT_CALL_MS / MS, metadata=self._shown(leader)
            )
        except grpc.aio.AioRpcError as error:
            return self._said(error.code().name, HandOver.AGAIN)
        code = int(answer.status.code)
        return self._said(_name(code), _outcome(code))

    def _said(self, what: str, outcome: HandOver) -> HandOver:
        """Say so once where the leader does not take the entries."""
        if what != self._told:
            self._told = what
            if what:
                log.warning("audit entries are not recorded", error=what)
        return outcome


def _outcome(code: int) -> HandOver:
    if not code:
        return HandOver.DONE
    return HandOver.LOST if code in _FOR_GOOD else HandOver.AGAIN


def _name(code: int) -> str:
    """An error's name; its number where a later release has one that this one does not know."""
    try:
        return Error(code).name if code else ""
    except ValueError:
        return str(code)


def _nothing() -> None:
    """A hand-over takes no place among the active calls."""
