"""Disks on which no sync ends for seconds or minutes, and what a node may do meanwhile.

What is written goes to memory, so the node runs on: it can append, answer and promise nothing.
"""

from collections import deque
from typing import Final

from musterd.chaos.sim.engine.world import Injector
from musterd.raft.codec import Message
from musterd.raft.settings import RaftSettings

HANG_S: Final = (5.0, 60.0)
POLL_S: Final = 0.05
"""So often it is looked whether a sync that hangs has ended."""

_CLOCK_RATE_MIN: Final = 0.93
"""Of a node's clock; faults.py."""
_SLACK_S: Final = 0.3
"""Turns, timers and frames that wait for each other."""


def hang(faults: Injector) -> bool:
    """Let the syncs of a leader hang; one node's at a time: others can keep promises."""
    world = faults.world
    nodes = world.nodes
    leaders = [node for node in nodes if node.alive and node.leads]
    if not leaders or any(node.sync_hangs_until_s > world.now for node in nodes):
        return False
    low, high = HANG_S
    node = faults.rng.choice(leaders)
    node.sync_hangs_until_s = world.now + low + (high - low) * faults.rng.random()
    return True


class Unsynced:
    """Since when hard writes of one process wait for the disk, by the simulator's own account."""

    def __init__(self) -> None:
        self._writes: deque[tuple[int, float]] = deque()

    def restart(self) -> None:
        """A new process has written nothing."""
        self._writes.clear()

    def written(self, epoch: int, now_s: float) -> None:
        """A hard epoch has left the process."""
        self._writes.append((epoch, now_s))

    def synced(self, epoch: int) -> None:
        """The disk has everything up to `epoch`."""
        while self._writes and self._writes[0][0] <= epoch:
            self._writes.popleft()

    def age_s(self, now_s: float, awake_s: float) -> float:
        """How long the oldest has waited while the process ran on; it last woke at `awake_s`."""
        return now_s - max(self._writes[0][1], awake_s) if self._writes else 0.0


def may_not_vote(age_s: float, settings: RaftSettings) -> bool:
    """Whether a node whose write has waited so long has to keep out of pre-votes."""
    return age_s > settings.sync_stall_ms / 1000 / _CLOCK_RATE_MIN + _SLACK_S


def may_not_lead(age_s: float, settings: RaftSettings) -> bool:
    """Whether it has to have left its shards: it may first try to hand them over."""
    patience_ms = settings.sync_stall_ms + settings.transfer_ms
    return age_s > patience_ms / 1000 / _CLOCK_RATE_MIN + _SLACK_S


def takes_part(message: Message) -> bool:
    """Whether a message asks for a pre-vote or grants one."""
    return message["type"] == "pre_vote" or bool(
        message["type"] == "pre_vote_reply" and message["granted"]
    )
