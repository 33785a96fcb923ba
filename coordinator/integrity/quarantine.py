"""A replica whose state a majority contradicts serves nothing (arch-3.9)."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

import structlog

from musterd.coordinator.integrity.verify import Verifier
from musterd.coordinator.runtime.shard import Shard
from musterd.raft.contract import ShardId

log = structlog.get_logger()


class Quarantine:
    """Judges this node's shards by what the other nodes recorded.

    A shard that is outvoted serves nothing, gives up leadership and is loaded anew from a leader of
    the majority, restarts or not: its log sees to that. Where there is no majority nobody stops.
    """

    def __init__(self, shards: Sequence[Shard], verifier: Verifier) -> None:
        self._shards = shards
        self._verifier = verifier
        self._open: set[ShardId] = set()
        self.begun_total: Counter[ShardId] = Counter()
        """How often each shard's replica here was outvoted, since the start."""
        self.conflicts: set[ShardId] = set()
        """The shards whose replicas differ where no majority says which are right."""
        for shard in shards:
            if shard.log.differing or shard.log.set_aside:
                self.conflicts.add(shard.number)
            if shard.quarantined:
                log.warning("this replica is still in quarantine", shard=shard.number)
                self._count(shard)
            shard.subscribe_reload(partial(self._reloaded, shard))

    def judge(self) -> None:
        """Look at the latest checkpoints of all nodes."""
        for shard in self._shards:
            majority = self._verifier.outvoted_by(shard)
            if majority:
                shard.log.rebuild(majority)
                self._begin(shard, majority)
            if self._verifier.confirmed(shard):
                shard.log.confirm_copy()
            conflict = self._verifier.conflict(shard)
            if not shard.quarantined:
                shard.log.note_differing(self._verifier.differing(shard))
            if conflict and shard.number not in self.conflicts:
                log.error(
                    "replicas differ, and no majority agrees",
                    shard=shard.number,
                    others=sorted(shard.log.differing),
                )
            if conflict:
                self.conflicts.add(shard.number)
            elif conflict is False:
                self.conflicts.discard(shard.number)
                shard.log.drop_set_aside()

    def _begin(self, shard: Shard, majority: Sequence[int]) -> None:
        if shard.number not in self._open:
            self._count(shard)
            shard.node.shard_moved(shard.number)
            log.error(
                "this replica differs from a majority of the nodes",
                shard=shard.number,
                majority=list(majority),
            )

    def _count(self, shard: Shard) -> None:
        self._open.add(shard.number)
        self.begun_total[shard.number] += 1

    def _reloaded(self, shard: Shard) -> None:
        if shard.number in self._open and not shard.quarantined:  # what came is no old state
            self._open.remove(shard.number)
            log.info("this replica has its leader's state", shard=shard.number)
