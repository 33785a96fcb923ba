"""A group that is deleted whenever its one member has left, and made anew by the next member.

Its generations go on where the deleted group's ended (inv-I3), so every one that is formed is
written down with all of its members.
"""

import secrets
import time

from muster.errors import MusterError
from musterd.chaos.history import Generation
from musterd.chaos.workloads.base import Settings, Worker
from musterd.chaos.workloads.raw import Membership

SESSION_MS, REBALANCE_MS = 6_000, 4_000
STEP_MS = 10_000
"""A deletion is given up after this."""


class RecreatedSettings(Settings):
    """What it works on: all of it its own."""

    group: str
    every_s: float = 1.0
    """Mean time between two members."""


class Recreated(Worker):
    """One group, one member at a time, by single attempts: what fails is tried with the next."""

    settings_type = RecreatedSettings

    async def start(self) -> None:
        """Begin."""
        self._settings = RecreatedSettings.model_validate(self.brief.settings)
        self._raw = self.raw()
        self._working = self.spawn(self._work())

    async def stop(self) -> None:
        """End, and close the connections; a member that is still there expires."""
        await self.cancel()
        async with self._raw:
            pass

    async def _work(self) -> None:
        async with self.client(request_timeout_ms=STEP_MS) as client:
            while True:
                await self.pause(self._settings.every_s)
                if not await self._live():
                    continue
                try:
                    error = (await client.delete_groups([self._settings.group]))[
                        self._settings.group
                    ]
                except MusterError as failed:
                    error = failed
                self.track.note("count", name="deleted_groups" if error is None else "kept_groups")

    async def _live(self) -> bool:
        """Join, note the generation, leave; whether the group is empty now."""
        group = self._settings.group
        at = await self._raw.leader(group, self.rng.choice(self._raw.endpoints))
        if not at:
            return False
        asked_ns = time.monotonic_ns()
        wanted = Membership(
            group, secrets.token_hex(16), "", SESSION_MS, REBALANCE_MS, self.brief.name
        )
        _, held, members = await self._raw.join(at, wanted)
        if held is None:
            return False
        if members:
            self.book.recorder.record(
                Generation(
                    group,
                    held.generation,
                    members,
                    time.monotonic_ns(),
                    self.brief.name,
                    whole=True,
                    asked_ns=asked_ns,
                )
            )
        return await self._raw.leave(at, held)
