"""Workers that commit and read without a membership: the probe, chaos-W1 in part, chaos-W2."""

import asyncio
import itertools
import time

from muster import Client
from musterd.chaos.history import Key
from musterd.chaos.workloads.base import Settings, Values, Worker

STRAY_SHARE = 0.03
"""So many single attempts go to a node drawn at random, whoever leads."""
GIVE_UP_MS = 60_000
"""The probe's commits."""


class SimpleSettings(Settings):
    """Clients that commit to the same few keys, one attempt each."""

    group: str
    topic: str
    partitions: int
    clients: int = 3
    every_s: float = 0.1
    read_share: float = 0.2
    everywhere: bool = False
    """Whether each key is read at all nodes at one time when it was committed."""
    others: tuple[tuple[str, str, int], ...] = ()
    """(group, topic, partitions) that other workers commit to, read at all nodes beside that."""


class Simple(Worker[SimpleSettings]):
    """Several clients, the same keys: who is acknowledged, in which order, and what is read."""

    async def start(self) -> None:
        self._raw = self.raw()
        others = self.settings.others
        self._beside = itertools.cycle(
            [Key(group, topic, n) for group, topic, count in others for n in range(count)]
        )
        for index in range(self.settings.clients):
            self.spawn(self._client(Values(self.brief.number + index)))
        if others:
            self.spawn(self._others())

    async def stop(self) -> None:
        await self.cancel()
        await self._raw.aclose()

    async def _client(self, values: Values) -> None:
        settings = self.settings
        at = ""
        while True:
            await self.pause(settings.every_s)
            anybody = self.rng.choice(self._raw.endpoints)
            at = at or await self._raw.leader(settings.group, anybody)
            to = anybody if self.rng.random() < STRAY_SHARE else at
            if not to:
                continue
            key = Key(settings.group, settings.topic, self.rng.randrange(settings.partitions))
            if self.rng.random() < settings.read_share:
                done = await self._raw.read(to, key)
            else:
                done = await self._raw.commit(to, key, values.next(key))
                if settings.everywhere:
                    await self._everywhere(key)
            if not done and to == at:
                at = ""

    async def _others(self) -> None:
        settings = self.settings
        while True:
            await self.pause(settings.every_s)
            group, topic, partitions = self.rng.choice(settings.others)
            await self._everywhere(Key(group, topic, self.rng.randrange(partitions)))

    async def _everywhere(self, key: Key) -> None:
        """At all nodes; beside it a key of another group, all of the others' in turn."""
        settings = self.settings
        own = Key(settings.group, settings.topic, 0)
        beside = next(self._beside, own)
        if beside.group == key.group:
            beside = own
        also = () if beside.group == key.group else (beside,)
        await asyncio.gather(*(self._raw.read(at, key, also) for at in self._raw.endpoints))


class ProbeSettings(Settings):
    """Names the groups that are probed."""

    groups: list[str]
    topic: str
    every_s: float = 0.1
    """Between the starts of two commits of a group, where the first is over by then."""


class Probe(Worker[ProbeSettings]):
    """One commit after the other to partition 0 of the topic in each group, and how long each took.

    The SDK tries until it is acknowledged: the longest time between two acknowledgements around a
    fault is how long that group was unavailable.
    """

    async def start(self) -> None:
        for group in self.settings.groups:
            self.spawn(self._probe(group))

    async def _probe(self, group: str) -> None:
        key = Key(group, self.settings.topic, 0)
        values = Values(self.brief.number)
        loop = asyncio.get_running_loop()
        async with self.client(request_timeout_ms=GIVE_UP_MS) as client:
            while True:
                due = loop.time() + self.settings.every_s
                await self._once(client, key, values.next(key))
                await asyncio.sleep(max(0.0, due - loop.time()))
                await self.at_work.wait()

    async def _once(self, client: Client, key: Key, value: int) -> None:
        sent_ns = time.monotonic_ns()
        answered = False
        try:
            answered = await self.book.commit(client, key, value)
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
