"""The departure of many members in one call, cut into commands that go one after another.

Two thousand in one command would hold up every replica's loop for fifty milliseconds, and so would
fifty thousand partitions that are taken from their owners.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from musterd.coordinator.api.frame.bounds import command_size, refuse_command_size
from musterd.coordinator.api.frame.handler import ActiveCall
from musterd.coordinator.machine.commands import LeaveGroup, LeavingMember
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import LeaveResult, Left, Refused
from musterd.coordinator.machine.state import Group
from musterd.coordinator.runtime.answers import Shed

MEMBERS_TOGETHER: Final = 300
"""In one command; with the longest ids and reasons these fit into it."""

GRANTS_TOGETHER: Final = 10_000
"""Partitions that the members of one command may have, where the coordinator assigns; one member
may have more. To take them from their owners takes a replica 10 ms."""

ENTRY_BYTES: Final = 16
"""Tags and lengths of a member's entry in the command: four of each, and every text is short."""


async def depart(command: LeaveGroup, call: ActiveCall) -> list[LeaveResult]:
    """Put the departures to the log: the first part opens a round, the others leave in it (gp-L5).

    What ends it before all have gone may come after some have: the same call may be repeated.
    """
    group = call.core.shard_for(command.group_id).state.groups.get(command.group_id)
    parts = [replace(command, members=members) for members in _cut(command.members, group)]
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


def _cut(
    members: Sequence[LeavingMember], group: Group | None
) -> Iterator[tuple[LeavingMember, ...]]:
    """Cut the members of a call into those of one command each; of none there is one, too."""
    together: list[LeavingMember] = []
    grants = 0
    for one in members:
        more = _grants(one, group)
        if together and (len(together) >= MEMBERS_TOGETHER or grants + more > GRANTS_TOGETHER):
            yield tuple(together)
            together, grants = [], 0
        together.append(one)
        grants += more
    yield tuple(together)


def _grants(one: LeavingMember, group: Group | None) -> int:
    """How many partitions a member of a modern group has; 0 of others."""
    if group is None or group.modern is None:
        return 0
    member_id = one.member_id or group.instances.get(one.group_instance_id, "")
    consumer = group.modern.members.get(member_id)
    return 0 if consumer is None else consumer.size


def _lengths(command: LeaveGroup) -> Iterator[int]:
    yield len(command.group_id.encode())
    for one in command.members:
        texts = (one.member_id, one.reason, one.group_instance_id)
        yield ENTRY_BYTES + sum(len(text.encode()) for text in texts)
