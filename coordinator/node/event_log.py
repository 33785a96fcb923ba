"""Log lines of what happens to a node and to the groups it coordinates (docs/logs.md).

Nothing is logged per commit, per heartbeat or per Join: a line stands for something that a person
who looks for the cause of a pause wants to read.
"""

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from musterd.coordinator.machine.commands import OffsetCommit
from musterd.coordinator.machine.events import (
    AssignmentPublished,
    ConsumerRemoved,
    Event,
    GroupEmptied,
    MemberRemoved,
    RebalanceStarted,
    RemovalCause,
    SpecChanged,
    TargetStored,
)
from musterd.coordinator.machine.evolve_history import last_round
from musterd.coordinator.machine.history import RoundEnd
from musterd.coordinator.machine.shard_state import CommandResult, Entry
from musterd.coordinator.runtime.claims import Claim
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.unowned import UnownedNotice
from musterd.raft.contract import NodeId, Role, ShardId
from musterd.raft.notices import (
    ElectionLost,
    ElectionWon,
    LeadershipLost,
    Notice,
    PeerConnected,
    PeerLost,
    SnapshotInstalled,
    SnapshotSent,
)

log = structlog.get_logger()

EXPIRED: Final = frozenset(
    {
        RemovalCause.SESSION_EXPIRED,
        RemovalCause.NOT_REJOINED,
        RemovalCause.NOT_SYNCED,
        RemovalCause.NOT_RELEASED,
        RemovalCause.NOT_BACK,
    }
)
"""How members go that were not heard of in time."""


class EventLog:
    """`noticed` is an observer of the driver; `applied`, `claimed` and `unowned` of every shard."""

    def __init__(self, shards: Sequence[Shard], clock_s: Callable[[], float]) -> None:
        self._shards = shards
        self._clock_s = clock_s
        self._lost_at: dict[NodeId, float] = {}

    def watch_shards(self) -> None:
        """Have every shard tell of what it applies, what members claim, and what is nobody's."""
        for shard in self._shards:
            shard.subscribe(self.applied)
            shard.subscribe_claims(self.claimed)
            shard.subscribe_unowned(self.unowned)

    def noticed(self, notice: Notice) -> None:
        """Log what the Raft layer tells."""
        match notice:
            case ElectionWon():
                log.info(
                    "election won", shard=notice.shard, term=notice.term, cause=notice.cause.value
                )
            case ElectionLost():
                log.info(
                    "election lost", shard=notice.shard, term=notice.term, cause=notice.cause.value
                )
            case LeadershipLost(to=None):
                log.info("leadership lost", shard=notice.shard, term=notice.term)
            case LeadershipLost():
                log.info("shard handed over", shard=notice.shard, term=notice.term, to=notice.to)
            case PeerConnected():
                lost_at = self._lost_at.pop(notice.node, None)
                away_s = None if lost_at is None else round(self._clock_s() - lost_at, 3)
                log.info("peer connected", peer=notice.node, away_s=away_s)
            case PeerLost():
                self._lost_at[notice.node] = self._clock_s()
                log.info("peer lost", peer=notice.node)
            case SnapshotSent():
                log.info("snapshot sent", shard=notice.shard, to=notice.node, index=notice.index)
            case SnapshotInstalled():
                log.info(
                    "snapshot installed",
                    shard=notice.shard,
                    sender=notice.node,
                    index=notice.index,
                )

    def applied(
        self, shard: ShardId, _index: int, _entry: Entry, results: Sequence[CommandResult]
    ) -> None:
        """Log the events of one entry, if this node leads the shard.

        Each is logged once by a node; where the leader changes before all have applied the entry,
        the next one says the same.
        """
        if self._shards[shard].log.role is not Role.LEADER:
            return
        for result in results:
            if type(result.command) is not OffsetCommit:
                for event in result.events:
                    self._group_event(shard, event)

    def claimed(self, shard: ShardId, claims: Sequence[Claim]) -> None:
        """Log that a member reports partitions that are others': the first, and how many."""
        first = claims[0]
        log.warning(
            "a member reports a partition that is another's",
            shard=shard,
            group=first.group_id,
            member=first.claimant,
            owner=first.owner,
            topic=first.topic,
            partition=first.partition,
            partitions=len(claims),
        )

    def unowned(self, shard: ShardId, notice: UnownedNotice) -> None:
        """Log that partitions of a group are nobody's for long, or that none is any more."""
        if notice.partitions:
            log.warning(
                "partitions of a group have no owner",
                shard=shard,
                group=notice.group_id,
                topic=notice.topic,
                partition=notice.partition,
                reason=notice.why.value,
                partitions=notice.partitions,
                lasted_ms=notice.lasted_ms,
            )
        else:
            log.info(
                "no partition of a group is without an owner any more",
                shard=shard,
                group=notice.group_id,
                topic=notice.topic,
                partition=notice.partition,
                reason=notice.why.value,
                lasted_ms=notice.lasted_ms,
            )

    def _group_event(self, shard: ShardId, event: Event) -> None:
        match event:
            case MemberRemoved() | ConsumerRemoved() if event.cause in EXPIRED:
                log.info(
                    "member expired",
                    shard=shard,
                    group=event.group_id,
                    member=event.member_id,
                    cause=event.cause.name.lower(),
                    reason=event.reason,
                )
            case RebalanceStarted():
                log.info(
                    "rebalance begun",
                    shard=shard,
                    group=event.group_id,
                    round=event.round,
                    trigger=event.trigger.name.lower(),
                    member=event.member_id,
                    client=event.client_id,
                    instance=event.group_instance_id,
                    reason=event.reason,
                    members=event.members_before,
                )
            case AssignmentPublished():
                self._ended(shard, event, RoundEnd.STABLE)
            case GroupEmptied():
                self._ended(shard, event, RoundEnd.EMPTIED)
            case SpecChanged():
                log.info(
                    "what plans are made from has changed",
                    shard=shard,
                    group=event.group_id,
                    epoch=event.epoch,
                    trigger=event.trigger.name.lower(),
                    member=event.member_id,
                    reason=event.reason,
                )
            case TargetStored() if event.target_epoch:
                log.info(
                    "the target is in force",
                    shard=shard,
                    group=event.group_id,
                    epoch=event.target_epoch,
                )
            case _:
                pass

    def _ended(
        self, shard: ShardId, event: AssignmentPublished | GroupEmptied, ended: RoundEnd
    ) -> None:
        """Its cause, size and time come from the round's history, which rules 1 did not keep."""
        group = self._shards[shard].state.groups.get(event.group_id)
        kept = last_round(group) if group else None
        if kept is not None and kept.ended is not ended:
            kept = None  # a later command of the same entry opened another round
        log.info(
            "rebalance ended",
            shard=shard,
            group=event.group_id,
            ended=ended.value,
            generation=event.generation,
            trigger=kept.trigger.name.lower() if kept else None,
            members=kept.members_after if kept else None,
            took_ms=(kept.joining_ms or 0) + (kept.syncing_ms or 0) if kept else None,
        )
