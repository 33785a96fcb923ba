"""The fencing token: one number per owner, which a store compares before it takes a write.

A generation is one number for all its members, so two processes of one static member share it. The
token is a counter of the group's own: a generation takes one value for all its members, and who
replaces a static member takes another one for itself. None is taken twice.
"""

from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.state import Group


def next_token(group: Group, env: Envelope, taken: int = 0) -> int:
    """A number above every token and every generation that the group gave out.

    Above its generations too, because under rules 1 and 2 they were the tokens. Those take none: 0.
    `taken` is what an event before this one, of the same decision, takes.
    """
    if env.level < 3:  # noqa: PLR2004 - the version in which this came
        return 0
    floor = max(env.generation_floor, env.fence_floor)
    return max(group.fence, group.generation, floor, taken) + 1
