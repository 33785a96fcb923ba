"""Deletes the groups that a run made on an installation of the user's."""

import asyncio
import time

from muster.errors import GroupIdNotFound, MusterError
from musterd.chaos.workloads.base import Settings, Worker
from musterd.chaos.workloads.outcomes import name_of

CLEAN_S = 40.0
"""Members that were killed are in a group until their session ends."""
AGAIN_S = 1.0


class CleanerSettings(Settings):
    """What to delete."""

    groups: tuple[str, ...]


class Cleaner(Worker):
    """`start` returns when all are gone, or the time is up; what is left is in the track."""

    settings_type = CleanerSettings

    async def start(self) -> None:
        """Delete them."""
        left: dict[str, str] = dict.fromkeys(
            CleanerSettings.model_validate(self.brief.settings).groups, ""
        )
        deadline = time.monotonic() + CLEAN_S
        async with self.client() as client:
            while left and time.monotonic() < deadline:
                answers = await client.delete_groups(list(left))
                left = {
                    group: name_of(error)
                    for group, error in answers.items()
                    if isinstance(error, MusterError) and not isinstance(error, GroupIdNotFound)
                }
                if left:
                    await asyncio.sleep(AGAIN_S)
        for group, error in left.items():
            self.track.note("undeleted", group=group, error=error)
