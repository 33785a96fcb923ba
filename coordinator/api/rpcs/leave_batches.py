"""The departure of many members in one call, cut into commands of 300 that go one after another.

Two thousand in one command would hold up every replica's loop for fifty milliseconds.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from musterd.coordinator.api.frame.bounds import command_size, refuse_command_size
from musterd.coordinator.api.frame.handler import ActiveCall
from musterd.coordinator.machine.commands import LeaveGroup
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import LeaveResult, Left, Refused
from musterd.coordinator.runtime.answers import Shed

MEMBERS_TOGETHER: Final = 300
"""In one command; with the longest ids and reasons these fit into it."""

ENTRY_BYTES: Final = 16
"""Tags and lengths of a member's entry in the command: four of each, and every text is short."""


async def depart(command: LeaveGroup, call: ActiveCall) -> list[LeaveResult]:
    """Put the departures to the log: the first part opens a round, the others leave in it (gp-L5).

    What ends it before all have gone may come after some have: the same call may be repeated.
    """
    members = command.members
    starts = range(0, max(len(members), 1), MEMBERS_TOGETHER)
    parts = [replace(command, members=members[at : at + MEMBERS_TOGETHER]) for at in starts]
    sizes = [command_size(sum(_lengths(part))) for part in parts]
    call.refuse(refuse_command_size(max(sizes)), command)
    results: list[LeaveResult] = []
    for part, size in zip(parts, sizes, strict=True):
        answer = await call.put(part, size)
        if isinstance(answer, Shed) and results:
            message = f"{answer.what}: the limit is reached after {len(results)} members; go on."
            answer = Refused(Error.COORDINATOR_NOT_AVAILABLE, message)
        if not isinstance(answer, Left):
            await call.fail(answer, part)
        results.extend(answer.results)
    return results


def _lengths(command: LeaveGroup) -> Iterator[int]:
    yield len(command.group_id.encode())
    for one in command.members:
        texts = (one.member_id, one.reason, one.group_instance_id)
        yield ENTRY_BYTES + sum(len(text.encode()) for text in texts)
