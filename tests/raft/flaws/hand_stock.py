"""Stock SyncObj 0.3.17 under the hand: see hand.py."""

from collections.abc import Sequence
from typing import Any

import pysyncobj.syncobj as library
import pytest
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated
from pysyncobj.journal import MemoryJournal
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from tests.raft.flaws.hand import Group, Options


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
