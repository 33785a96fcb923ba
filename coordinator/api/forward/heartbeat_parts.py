"""A heartbeat whose members have several coordinators.

Each of those holds its part. The first to answer ends the wait of all: the others are asked anew,
to answer at once, so that the answer says of each member what its own coordinator said during the
call, and of none that it is heard where it was not. A coordinator that does not answer in
FORWARD_PART_MS has said nothing: its members are told to repeat.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc

from muster.v1.group_pb2 import HeartbeatRequest, HeartbeatResponse
from musterd.coordinator.api.frame.forwarding import PassingFailed
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.runtime.timeouts import FORWARD_PART_MS
from musterd.raft.contract import NodeId

UNHEARD = "The group's coordinator did not answer in time: repeat."
MS = 1_000

Ask = Callable[[NodeId | None, HeartbeatRequest], Awaitable[HeartbeatResponse]]
"""Passes a part to a node, or serves it here (None)."""


async def beat_in_parts(
    request: HeartbeatRequest, takers: Sequence[NodeId | None], ask: Ask
) -> HeartbeatResponse:
    """The answer to a heartbeat. `takers`: of each member, the node that its part goes to."""
    places: dict[NodeId | None, list[int]] = {}
    for place, node in enumerate(takers):
        places.setdefault(node, []).append(place)
    parts = {node: _part(request, of_node) for node, of_node in places.items()}
    asked = {node: _start(ask, node, part) for node, part in parts.items()}
    again: dict[NodeId | None, asyncio.Task[HeartbeatResponse | None]] = {}
    try:
        if not request.at_once:
            await asyncio.wait(asked.values(), return_when=asyncio.FIRST_COMPLETED)
            for node, task in asked.items():
                if not task.done():
                    parts[node].at_once = True
                    again[node] = _start(ask, node, parts[node])
        last = {**asked, **again}
        await asyncio.wait(last.values(), timeout=FORWARD_PART_MS / MS)
        told = {node: task.result() if task.done() else None for node, task in last.items()}
    except asyncio.CancelledError:  # the client has gone: its coordinators are told so
        for task in (*asked.values(), *again.values()):
            task.cancel()
        raise
    # A part that is asked still ends by itself: to cancel it would say that the client has gone.
    return _together(request, places, told)


def _start(
    ask: Ask, node: NodeId | None, part: HeartbeatRequest
) -> "asyncio.Task[HeartbeatResponse | None]":
    return asyncio.get_running_loop().create_task(_ask(ask, node, part))


async def _ask(ask: Ask, node: NodeId | None, part: HeartbeatRequest) -> HeartbeatResponse | None:
    """What a node said; None where it said nothing."""
    try:
        return await ask(node, part)
    except (PassingFailed, grpc.aio.AbortError):
        return None


def _part(request: HeartbeatRequest, places: Sequence[int]) -> HeartbeatRequest:
    return HeartbeatRequest(
        client_nonce=request.client_nonce,
        call_seq=request.call_seq,
        at_once=request.at_once,
        members=[request.members[place] for place in places],
    )


def _together(
    request: HeartbeatRequest,
    places: dict[NodeId | None, list[int]],
    told: dict[NodeId | None, HeartbeatResponse | None],
) -> HeartbeatResponse:
    said = [one for one in told.values() if one is not None]
    interval_ms = min((one.interval_ms for one in said), default=LIMITS.heartbeat_interval_ms)
    whole = HeartbeatResponse(interval_ms=interval_ms)
    if any(one.superseded for one in said):
        whole.superseded = True
        return whole
    results: dict[int, Any] = {}
    for node, of_node in places.items():
        response = told[node]
        if response is not None:
            results.update(zip(of_node, response.results, strict=False))
    for place, member in enumerate(request.members):
        result = results.get(place)
        if result is None:
            result = HeartbeatResponse.Result(group_id=member.group_id, member_id=member.member_id)
            result.status.code = int(Error.NOT_COORDINATOR)  # type: ignore[assignment]
            result.status.message = UNHEARD
            result.status.retriable = True
        whole.results.append(result)
    return whole
