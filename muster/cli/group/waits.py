"""Names the members that an open round waits for, since when and until when."""

from collections.abc import Sequence

from muster.cli.group.owners import Group
from muster.cli.output import Value, rfc3339

WAIT_COLUMNS = ("WAITS-FOR", "SINCE", "UNTIL")
"""Only where a group waits."""
AWAITED_COLUMN = "AWAITED"
"""A column of members, only where their group waits."""
NAMED_MAX = 3
"""So many are named in a table, the others are counted."""


def waiting(groups: Sequence[Group]) -> bool:
    """Whether any of them waits for somebody."""
    return any(group.HasField("wait") for group in groups)


def wait_cells(group: Group) -> list[Value]:
    if not group.HasField("wait"):
        return [None] * len(WAIT_COLUMNS)
    wait = group.wait
    return [_sentence(group), rfc3339(wait.since_wall_ms), rfc3339(wait.until_wall_ms)]


def wait_item(group: Group) -> dict[str, object] | None:
    """The wait as JSON shows it."""
    if not group.HasField("wait"):
        return None
    wait = group.wait
    return {
        "kind": wait.kind,
        "since": rfc3339(wait.since_wall_ms),
        "until": rfc3339(wait.until_wall_ms),
        "waited_ms": wait.waited_ms,
        "remaining_ms": wait.remaining_ms,
        "awaited_members": wait.awaited_members,
        "awaited_ids": _awaited(group),
        "pending": wait.pending,
        "pending_ids": list(wait.pending_ids),
    }


def _awaited(group: Group) -> list[str]:
    return [member.member_id for member in group.members if member.awaited]


def _sentence(group: Group) -> str:
    wait = group.wait
    if wait.kind == "initial_delay":
        return "others to join"
    names = [*_awaited(group), *wait.pending_ids]
    more = wait.awaited_members + wait.pending - len(names[:NAMED_MAX])
    shown = ",".join(names[:NAMED_MAX])
    rest = f" and {more} more" if names and more > 0 else ""
    return f"{wait.kind}: {shown or more}{rest}"
