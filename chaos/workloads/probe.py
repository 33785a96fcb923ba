"""The probe: one commit after the other in each of some groups, and how long each took.

A group has one commit under way at a time, by the SDK, which tries until it is acknowledged: the
longest time between two acknowledgements around a fault is how long that group was unavailable.
"""

import asyncio
import time

from muster import Client
from musterd.chaos.history import Key, Outcome
from musterd.chaos.workloads.base import Settings, Values, Worker
from musterd.chaos.workloads.offsets import commit_simply

GIVE_UP_MS = 60_000


class ProbeSettings(Settings):
    """Which groups."""

    groups: list[str]
    topic: str
    every_s: float = 0.1
    """Between the starts of two commits of a group, where the first is over by then."""


class Probe(Worker):
    """Commits to partition 0 of the topic, in each group."""

    settings_type = ProbeSettings

    async def start(self) -> None:
        """Begin."""
        self._settings = ProbeSettings.model_validate(self.brief.settings)
        for group in self._settings.groups:
            self.spawn(self._probe(group))

    async def _probe(self, group: str) -> None:
        key = Key(group, self._settings.topic, 0)
        values = Values(self.brief.number)
        loop = asyncio.get_running_loop()
        async with self.client(request_timeout_ms=GIVE_UP_MS) as client:
            while True:
                due = loop.time() + self._settings.every_s
                await self._once(client, key, values.next(key))
                await asyncio.sleep(max(0.0, due - loop.time()))

    async def _once(self, client: Client, key: Key, value: int) -> None:
        sent_ns = time.monotonic_ns()
        answered = False
        try:
            answered = await commit_simply(self, client, key, value) is Outcome.OK
        finally:  # also where the run ends while it is under way
            ended_ns = time.monotonic_ns()
            at = client.coordinator(key.group)
            self.track.note(
                "probe",
                group=key.group,
                sent_ns=sent_ns,
                ended_ns=ended_ns,
                ok=answered,
                node=None if at is None or not answered else at.node_id,
            )
