"""Members that leave, or are kicked, in one call: as many commands as it takes, one after another.

Two thousand at once would hold up every replica's loop for fifty milliseconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from musterd.coordinator.api.admission import Admitted
from musterd.coordinator.api.handler import Coordination
from musterd.coordinator.api.translate import command_bytes, too_large
from musterd.coordinator.machine.commands import LeaveGroup
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import LeaveResult, Left, Refused
from musterd.coordinator.runtime.answers import Answer, Shed

MEMBERS_TOGETHER: Final = 300
"""In one command; with the longest ids and reasons these fit into it."""

ENTRY_BYTES: Final = 16
"""Tags and lengths of a member's entry in the command: four of each, and every text is short."""

Part = tuple[LeaveGroup, int]
"""A command, and at most how many bytes it takes."""


def parts(command: LeaveGroup) -> list[Part]:
    """The same departures in commands of a few members, one at least."""
    members = command.members
    starts = range(0, max(len(members), 1), MEMBERS_TOGETHER)
    some = (replace(command, members=members[at : at + MEMBERS_TOGETHER]) for at in starts)
    return [(part, command_bytes(sum(_lengths(part)))) for part in some]


def refuse_parts(wanted: Sequence[Part]) -> Refused | None:
    """What is wrong with the size of one of them, or None."""
    return too_large(max(size for _, size in wanted))


def _lengths(command: LeaveGroup) -> Iterator[int]:
    yield len(command.group_id.encode())
    for one in command.members:
        texts = (one.member_id, one.reason, one.group_instance_id)
        yield ENTRY_BYTES + sum(len(text.encode()) for text in texts)


async def depart(core: Coordination, wanted: Sequence[Part], admitted: Admitted) -> Answer:
    """Put the parts to the log: the first opens a round, the others leave in it (gp-L5).

    What ends it before all have gone may come after some have: the same call may be repeated.
    """
    results: list[LeaveResult] = []
    for command, size in wanted:
        answer = await core.ask(core.shard_for(command.group_id), command, size, admitted)
        if isinstance(answer, Left):
            results.extend(answer.results)
        elif isinstance(answer, Shed) and results:
            message = f"{answer.what}: the limit is reached after {len(results)} members; go on."
            return Refused(Error.COORDINATOR_NOT_AVAILABLE, message)
        else:
            return answer
    return Left(tuple(results))
