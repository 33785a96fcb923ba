"""Groups driven by hand: nothing happens unless a script says so.

A script moves the clock, ticks one node, delivers one message, cuts one link. The same script runs
on stock SyncObj (`StockGroup`) and on the shipped Replica (`ReplicaGroup`), so that what the first
one breaks is seen to hold on the second. Times are seconds of a virtual clock; indexes and terms
are Raft's; a command is a positive integer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pysyncobj.syncobj as library
import pytest
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated
from pysyncobj.journal import MemoryJournal
from pysyncobj.node import Node
from pysyncobj.transport import Transport

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


# -- stock


class PlainNode(Node):
    """A node that is a number."""

    def __str__(self) -> str:
        return str(self.id)


class NoPoller:
    """Stock SyncObj polls sockets in each tick; there are none."""

    def poll(self, _timeout: float) -> None:
        return


class Seeded:
    """Stands for the module `random` in the library: scripts do not depend on chance."""

    def random(self) -> float:
        return 0.5


class Wire(Transport):
    """Puts what a node sends on the group's wires."""

    def __init__(self, group: "StockGroup", me: int) -> None:
        super().__init__(None, None, [])
        self.group, self.me = group, me

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        if not self.group.is_up(self.me, node.id):
            return False
        copy = dict(message)
        if "entries" in copy:
            copy["entries"] = list(copy["entries"])
        self.group.queued(self.me, node.id).append(copy)
        return True

    def destroy(self) -> None:
        return


class Counter(SyncObj):
    """Unmodified SyncObj with one replicated method."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seen: list[int] = []
        super().__init__(*args, **kwargs)
        self._SyncObj__properies.discard("seen")

    @replicated
    def note(self, command: int) -> int:
        if command < 0:
            raise ValueError(command)
        self.seen.append(command)
        return command


class StockGroup(Group):
    """SyncObj 0.3.17 as it comes, on a journal where every write is durable at once.

    So no power cut helps a flaw to show.
    """

    stock = True

    def __init__(self, options: Options, patch: pytest.MonkeyPatch) -> None:
        super().__init__(options)
        self._micro = 0.0
        self._links: set[frozenset[int]] = set()
        self._serializers: list[Any] = []
        self._journals = [MemoryJournal() for _ in range(options.nodes)]
        self._next_journal: MemoryJournal | None = None
        patch.setattr(library, "monotonicTime", self._read_clock)
        patch.setattr(library, "random", Seeded())
        patch.setattr(library, "createPoller", lambda _kind: NoPoller())
        patch.setattr(library, "createJournal", lambda _file: self._next_journal)
        self.objs: list[Counter | None] = [self._make(i) for i in range(options.nodes)]
        for a in range(options.nodes):
            for b in range(a):
                self.connect(a, b)

    def _read_clock(self) -> float:
        self._micro += 5e-5  # code takes time: the library has loops that only the clock ends
        return self.now + self._micro

    def _make(self, node: int) -> Counter:
        self._next_journal = self._journals[node]
        dump = str(self.options.tmp / f"dump{node}") if self.options.tmp else None
        conf = SyncObjConf(
            autoTick=False,
            raftMinTimeout=0.4,
            raftMaxTimeout=0.9,
            appendEntriesPeriod=0.1,
            leaderFallbackTimeout=30.0,
            appendEntriesBatchSizeBytes=self.options.batch_bytes,
            logCompactionBatchSize=self.options.snapshot_chunk_bytes,
            logCompactionMinEntries=10**6,
            logCompactionMinTime=10**9,
            fullDumpFile=dump,
            useFork=False,
        )
        peers = [PlainNode(i) for i in self.others(node)]
        made = Counter(PlainNode(node), peers, conf=conf, transport=Wire(self, node))
        made.doTick(0)
        self._serializers.append(made._SyncObj__serializer)
        return made

    def close(self) -> None:
        """Close the dumps that the library leaves open."""
        for serializer in self._serializers:
            files = [one.get("file") for one in serializer._Serializer__transmissions.values()]
            for file in (*files, serializer._Serializer__incomingTransmissionFile):
                if file is not None:
                    file.close()

    def obj(self, node: int) -> Any:
        found = self.objs[node]
        assert found is not None, f"node {node} is down"
        return found

    def is_up(self, a: int, b: int) -> bool:
        return frozenset((a, b)) in self._links

    def connect(self, a: int, b: int) -> None:
        if self.is_up(a, b) or self.objs[a] is None or self.objs[b] is None:
            return
        self._links.add(frozenset((a, b)))
        for x, y in ((a, b), (b, a)):
            self.obj(x)._SyncObj__onNodeConnected(PlainNode(y))

    def disconnect(self, a: int, b: int) -> None:
        if not self.is_up(a, b):
            return
        self._links.discard(frozenset((a, b)))
        for x, y in ((a, b), (b, a)):
            if self.objs[x] is not None:
                self.obj(x)._SyncObj__onNodeDisconnected(PlainNode(y))

    def hand_over(self, src: int, dst: int, message: dict[str, Any]) -> None:
        if self.objs[dst] is not None:
            self.obj(dst)._SyncObj__onMessageReceived(PlainNode(src), dict(message))

    def tick(self, node: int, after_s: float = 0.0) -> None:
        self.now += after_s
        self._micro = 0.0
        self.obj(node).doTick(0)

    def campaign(self, node: int, voters: Sequence[int] | None = None) -> None:
        self.obj(node)._SyncObj__raftElectionDeadline = 0
        self.tick(node, 0.001)

    def depose(self, node: int) -> None:
        request = {
            "type": "request_vote",
            "term": self.term(node) + 1,
            "last_log_index": 1,
            "last_log_term": 0,
        }
        self.hand_over(self.others(node)[0], node, request)
        assert not self.leads(node)

    def is_campaigning(self, node: int) -> bool:
        return any(
            m["type"] == "request_vote" for o in self.others(node) for m in self.queued(node, o)
        )

    def hand_leadership_over(self, node: int, to: int) -> bool:
        errors: list[int] = []
        self.obj(node).transferLeadership(PlainNode(to), lambda _r, error: errors.append(error))
        return errors == [FAIL_REASON.SUCCESS]

    def enqueue(self, node: int, command: int) -> None:
        def done(_result: Any, error: int) -> None:
            (self.answers.refused if error else self.answers.acked).append(command)

        self.obj(node).note(command, callback=done)

    def crash(self, node: int) -> None:
        self.isolate(node)
        for other in self.others(node):
            self.drop(node, other)
        self.objs[node] = None

    def restart(self, node: int) -> None:
        self.objs[node] = self._make(node)
        for other in self.others(node):
            self.connect(node, other)

    def compact(self, node: int) -> None:
        self.obj(node).forceLogCompaction()
        self.tick(node, 0.001)
        self.tick(node, 0.001)

    def compact_halfway(self, node: int) -> None:
        self.obj(node).forceLogCompaction()
        self.tick(node, 0.001)  # the dump is written, the journal is trimmed in the next tick

    def appends(self, src: int, dst: int) -> list[Any]:
        return [m for m in self.queued(src, dst) if m.get("entries")]

    def chunks(self, src: int, dst: int) -> list[Any]:
        return [m for m in self.queued(src, dst) if m.get("serialized")]

    def plant(self, node: int, command: bytes, from_peer: int) -> None:
        self.hand_over(from_peer, node, {"type": "apply_command", "command": command})
        self.tick(node, 0.001)

    def log(self, node: int) -> list[tuple[int, int]]:
        return [(e[1], e[2]) for e in self.obj(node)._SyncObj__raftLog[:]]

    def history(self, node: int) -> list[int]:
        return list(self.obj(node).seen)

    def commit_index(self, node: int) -> int:
        return int(self.obj(node)._SyncObj__raftCommitIndex)

    def applied_index(self, node: int) -> int:
        return int(self.obj(node)._SyncObj__raftLastApplied)

    def term(self, node: int) -> int:
        return int(self.obj(node)._SyncObj__raftCurrentTerm)

    def leads(self, node: int) -> bool:
        return bool(self.obj(node)._isLeader())

    def match_index(self, leader: int, peer: int) -> int:
        return int(self.obj(leader)._SyncObj__raftMatchIndex[PlainNode(peer)])

    def set_next_index(self, leader: int, peer: int, index: int) -> None:
        self.obj(leader)._SyncObj__raftNextIndex[PlainNode(peer)] = index


@contextmanager
def ignoring(*kinds: type[Exception]) -> Iterator[list[Exception]]:
    """Collect exceptions that a script expects instead of ending it."""
    seen: list[Exception] = []
    try:
        yield seen
    except kinds as error:
        seen.append(error)
