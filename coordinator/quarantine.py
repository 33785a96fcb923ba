"""A replica whose state differs from two equal others serves nothing (architecture 3 rule 9)."""

from collections.abc import Sequence

import structlog

from coordinator.shard import Shard
from coordinator.verify import Verifier
from raft.contract import Role

log = structlog.get_logger()


class Quarantine:
    """Judges this node's shards by what the other nodes recorded.

    Where there is no majority, nobody stops.
    """

    def __init__(self, shards: Sequence[Shard], verifier: Verifier) -> None:
        self._shards = shards
        self._verifier = verifier
        self.quarantined_total = 0

    def judge(self) -> None:
        """Look at the latest checkpoints; a shard that is outvoted gives up leadership."""
        for shard in self._shards:
            if not shard.quarantined and self._verifier.outvoted(shard):
                shard.quarantined = True
                self.quarantined_total += 1
                shard.shard_moved(shard.number)
                log.critical(
                    "this replica differs from two equal others and is quarantined; rebuild the "
                    "node: move its data directory away, muster init, muster cluster replace-node",
                    shard=shard.number,
                )
            if shard.quarantined and shard.log.role is Role.LEADER:
                shard.log.transfer_leadership()
