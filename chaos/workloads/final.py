"""After everything is healed and has ended: read every key, and why each group rebalanced.

On an installation of the user's the groups of the run are deleted then.
"""

import asyncio
import time
from contextlib import aclosing

from muster import Client
from muster.errors import GroupIdNotFound, MusterError
from musterd.chaos.history import Key, Round
from musterd.chaos.workloads.admin import read_setting
from musterd.chaos.workloads.base import Settings, Worker
from musterd.chaos.workloads.outcomes import name_of
from musterd.chaos.workloads.raw import RawNodes

AT_ONCE = 16
READ_MS = 20_000
CLEAN_S = 40.0
"""Members that were killed are in a group until their session ends."""
AGAIN_S = 1.0


class FinalSettings(Settings):
    """Names what is read after the run."""

    keys: list[tuple[str, str, int]]
    """(group, topic, partition); all that appear in the history."""
    rounds: tuple[str, ...] = ()
    """Groups whose rebalances are asked for."""
    operated: tuple[tuple[str, str], ...] = ()
    """(group, topic) whose settings, and partitions at every node, are read."""


class Final(Worker[FinalSettings]):
    """`start` returns when everything was read, once by the SDK and once at every node."""

    async def start(self) -> None:
        self._room = asyncio.Semaphore(AT_ONCE)
        by_group: dict[str, list[Key]] = {}
        for group, topic, partition in self.settings.keys:
            by_group.setdefault(group, []).append(Key(group, topic, partition))
        async with (
            self.client(request_timeout_ms=READ_MS) as client,
            aclosing(self.raw()) as raw,
        ):
            await asyncio.gather(
                *(self._read(client, group, keys) for group, keys in by_group.items()),
                *(self._rounds(client, group) for group in self.settings.rounds),
            )
            await asyncio.gather(*(self._everywhere(raw, keys[0]) for keys in by_group.values()))
            for group, topic in self.settings.operated:
                read = [await raw.partitions(at, topic) for at in raw.endpoints]
                if not all([await read_setting(self, client, group), *read]):
                    self.track.note("unread", group=group, error="setting or partitions")

    async def _read(self, client: Client, group: str, keys: list[Key]) -> None:
        async with self._room:
            if not await self.book.read(client, keys):
                self.track.note("unread", group=group, error="offsets")

    async def _everywhere(self, raw: RawNodes, key: Key) -> None:
        async with self._room:
            await asyncio.gather(*(raw.read(at, key) for at in raw.endpoints))

    async def _rounds(self, client: Client, group: str) -> None:
        async with self._room:
            try:
                rounds = await client.rebalances(group)
            except GroupIdNotFound:
                return
            except MusterError as error:
                self.track.note("unread", group=group, error=name_of(error))
                return
            at = client.coordinator(group)
            source = "node-?" if at is None else f"node-{at.node_id}"
            for one in rounds:
                self.track.note("round", group=group, cause=one.trigger, ended=one.ended)
                if one.generation > 0:
                    self.book.record(Round(group, one.generation, one.trigger, source))


class CleanerSettings(Settings):
    """Names the groups that are deleted after the run."""

    groups: tuple[str, ...]


class Cleaner(Worker[CleanerSettings]):
    """`start` returns when all are gone, or the time is up; what is left is in the track."""

    async def start(self) -> None:
        left: dict[str, str] = dict.fromkeys(self.settings.groups, "")
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
