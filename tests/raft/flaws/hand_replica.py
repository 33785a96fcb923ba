"""The shipped Replica under the same hand: driver, journal and codec over a store in memory.

What a node writes is synced at once, so that a script sees protocol and no disk. Elections start in
`tick` alone; while messages are handed over, deadlines are out of sight.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from muster.v1 import peer_pb2 as pb
from musterd.raft import codec
from musterd.raft.codec import CodecError, Message
from musterd.raft.contract import (
    Applied,
    Examination,
    NodeId,
    Outcome,
    Role,
    ShardId,
    StateBatch,
    StateView,
)
from musterd.raft.driver import Driver
from musterd.raft.identity import Identity, write_identity
from musterd.raft.replica.pysyncobj_adapter import NEVER
from musterd.raft.replica.replica import Replica
from musterd.raft.settings import RaftSettings
from musterd.storage import keys
from musterd.storage.memory import MemoryStore
from musterd.storage.store import Family
from tests.raft.flaws.hand import Group, Options

SHARD = ShardId(0)
ENTRY_BYTES = 64 + 9
"""What the journal reckons for one command of these scripts."""


class Commands:
    """Remembers commands, as state keys too; raises on a negative one."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def apply(self, index: int, term: int, entry: bytes, batch: StateBatch) -> object:
        command = int.from_bytes(entry, "big", signed=True)
        if command < 0:
            raise ValueError(command)
        self.seen.append(command)
        batch.put(index.to_bytes(8, "big"), entry)
        return command

    def reload(self, view: StateView) -> None:
        self.seen = [int.from_bytes(value, "big", signed=True) for _, value in view.scan()]

    def examine(self) -> Examination:
        return lambda _key, _value: True

    def role_changed(self, role: Role, term: int) -> None:
        return


class _Node:
    """One process and its disk; `driver` is None while it is down."""

    def __init__(self, group: "ReplicaGroup", number: int) -> None:
        self.group, self.number = group, number
        self.store = MemoryStore()
        members = tuple(range(group.options.nodes))
        uuid = bytes([number + 1]) * 16
        write_identity(self.store, Identity("hand", number, uuid, 1, members))
        self.store.batch.put(Family.META, keys.INTRODUCED, b"")
        self.store.write()
        self.store.sync()
        self.driver: Driver | None = None
        self.machine = Commands()
        self.failure: Exception | None = None

    def start(self) -> None:
        self.machine = Commands()
        clock, settings = self.group.read_clock, self.group.settings
        self.driver = Driver(
            self.store, lambda _: self.machine, self, clock, Random(self.number), settings
        )
        self.driver.start()

    def send(self, node: int, frame: bytes, bulk: bool) -> bool:
        """musterd.raft.driver.Link: one message a frame, so that a script can pick."""
        sender, messages = codec.decode_frame(frame)
        for one in messages:
            self.group.queued(self.number, node).append(codec.encode_frame(sender, [one]))
        return True

    def hang_up(self, node: int) -> None:
        self.group.disconnect(self.number, node)


class ReplicaGroup(Group):
    """musterd.raft.replica.replica.Replica by hand."""

    stock = False

    def __init__(self, options: Options, _patch: object = None) -> None:
        super().__init__(options)
        self._micro = 0.0
        self._links: set[frozenset[int]] = set()
        self.settings = RaftSettings(
            message_bytes=options.batch_bytes,
            chunk_bytes=options.snapshot_chunk_bytes,
            log_trim_bytes=1,
        )
        if options.keep_entries is not None:
            self.settings = replace(
                self.settings, log_disk_bytes=options.keep_entries * ENTRY_BYTES
            )
        self.nodes = [_Node(self, n) for n in range(options.nodes)]
        for node in self.nodes:
            node.start()
        for a in range(options.nodes):
            for b in range(a):
                self.connect(a, b)

    def read_clock(self) -> float:
        self._micro += 1e-6
        return 1.0 + self.now + self._micro

    def driver(self, node: int) -> Driver:
        found = self.nodes[node].driver
        assert found is not None, f"node {node} is down"
        return found

    def replica(self, node: int) -> Replica:
        return self.driver(node).replicas[SHARD]

    def _run(self, node: int, step: Callable[[], None], *, elects: bool = False) -> None:
        """Run `step` and turns until the node is quiet; what is written is durable at once."""
        owner = self.nodes[node]
        if owner.failure is not None:
            return  # its process has ended
        replica = self.replica(node)
        hidden = replica._election_deadline
        if not elects:
            replica._election_deadline = NEVER
        self._micro = 0.0
        try:
            step()
            for _ in range(20):
                self.driver(node).turn()
                if owner.store.synced_epoch == owner.store.written_epoch and not replica.busy:
                    break
                owner.store.sync()
        except Exception as error:
            owner.failure = error
            raise
        if not elects and replica._election_deadline == NEVER:
            replica._election_deadline = hidden

    # -- network

    def connect(self, a: int, b: int) -> None:
        link = frozenset((a, b))
        if link in self._links or None in (self.nodes[a].driver, self.nodes[b].driver):
            return
        self._links.add(link)
        for x, y in ((a, b), (b, a)):
            assert self.driver(y).accept_hello(self.driver(x).hello(pb.LANE_CONTROL)) is None
        for x, y in ((a, b), (b, a)):
            self._run(x, lambda x=x, y=y: self.driver(x).connected(y))  # type: ignore[misc]

    def disconnect(self, a: int, b: int) -> None:
        if frozenset((a, b)) not in self._links:
            return
        self._links.discard(frozenset((a, b)))
        for x, y in ((a, b), (b, a)):
            if self.nodes[x].driver is not None:
                self.driver(x).disconnected(y, control=True)

    def hand_over(self, src: int, dst: int, message: Any) -> None:
        if self.nodes[dst].driver is not None:
            self._run(dst, lambda: self.driver(dst).receive(src, message))

    def decoded(self, src: int, dst: int) -> list[tuple[bytes, Message]]:
        """Queued frames with what they say."""
        return [(f, codec.decode_frame(f)[1][0][1]) for f in self.queued(src, dst)]

    def appends(self, src: int, dst: int) -> list[Any]:
        return [f for f, m in self.decoded(src, dst) if m.get("entries")]

    def chunks(self, src: int, dst: int) -> list[Any]:
        return [f for f, m in self.decoded(src, dst) if m["type"] == "snapshot_chunk"]

    def end_snapshot(self, src: int, dst: int) -> None:
        self.replica(src)._snapshots.cancel(dst)

    # -- nodes

    def tick(self, node: int, after_s: float = 0.0) -> None:
        self.now += after_s
        if self.nodes[node].failure is None:
            self._run(node, self._timer(node), elects=True)

    def _timer(self, node: int) -> Callable[[], None]:
        def step() -> None:
            self.driver(node).timer()
            self.driver(node).mark_all()

        return step

    def campaign(self, node: int, voters: Sequence[int] | None = None) -> None:
        self.now += 1.0  # long enough that no voter still hears a leader
        replica = self.replica(node)
        replica._election_deadline = 0.0
        self._run(node, self._timer(node), elects=True)
        for voter in self.others(node) if voters is None else voters:
            self._pass_on(node, voter, "pre_vote")
            self._pass_on(voter, node, "pre_vote_reply")
        if replica._pre_vote.won is not None:
            replica._election_deadline = 0.0
            self._run(node, self._timer(node), elects=True)

    def _pass_on(self, src: int, dst: int, kind: str) -> None:
        for frame, message in self.decoded(src, dst):
            if message["type"] == kind:
                self.queued(src, dst).remove(frame)
                self.hand_over(src, dst, frame)

    def depose(self, node: int) -> None:
        self.tick(node, 1.0)  # check quorum
        assert not self.leads(node)

    def is_campaigning(self, node: int) -> bool:
        kinds = {m["type"] for other in self.others(node) for _, m in self.decoded(node, other)}
        return bool(kinds & {"pre_vote", "request_vote"})

    def hand_leadership_over(self, node: int, to: int) -> bool:
        return self.replica(node).transfer_leadership(NodeId(to))

    def enqueue(self, node: int, command: int) -> None:
        def done(outcome: Outcome) -> None:
            told = self.answers.acked if isinstance(outcome, Applied) else self.answers.refused
            told.append(command)

        self.replica(node).propose(command.to_bytes(8, "big", signed=True), done)

    def crash(self, node: int) -> None:
        owner = self.nodes[node]
        for other in self.others(node):
            self.disconnect(node, other)
            self.drop(node, other)
        owner.driver = None
        owner.store = owner.store.crash()

    def restart(self, node: int) -> None:
        self.nodes[node].start()
        for other in self.others(node):
            self.connect(node, other)

    def compact(self, node: int) -> None:
        self.tick(node, 0.001)
        if self.options.keep_entries is None:  # cut as much as a trim ever may
            journal = self.replica(node).journal
            journal._settings = replace(self.settings, log_disk_bytes=0)
            journal.trim(self.applied_index(node))
            journal._settings = self.settings

    def plant(self, node: int, command: bytes, from_peer: int) -> None:
        try:
            self.driver(node).receive(from_peer, command)
        except CodecError:
            self.refused_frames += 1
        foreign = {"type": "apply_command", "term": self.term(node), "command": command}
        self._run(node, lambda: self.replica(node).receive(from_peer, foreign))

    refused_frames = 0

    def stopped(self, node: int) -> bool:
        return self.nodes[node].failure is not None

    # -- what can be seen

    def log(self, node: int) -> list[tuple[int, int]]:
        journal = self.replica(node).journal
        indexes = range(journal.first_index, journal.last_index + 1)
        return [(index, journal.term_at(index)) for index in indexes]

    def history(self, node: int) -> list[int]:
        return list(self.nodes[node].machine.seen)

    def commit_index(self, node: int) -> int:
        return self.replica(node).commit_index

    def applied_index(self, node: int) -> int:
        return self.replica(node).applied_index

    def term(self, node: int) -> int:
        return self.replica(node).term

    def leads(self, node: int) -> bool:
        return self.replica(node).leads

    def match_index(self, leader: int, peer: int) -> int:
        replica = self.replica(leader)
        return replica._match[replica._by_id[peer]]

    def set_next_index(self, leader: int, peer: int, index: int) -> None:
        replica = self.replica(leader)
        replica._next[replica._by_id[peer]] = index
        replica._progress[replica._by_id[peer]].clear()
