"""What the gRPC frontends share: their view of the node, admission, and the way into the core."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar

import grpc

from musterd.coordinator.api.admission import CALL, Admission, Admitted, Kind
from musterd.coordinator.api.cooperative_yield import LongReads
from musterd.coordinator.api.leader_watch import LeaderWatch
from musterd.coordinator.api.reply_queue import ReplyQueue
from musterd.coordinator.api.statuses import Statuses
from musterd.coordinator.machine.commands import Command
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.runtime.answers import Answer, Loading, NotHere
from musterd.coordinator.runtime.heartbeats import Heartbeats
from musterd.coordinator.runtime.routing import Directory, shard_of
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.timeouts import LOADING_HOLD_MS
from musterd.coordinator.runtime.topic_registry import TopicRegistry

Context = grpc.aio.ServicerContext[Any, Any]

LISTED_BYTES_MAX: Final = LIMITS.client_message_max_bytes // 4
"""Of a request that names many groups: an answer that repeats every name fits a message."""

TOGETHER_MAX: Final = 50
"""Commands of one call that are under way at once: a log entry that holds them is soon applied."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Coordination:
    """What the frontends use of a node."""

    shards: Sequence[Shard]
    heartbeats: Heartbeats
    topics: TopicRegistry
    directory: Directory
    statuses: Statuses
    admission: Admission
    watch: LeaderWatch
    reply_queue: ReplyQueue
    one_long_read: LongReads
    """See cooperative_yield.py."""
    one_long_heartbeat: LongReads = field(default_factory=LongReads)
    """The same for heartbeats: members are not heard later because of long reads."""

    def shard_for(self, group_id: str) -> Shard:
        """The shard a group lives in."""
        return self.shards[shard_of(group_id, len(self.shards))]

    async def loaded(self, shards: Iterable[Shard]) -> None:
        """Hold a call while a shard is loading, 1 s at most (gp-2.0.2)."""
        waiting = [shard for shard in shards if shard.loading]
        if waiting:
            await self.watch.until(
                lambda: all(not shard.loading for shard in waiting),
                LOADING_HOLD_MS,
            )

    async def ask(self, shard: Shard, command: Command, size: int, admitted: Admitted) -> Answer:
        """Put a command to a shard and wait for its answer."""
        if shard.loading:
            await self.loaded((shard,))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        call = shard.submit(command, size, self.reply_queue.settle(future), admitted.leave)
        try:
            return await future
        finally:
            if not call.ended:
                shard.abandon(call)

    async def confirmed(self, shard: Shard, *, settled: bool = False) -> NotHere | Loading | None:
        """None once applied state holds all that was acknowledged before.

        Otherwise who to ask (ReadIndex). `settled`: and all that is under way here, too.
        """
        if shard.loading:
            await self.loaded((shard,))
        if shard.loading:
            return Loading()
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        read = shard.read_settled if settled else shard.read
        read(self.reply_queue.settle(future))
        return None if await future else shard.elsewhere()


async def shed(context: Context, what: str) -> NoReturn:
    """Refuse for overload: nothing was done, the caller may repeat the call after a pause."""
    await context.abort(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"{what}: the limit is reached, nothing was done; repeat after a pause.",
    )


async def admit(core: Coordination, context: Context, kind: Kind = Kind.ORDINARY) -> Admitted:
    """The call's place among the active ones: the acceptor's, or one taken now, or a refusal."""
    admitted = CALL.get()
    if admitted is None or not admitted.begin():
        await core.admission.room(kind, read=True)
        admitted = core.admission.enter(kind)
    if admitted is None:
        await shed(context, "active calls on this node")
    return admitted


async def some_at_a_time(
    one: Callable[[T], Awaitable[R]], items: Sequence[T], done: Callable[[T, R], None]
) -> None:
    """Await `one` of each item, a few at once; `done` is told of each, in order."""
    for start in range(0, len(items), TOGETHER_MAX):
        some = items[start : start + TOGETHER_MAX]
        answers = await asyncio.gather(*map(one, some))
        for item, answer in zip(some, answers, strict=True):
            done(item, answer)


def client_host(peer: str) -> str:
    """The host of a gRPC peer such as "ipv4:10.0.0.7:5123" or "ipv6:%5B::1%5D:5123"."""
    kind, _, rest = peer.partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return peer[: LIMITS.id_max_bytes]
    host, _, _ = rest.rpartition(":")
    return host.replace("%5B", "").replace("%5D", "").strip("[]")


def refuse_group(group_id: str) -> Refused | None:
    """What is wrong with a group id, or None."""
    size = len(group_id.encode())
    if 0 < size <= LIMITS.id_max_bytes:
        return None
    return Refused(
        Error.INVALID_GROUP_ID,
        f"A group id has 1 to {LIMITS.id_max_bytes} bytes; this one has {size}.",
    )


def refuse_bytes(size: int) -> Refused | None:
    """What is wrong with the size of a request that names many groups, or None."""
    if size <= LISTED_BYTES_MAX:
        return None
    return Refused(
        Error.INVALID_REQUEST,
        f"The request takes {size} bytes; at most {LISTED_BYTES_MAX} are taken: ask less at once.",
    )
