"""Builds that wait for a sync which never ends, or serve on. What they lack needs real sockets."""

import asyncio
import contextlib
from collections.abc import Iterator

import musterd.coordinator.node.node
import musterd.coordinator.node.process_end
import musterd.raft.driver
from musterd.chaos.mutants.build import Build
from musterd.coordinator.node.node import READY_POLL_S, Node
from musterd.raft.codec import Message
from musterd.raft.driver import Driver
from musterd.raft.replica.replica import Replica
from musterd.raft.sync_watch import SyncWatch


class HoldingTimeoutNow(Replica):
    """Asks a follower to take over only when all that is pending here is synced."""

    def _hold(self, message: Message) -> bool:
        return message["type"] == "timeout_now" or super()._hold(message)


def _shut_none() -> None:
    """Whoever is connected stays connected."""


@contextlib.contextmanager
def _without_limit(_seconds: float, _error: BaseException) -> Iterator[None]:
    yield


def _never(_self: Driver) -> bool:
    return False


def _no_age(_self: SyncWatch) -> float:
    return 0.0


async def _ready_whatever_hangs(node: Node) -> None:
    while True:
        ready = all(node._is_ready(shard) for shard in node.assembly.shards)
        await node._health.set_ready(ready=ready)
        await asyncio.sleep(READY_POLL_S)


BUILDS = (
    Build(
        "hung_for_ever",
        "Ends by no sync, however long it hangs.",
        ((Driver, "disk_is_lost", property(_never)),),
    ),
    Build(
        "hung_unseen",
        "Measures a sync when it has ended: while it hangs nothing grows.",
        ((SyncWatch, "age_s", property(_no_age)),),
    ),
    Build(
        "held_timeout_now",
        HoldingTimeoutNow.__doc__ or "",
        ((musterd.raft.driver, "Replica", HoldingTimeoutNow),),
    ),
    Build(
        "sockets_open",
        "Ends without shutting its sockets: while the kernel keeps the process they take calls.",
        ((musterd.coordinator.node.process_end, "shut_sockets", _shut_none),),
    ),
    Build(
        "sigterm_waits",
        "At SIGTERM waits for a sync that hangs, however long.",
        ((musterd.coordinator.node.node, "ends_within", _without_limit),),
    ),
    Build(
        "readiness_stays",
        "Says that it is ready while no sync returns.",
        ((Node, "_follow_readiness", _ready_whatever_hangs),),
    ),
)
