"""The node as its gRPC services see it, and their way to its shards."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from musterd.coordinator.api.frame.audit_trail import AuditTrail, CallRecord
from musterd.coordinator.api.frame.authorizer import Authorizer, Recheck
from musterd.coordinator.api.frame.forwarding import PASSED_CALL, Forwarding
from musterd.coordinator.api.frame.leader_watch import LeaderWatch
from musterd.coordinator.api.frame.reply_queue import ReplyQueue
from musterd.coordinator.api.frame.statuses import Statuses
from musterd.coordinator.api.limits.admission import Admission
from musterd.coordinator.api.limits.cooperative_yield import LongReads
from musterd.coordinator.api.limits.member_quota import MemberQuota
from musterd.coordinator.api.limits.quota_buckets import Amount, QuotaBuckets
from musterd.coordinator.machine.commands import Command, GroupCommand
from musterd.coordinator.machine.quotas import QuotaKey
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.runtime.answers import Answer, Loading, NotHere, Throttled
from musterd.coordinator.runtime.coordinator_state import CoordinatorState
from musterd.coordinator.runtime.heartbeats import Heartbeats
from musterd.coordinator.runtime.routing import Directory, shard_of
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.timeouts import LOADING_HOLD_MS
from musterd.coordinator.runtime.topic_registry import TopicRegistry

Unserved = Callable[[Shard], NotHere | Loading | None]
"""Why applied state of a shard is not read here at this moment, or None."""


@dataclass(frozen=True, slots=True)
class Coordination:
    """The parts of a node that its gRPC services use."""

    shards: Sequence[Shard]
    heartbeats: Heartbeats
    topics: TopicRegistry
    directory: Directory
    statuses: Statuses
    admission: Admission
    watch: LeaderWatch
    reply_queue: ReplyQueue
    quotas: QuotaBuckets
    member_quota: MemberQuota
    one_long_read: LongReads
    """See cooperative_yield.py."""
    access: Authorizer
    """Who may do what."""
    one_long_heartbeat: LongReads = field(default_factory=LongReads)
    """Long heartbeats have a place of their own: members are not heard later because of long
    reads."""

    audit: AuditTrail = field(default_factory=AuditTrail)
    """What shard 0 is to record of the calls of operators here."""

    forwarding: Forwarding = field(default_factory=Forwarding)
    """Whether this node passes calls to other coordinators (ADR 35)."""

    def shard_for(self, group_id: str) -> Shard:
        """The shard a group lives in."""
        return self.shards[shard_of(group_id, len(self.shards))]

    def throttled(
        self, principal: str, command: GroupCommand, *amounts: Amount
    ) -> Throttled | None:
        """Charge a command; or how long its caller has to wait, where it is over a quota.

        Where the group is not served here nothing is charged: the call is turned away. A group
        that does not exist is charged as a new one, too.
        """
        quotas = self.quotas
        if not quotas.has_quotas:
            return None
        group_id = command.group_id
        shard = self.shard_for(group_id)
        if shard.coordinator_state is not CoordinatorState.SERVING:
            return None
        if group_id not in shard.state.groups:
            amounts = (*amounts, Amount(QuotaKey.NEW_GROUPS, 1))
        delay_ms = quotas.delay_ms(principal, group_id, amounts)
        return Throttled(delay_ms) if delay_ms else None

    async def loaded(self, shards: Iterable[Shard]) -> None:
        """Hold a call while a shard is loading, 1 s at most (gp-2.0.2)."""
        waiting = [shard for shard in shards if shard.loading]
        if waiting:
            await self.watch.until(
                lambda: all(not shard.loading for shard in waiting),
                LOADING_HOLD_MS,
            )

    async def ask(
        self,
        shard: Shard,
        command: Command,
        size: int,
        on_park: Callable[[], None],
        recheck: Recheck | None = None,
        record: CallRecord | None = None,
        entered: Callable[[], None] | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> Answer:
        """Put a command to a shard and wait for its answer.

        `on_park`, `on_wait`: see `Shard.submit`.

        `recheck` is asked before the log, and when the rules change, until it is answered, but not
        while an entry holds the command: then its outcome is the answer. `record` is told whether
        the command changed something; `entered` is called once it is submitted.
        """
        if shard.loading:
            await self.loaded((shard,))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        told = None if record is None else record.asks()
        settle = self.reply_queue.settle(future)

        def parks() -> None:
            on_park()
            self.access.look(future)  # its right may have gone while it was in an entry

        call = shard.submit(command, size, settle, parks, recheck, told, on_wait)
        if entered is not None:
            entered()
        if recheck is not None:
            asked = replace(recheck, ask=lambda: None if call.in_entry else recheck())
            self.access.hold(future, asked, _as_it_is)
        passed = PASSED_CALL.get()
        try:
            return await future
        finally:
            self.access.release(future)
            if not call.ended:
                shard.abandon(call, with_edge=passed is not None and passed.with_edge)
            if passed is not None and call.offered:
                passed.in_log = True

    async def confirmed(self, shard: Shard, *, settled: bool = False) -> NotHere | Loading | None:
        """None once applied state holds all that was acknowledged before.

        Otherwise who to ask (ReadIndex). `settled`: and all that is under way here, too.
        """
        await self.loaded((shard,))
        if shard.loading:
            return Loading()
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        read = shard.read_settled if settled else shard.read
        read(self.reply_queue.settle(future))
        return None if await future else shard.elsewhere()

    async def readable(
        self, shards: Iterable[Shard], *, linearizable: bool = False, settled: bool = False
    ) -> Unserved:
        """Wait while one of these shards is loading; returns what tells why one is not read here.

        That is asked before each read: a shard may move while others are read. With `linearizable`
        each shard is `confirmed` first, `settled` as there.
        """
        numbered = {shard.number: shard for shard in shards}
        known: dict[int, NotHere | Loading | None] = {}
        if linearizable:
            asked = (self.confirmed(shard, settled=settled) for shard in numbered.values())
            known = dict(zip(numbered, await asyncio.gather(*asked), strict=True))
        else:
            await self.loaded(numbered.values())

        def unserved(shard: Shard) -> NotHere | Loading | None:
            told, state = known.get(shard.number), shard.coordinator_state
            if told is None and state is CoordinatorState.LOADING:
                return Loading()
            if told is None and state.elsewhere:
                return shard.elsewhere()
            return told

        return unserved


def _as_it_is(refused: Refused) -> Answer:
    return refused
