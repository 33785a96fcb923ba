"""A worker's history: one file. How each call is made whose outcome is written down there."""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc

from muster import Client, TopicPartition
from muster.errors import MusterError
from muster.types import CommitResult
from musterd.chaos.history import Generation, Key, Operated, Outcome
from musterd.chaos.recording import Recorder
from musterd.chaos.workloads.outcomes import Before, name_of, of_rpc, refused

_T = TypeVar("_T")


class OperationLog(Recorder):
    """Records one process; `client` stands in every line, unless another is named."""

    def __init__(self, path: Path, client: str) -> None:
        """Create the file. Raises RecordingError where it exists."""
        super().__init__(path, client)
        self.client = client

    def begin(self, kind: str, key: Key, *, client: str = "", **fields: Any) -> int:
        """An operation is about to be sent; `fields` are those of `Recorder.invoke`."""
        return self.invoke(client or self.client, kind, key, **fields)

    async def tried(
        self,
        call: Awaitable[_T],
        operations: Iterable[int] = (),
        outcome: Callable[[Any], Outcome] = of_rpc,
    ) -> _T | None:
        """Return the result of a call; None: it raised, and its operations are over.

        `outcome` says by the error what became of them: by default of a single attempt.
        """
        try:
            return await call
        except (MusterError, grpc.RpcError) as error:
            for number in operations:
                self.end(number, outcome(error), error=name_of(error))
            return None

    async def commit(self, client: Client, key: Key, value: int, kind: str = "commit") -> bool:
        """One commit outside of a membership by the SDK, written down as `kind`."""
        number = self.begin(kind, key, value=value)
        call = client.commit_offsets(key.group, {TopicPartition(key.topic, key.partition): value})
        result = await self.tried(call, [number], Before(client.counters).outcome)
        if result is not None:
            self.end(number, Outcome.OK, node=answered_by(client, key.group, result))
        return result is not None

    async def read(self, client: Client, keys: Sequence[Key], /, **fields: Any) -> list[int]:
        """Read offsets of one group by the SDK, written down with `fields`; empty: refused."""
        numbers = [self.begin("read", key, **fields) for key in keys]
        places = [TopicPartition(key.topic, key.partition) for key in keys]
        found = await self.tried(client.committed(keys[0].group, places), numbers, refused)
        if found is None:
            return []
        offsets = [found.offset(place) for place in places]
        values = [-1 if offset is None else offset for offset in offsets]
        for number, value in zip(numbers, values, strict=True):
            self.end(number, Outcome.OK, value=value)
        return values

    def told(self, group: str, generation: int, owner: str, assigned: tuple[Key, ...]) -> None:
        """A member was told of its generation, and of what it owns in it."""
        now = time.monotonic_ns()
        told = Generation(
            group, generation, (owner,), now, self.client, whole=False, assigned=assigned
        )
        self.record(told)

    def formed(
        self, group: str, generation: int, members: tuple[str, ...], source: str, asked_ns: int
    ) -> None:
        """A generation has these members and no other, as `source` says who was asked then."""
        now = time.monotonic_ns()
        told = Generation(group, generation, members, now, source, whole=True, asked_ns=asked_ns)
        self.record(told)

    def operated(
        self, what: str, subject: str, began_ns: int, outcome: Outcome, **fields: Any
    ) -> None:
        """A call of an operator is over; `fields` are those of `Operated`."""
        now = time.monotonic_ns()
        self.record(Operated(self.client, what, subject, began_ns, now, outcome, **fields))


def answered_by(client: Client, group: str, result: CommitResult) -> int | None:
    """Which node acknowledged; None where the client has heard of a later coordinator since."""
    at = client.coordinator(group)
    return at.node_id if at is not None and at.term == result.term else None
