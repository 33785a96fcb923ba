"""A replica whose state differs from two equal others serves nothing (architecture 3 rule 9)."""

from collections.abc import Sequence

import structlog

from coordinator.shard import Shard
from coordinator.verify import Verifier
from raft.contract import Role

log = structlog.get_logger()


class Quarantine:
    """Judges this node's shards by what the other nodes recorded.

    A shard that is outvoted serves nothing, gives up leadership and is loaded anew from its leader.
    Where there is no majority nobody stops.
    """

    def __init__(self, shards: Sequence[Shard], verifier: Verifier) -> None:
        self._shards = shards
        self._verifier = verifier
        self._rebuilding: dict[int, None] = {}
        self.quarantined_total = 0
        self.healed_total = 0

    @property
    def open(self) -> bool:
        """True while a shard is in quarantine: `heal` is wanted."""
        return any(shard.quarantined for shard in self._shards)

    def judge(self) -> None:
        """Look at the latest checkpoints of all nodes."""
        for shard in self._shards:
            if not shard.quarantined and self._verifier.outvoted(shard):
                shard.quarantined = True
                self.quarantined_total += 1
                shard.shard_moved(shard.number)
                log.error("this replica differs from two equal others", shard=shard.number)
        self.heal()

    def heal(self) -> None:
        """Bring quarantined shards a step further: to a follower first, then to the whole state."""
        for shard in self._shards:
            number = shard.number
            if not shard.quarantined:
                if self._rebuilding.pop(number, self) is None:
                    self.healed_total += 1
                    log.info("this replica has its leader's state", shard=number)
            elif shard.log.role is Role.LEADER:
                self._rebuilding.pop(number, None)
                shard.log.transfer_leadership()
            elif number not in self._rebuilding and shard.log.rebuild():
                self._rebuilding[number] = None
