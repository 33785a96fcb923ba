"""A node without a network: log, state and checkpoints as the product lays them out, in memory.

`run` makes entries of commands and applies them; `Script` knows how a group lives, so that a test
says what happens rather than every field of every command.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from muster.v1.group_pb2 import ConsumerAssignment, TopicPartitions
from musterd.coordinator.codec import encode_entry
from musterd.coordinator.machine.commands import (
    JOIN_EPOCH,
    UNCHANGED_MS,
    Assignment,
    Checkpoint,
    CloseRound,
    Command,
    ConsumerGroupHeartbeat,
    ExpireMember,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    PartitionCommit,
    PartitionSet,
    Protocol,
    Reconcile,
    StoreTarget,
    SyncGroup,
)
from musterd.coordinator.machine.envelope import FORMAT
from musterd.coordinator.machine.limits import LIMITS, LIMITS_VERSION
from musterd.coordinator.machine.modern.spec import changes_of, spec_of
from musterd.coordinator.machine.modern.topics import unknown_topics
from musterd.coordinator.machine.plan import Part, plan
from musterd.coordinator.machine.shard_state import CommandResult, Entry, ShardState, apply_entry
from musterd.coordinator.machine.state import deadlines
from musterd.coordinator.runtime.persist import Persist
from musterd.levels import LEVEL
from musterd.raft.identity import Identity, write_identity
from musterd.raft.log_format import encode_number, encode_value
from musterd.storage import keys
from musterd.storage.memory import MemoryStore
from musterd.storage.store import Family

CLUSTER = "c1"
WALL_MS = 1_700_000_000_000


class _Batch:
    """musterd.raft.contract.StateBatch over the store's pending write."""

    def __init__(self, store, shard, snapshot_id):
        self._batch = store.batch
        self._state = keys.state_prefix(shard, snapshot_id)
        self._meta = keys.shard_meta_prefix(shard)

    def put(self, key, value):
        self._batch.put(Family.STATE, self._state + key, value)

    def put_all(self, pairs):
        for key, value in pairs:
            self.put(key, value)

    def delete(self, key):
        self._batch.delete(Family.STATE, self._state + key)

    def delete_prefix(self, prefix):
        start = self._state + prefix
        self._batch.delete_range(Family.STATE, start, keys.after(start))

    def put_meta(self, key, value):
        self._batch.put(Family.META, self._meta + key, value)

    def delete_meta(self, key):
        self._batch.delete(Family.META, self._meta + key)


@dataclass
class _Replica:
    state: ShardState
    persist: Persist
    last: int = 1
    snapshot_id: int = 1
    first: int = 1


class FakeNode:
    """Several shards; a write is visible to the exporter after its next `catch_up`."""

    def __init__(self, node=1, shards=1, cluster_id=CLUSTER):
        self.node, self.cluster_id = node, cluster_id
        self.store = MemoryStore()
        self.replicas = {shard: _Replica(ShardState(), Persist()) for shard in range(shards)}
        self.time_ms, self.wall_ms, self.term = 1_000, WALL_MS, 1
        write_identity(self.store, Identity(cluster_id, node, bytes(16), shards, (node,)))
        self.store.write()

    def _log(self, shard, index, term, command):
        self.store.batch.put(Family.LOG, keys.log_key(shard, index), encode_value(command, term))

    def _applied(self, shard, index):
        self.store.batch.put(Family.META, keys.applied_key(shard), encode_number(index))

    def state(self, shard=0):
        """The live state."""
        return self.replicas[shard].state

    def advance(self, ms):
        """Shard time and wall clock move on."""
        self.time_ms += ms
        self.wall_ms += ms

    def run(self, *commands: Command, shard=0) -> tuple[CommandResult, ...]:
        """One entry, committed and applied."""
        replica = self.replicas[shard]
        replica.last += 1
        entry = Entry(FORMAT, LEVEL, self.time_ms, self.wall_ms, LIMITS_VERSION, tuple(commands))
        self._log(shard, replica.last, self.term, b"\x00" + encode_entry(entry))
        results = apply_entry(replica.state, entry, replica.last)
        batch = _Batch(self.store, shard, replica.snapshot_id)
        replica.persist.write(batch, replica.last, replica.state, results)
        self._applied(shard, replica.last)
        self.store.write()
        return results

    def raw(self, command: bytes, shard=0):
        """An entry that is not one of commands, such as a leader's no-op (kind 1)."""
        replica = self.replicas[shard]
        replica.last += 1
        self._log(shard, replica.last, self.term, command)
        self._applied(shard, replica.last)
        self.store.write()

    def checkpoint(self, shard=0):
        """Every replica records its digest."""
        return self.run(Checkpoint(), shard=shard)

    def trim(self, upto, shard=0):
        """The log forgets entries up to `upto`."""
        start, end = keys.log_key(shard, 0), keys.log_key(shard, upto + 1)
        self.store.batch.delete_range(Family.LOG, start, end)
        self.store.write()

    def follower(self, node):
        """Another node with the same log and state (not its checkpoints' meta.

        That is each replica's own).
        """
        other = FakeNode(node, len(self.replicas), self.cluster_id)
        for family in (Family.LOG, Family.STATE, Family.META):
            for key, value in self.store.scan(family, b"", b"\xff" * 16):
                if key != keys.IDENTITY:
                    other.store.batch.put(family, key, value)
        other.store.write()
        return other


class LiveView:
    """What an exporter sees of a FakeNode: a snapshot until it catches up."""

    def __init__(self, node: FakeNode):
        self._node = node
        self._snapshot = node.store.snapshot()

    def catch_up(self):
        self._snapshot = self._node.store.snapshot()

    def get(self, family, key):
        return self._snapshot.get(family, key)

    def scan(self, family, start, end):
        return self._snapshot.scan(family, start, end)


def vector(**owned: Sequence[int]) -> bytes:
    """A consumer assignment: topic=[partitions]."""
    return ConsumerAssignment(
        assigned=[TopicPartitions(topic=topic, partitions=parts) for topic, parts in owned.items()]
    ).SerializeToString()


class Script:
    """One group's life on a FakeNode."""

    _nonces = count(1)

    def __init__(self, node: FakeNode, group: str, shard=0, kind="consumer", partitions=6):
        self.node, self.group_id, self.shard, self.kind = node, group, shard, kind
        self.partitions = partitions
        self.sequences = count(1)

    @property
    def group(self):
        return self.node.state(self.shard).groups.get(self.group_id)

    def run(self, *commands):
        return self.node.run(*commands, shard=self.shard)

    def join_command(
        self, client, member_id="", nonce=1, topics=("t",), meta=b"m", instance="", released=False
    ):
        return JoinGroup(
            group_id=self.group_id,
            member_id=member_id,
            client_id=client,
            client_host="/127.0.0.1",
            join_nonce=f"{nonce:032x}",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type=self.kind,
            protocols=(Protocol("range", meta),),
            subscribed_topics=tuple(topics),
            reason="",
            group_instance_id=instance,
            with_assignment=nonce % 2 == 0,
            released_partitions=released,
        )

    def member(self, client, nonce=1):
        return f"{client}-{nonce:032x}"

    def join(self, client, nonce=1, **more):
        self.run(self.join_command(client, nonce=nonce, **more))
        return self.member(client, nonce)

    def rejoin(self, member_id, **more):
        client = member_id.rsplit("-", 1)[0]
        self.run(self.join_command(client, member_id=member_id, **more))

    def fire(self):
        """Move to the group's deadline and fire it."""
        for key, deadline_ms in list(deadlines(self.group)):
            self.node.advance(max(0, deadline_ms - self.node.time_ms))
            self.run(CloseRound(self.group_id, key.round, key.timer, deadline_ms, key.member_id))

    def hear(self, member_id, epoch=None, owns=None, topics=None, reason="", **more):
        """A heartbeat of a modern member; `epoch` 0 joins, and the one that it has by default."""
        epoch = self.group.modern.members[member_id].epoch if epoch is None else epoch
        joins = epoch == JOIN_EPOCH
        sets = None if owns is None else (PartitionSet("t", tuple(owns)),)
        self.run(
            ConsumerGroupHeartbeat(
                group_id=self.group_id,
                member_id=member_id,
                member_epoch=epoch,
                client_id=member_id,
                client_host="/127.0.0.1",
                session_timeout_ms=10_000 if joins else 0,
                rebalance_timeout_ms=60_000 if joins else UNCHANGED_MS,
                topics=("t",) if joins and topics is None else topics,
                owned=() if joins else sets,
                reason=reason,
                **more,
            )
        )

    def assign(self):
        """What the leader does by itself for a modern group: notes, plans, reconciles."""
        while self.group is not None and self.group.modern is not None:
            group, state = self.group, self.node.state(self.shard)
            note = unknown_topics(group, state, LIMITS.note_topics_max)
            if note is not None:
                self.run(note)
            elif group.generation > group.modern.target_epoch:
                part = Part(plan(spec_of(group)).changes, last=True)
                changes = changes_of(group, part)
                version = group.modern.spec_version
                self.run(StoreTarget(self.group_id, version, 0, changes, last=True))
            elif group.modern.behind:
                self.run(Reconcile(self.group_id))
            else:
                return

    def close_round(self):
        """Let timers fire until the open round's generation is formed."""
        while self.group.phase == "PreparingRebalance":
            self.fire()

    def shares(self):
        """Partitions dealt round: member -> numbers."""
        members = list(self.group.members)
        return {m: list(range(i, self.partitions, len(members))) for i, m in enumerate(members)}

    def sync(self, member_id, assignments=None):
        group = self.group
        given = ()
        if member_id == group.leader_id:
            given = assignments or {m: vector(t=p) for m, p in self.shares().items()}
            given = tuple(Assignment(m, a) for m, a in given.items())
        command = SyncGroup(self.group_id, member_id, group.generation, "", "", given)
        self.run(command)

    def settle(self, assignments=None):
        """From a formed generation to Stable, everybody synced."""
        leader = self.group.leader_id
        self.sync(leader, assignments)
        for member_id in list(self.group.members):
            if member_id != leader:
                self.sync(member_id)

    def form(self, *clients):
        """A first round of these clients, up to Stable."""
        members = [self.join(client) for client in clients]
        self.close_round()
        self.settle()
        return members

    def rebalance(self):
        """Everybody who is still there joins the open round; then Stable."""
        for member_id in list(self.group.members):
            self.node.advance(10)
            self.rejoin(member_id)
        self.close_round()
        self.settle()

    def commit_command(self, member_id, offset, partitions=(0,), seq=None, end=None, meta=""):
        group = self.group
        generation = group.generation if member_id and group else -1
        number = (next(self.sequences) if seq is None else seq) if member_id else 0
        parts = tuple(PartitionCommit("t", p, offset, meta, end) for p in partitions)
        return OffsetCommit(self.group_id, member_id, generation, number, parts)

    def commit(self, member_id, offset, **more):
        return self.run(self.commit_command(member_id, offset, **more))

    def leave(self, member_id, reason="done"):
        self.run(LeaveGroup(self.group_id, (LeavingMember(member_id, reason),)))

    def expire(self, member_id):
        if self.group.modern is None:
            joins = self.group.members[member_id].joined_round
        else:
            joins = self.group.modern.members[member_id].joins
        self.run(
            ExpireMember(self.group_id, member_id, self.group.generation, joins, "no heartbeat")
        )


def tampered(result: CommandResult, **changes) -> CommandResult:
    """A result with its first event changed."""
    first, *rest = result.events
    return result._replace(events=(replace(first, **changes), *rest))
