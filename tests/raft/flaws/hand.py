"""Groups driven by hand: nothing happens unless a script says so.

A script moves the clock, ticks one node, delivers one message, cuts one link. The same script runs
on stock SyncObj (`StockGroup`) and on the shipped Replica (`ReplicaGroup`), so that what the first
one breaks is seen to hold on the second. Times are seconds of a virtual clock; indexes and terms
are Raft's; a command is a positive integer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEARTBEAT_S = 0.11
"""A little more than appendEntriesPeriod: a tick after it sends."""


@dataclass(slots=True)
class Answers:
    """What the clients of one group were told."""

    acked: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Options:
    """What a script needs from both subjects. Sizes in bytes, times in seconds."""

    nodes: int = 3
    batch_bytes: int = 1 << 16
    snapshot_chunk_bytes: int = 1 << 16
    keep_entries: int | None = None
    """How much log a compaction keeps; stock SyncObj has no such thing."""
    tmp: Path | None = None


class Group(ABC):
    """One Raft group of `options.nodes` replicas, 0 based, all connected, none elected."""

    stock: bool

    def __init__(self, options: Options) -> None:
        self.options = options
        self.now = 0.0
        self.wires: dict[tuple[int, int], list[Any]] = {}
        self.answers = Answers()
        self.proposed = 0

    def close(self) -> None:
        """Free what the group holds."""
        return

    # -- network

    @abstractmethod
    def connect(self, a: int, b: int) -> None: ...
    @abstractmethod
    def disconnect(self, a: int, b: int) -> None: ...
    @abstractmethod
    def hand_over(self, src: int, dst: int, message: Any) -> None:
        """Give `message` of `src` to `dst` now."""

    def queued(self, src: int, dst: int) -> list[Any]:
        """Messages on their way, oldest first; a script may reorder or copy them."""
        return self.wires.setdefault((src, dst), [])

    def deliver(self, src: int, dst: int, count: int | None = None) -> int:
        """Deliver the oldest `count` messages (None: those queued now); returns how many were."""
        queue = self.queued(src, dst)
        todo = len(queue) if count is None else min(count, len(queue))
        for _ in range(todo):
            self.hand_over(src, dst, queue.pop(0))
        return todo

    def drop(self, src: int, dst: int) -> None:
        self.queued(src, dst).clear()

    def isolate(self, node: int) -> None:
        for other in self.others(node):
            self.disconnect(node, other)

    def others(self, node: int) -> list[int]:
        return [n for n in range(self.options.nodes) if n != node]

    # -- nodes

    @abstractmethod
    def tick(self, node: int, after_s: float = 0.0) -> None: ...
    @abstractmethod
    def campaign(self, node: int, voters: Sequence[int] | None = None) -> None:
        """Make `node` a candidate of a new term; its vote requests are queued, not delivered."""

    def elect(self, node: int, voters: Sequence[int] | None = None) -> None:
        """Make `node` leader of a new term with the votes of `voters` (None: everybody)."""
        chosen = self.others(node) if voters is None else voters
        for _ in range(5):  # a voter may have given the next term's vote to somebody else
            self.campaign(node, chosen)
            for voter in chosen:
                self.deliver(node, voter)
                self.deliver(voter, node)
            if self.leads(node):
                return
        raise AssertionError("the script needs this leader")

    @abstractmethod
    def depose(self, node: int) -> None:
        """End the leadership of `node` without giving it a message of a newer leader."""

    @abstractmethod
    def is_campaigning(self, node: int) -> bool:
        """True if `node` asked anybody for a vote or pre-vote that is still on its way."""

    @abstractmethod
    def hand_leadership_over(self, node: int, to: int) -> bool:
        """Ask the leader `node` to make room for `to`; False if it refused."""

    @abstractmethod
    def enqueue(self, node: int, command: int) -> None:
        """Ask `node` for `command`; the answer goes to `answers`."""

    @abstractmethod
    def crash(self, node: int) -> None: ...
    @abstractmethod
    def restart(self, node: int) -> None: ...
    @abstractmethod
    def compact(self, node: int) -> None:
        """Cut the log at what is applied, so that a follower behind it needs a snapshot."""

    def compact_halfway(self, node: int) -> None:
        """Bring `node` to where a crash hits a compaction worst."""
        self.compact(node)

    @abstractmethod
    def appends(self, src: int, dst: int) -> list[Any]:
        """Those of the queued messages that carry entries."""

    @abstractmethod
    def chunks(self, src: int, dst: int) -> list[Any]:
        """Those of the queued messages that carry a piece of a snapshot."""

    def end_snapshot(self, src: int, dst: int) -> None:
        """Make `src` forget the snapshot that it was sending to `dst`."""
        return

    @abstractmethod
    def plant(self, node: int, command: bytes, from_peer: int) -> None:
        """Let a hostile peer bring `command` before `node`, as far as the subject lets it."""

    def stopped(self, node: int) -> bool:
        """True if `node` ended itself on a broken invariant."""
        return False

    def propose(self, node: int, count: int = 1) -> list[int]:
        commands = list(range(self.proposed + 1, self.proposed + count + 1))
        self.proposed += count
        for command in commands:
            self.enqueue(node, command)
        self.tick(node, 0.001)
        return commands

    def replicate(self, leader: int, peers: Sequence[int], rounds: int = 3) -> None:
        """`rounds` heartbeats of `leader`, each answered by `peers`."""
        for _ in range(rounds):
            self.tick(leader, HEARTBEAT_S)
            for peer in peers:
                self.deliver(leader, peer)
                self.deliver(peer, leader)
        self.tick(leader, 0.001)

    def until(self, step: Callable[[], None], done: Callable[[], bool], tries: int = 60) -> bool:
        """Repeat `step` until `done()`; False if `tries` were not enough."""
        for _ in range(tries):
            if done():
                return True
            step()
        return done()

    # -- what can be seen

    @abstractmethod
    def log(self, node: int) -> list[tuple[int, int]]:
        """(index, term) of the entries in memory."""

    @abstractmethod
    def history(self, node: int) -> list[int]:
        """Commands in the order in which they were applied."""

    @abstractmethod
    def commit_index(self, node: int) -> int: ...
    @abstractmethod
    def applied_index(self, node: int) -> int: ...
    @abstractmethod
    def term(self, node: int) -> int: ...
    @abstractmethod
    def leads(self, node: int) -> bool: ...
    @abstractmethod
    def match_index(self, leader: int, peer: int) -> int: ...
    @abstractmethod
    def set_next_index(self, leader: int, peer: int, index: int) -> None:
        """Stand for messages that were pipelined to a connection and died with it."""

    def end(self, node: int) -> tuple[int, int]:
        return self.log(node)[-1]

    def lost(self, node: int) -> list[int]:
        """Commands whose clients were told of success and that `node` never applied."""
        return [c for c in self.answers.acked if c not in self.history(node)]
