"""The two topics that keep the tasks of all task groups; what is in them says task_store.py."""

from typing import Final

PROGRESS: Final = "muster.tasks"
DEFINITIONS: Final = "muster.task-definitions"


def why_kept(topic: str) -> str:
    """Why this topic is not deleted; "" where it may be."""
    if topic not in (PROGRESS, DEFINITIONS):
        return ""
    return f"topic {topic!r} keeps the tasks of every task group, so it is not deleted"


INSTEAD: Final = (
    "to remove the tasks of one group, delete the group: `muster group delete`, "
    "or `Client.delete_groups`"
)
