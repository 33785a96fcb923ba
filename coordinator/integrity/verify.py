"""Finds out whether replicas agree.

It compares checkpoints between nodes, and recomputes digests from the keys on disk.

By arch-3.9 a replica is quarantined where more than half of all nodes agree with each other and not
with it; where there is no majority nobody stops. A record counts only for the state that its
replica holds now; replicas whose states are copies of one replica's count as that one, until a
majority agreed with them (docs/adr/0016-a-copy-is-no-witness.md). `muster cluster verify` asks
every node and compares group by group.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from muster.v1 import admin_pb2 as pb
from musterd.coordinator.integrity.backup_cuts import BackupCuts
from musterd.coordinator.integrity.frozen import Disk, Frozen
from musterd.coordinator.machine.records.digest import DIGEST_MODULUS, digest_bytes
from musterd.coordinator.machine.records.shard_records import ShardState, load_in_slices
from musterd.coordinator.runtime.persist import CheckpointRecord, StoredDigests, scrub
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.timeouts import CHECKPOINT_ON_DEMAND_MS
from musterd.raft.contract import NodeId, Role, StateView

CHECKPOINTS_SHOWN: Final = 8
"""Per shard; two nodes that both run share one of the latest few."""

ASIDE_SHOWN_MAX: Final = 100
"""Offsets of a state that was set aside that are named, per shard."""

SLICE_RECORDS: Final = 1_000
"""Records hashed between two pauses for the loop."""


class Peers(Protocol):
    """The checkpoints that the other nodes recorded."""

    async def refresh(self) -> None:
        """Ask every other node now."""
        ...

    def checkpoints(self, node: NodeId, shard: int) -> Mapping[int, bytes]:
        """Index -> digest, as the node said last of the state that it holds."""
        ...

    def copy_of(self, node: NodeId, shard: int) -> NodeId | None:
        """Whose state that is, where it is an unconfirmed copy (raft/contract.py)."""
        ...

    def set_aside(self, node: NodeId, shard: int) -> bool:
        """Whether it keeps another state of the shard, which it replaced without a verdict."""
        ...

    @property
    def nodes(self) -> Sequence[NodeId]:
        """The other nodes, by id."""
        ...


@dataclass(frozen=True, slots=True)
class Shared:
    """The newest checkpoint that this node and a peer both recorded."""

    node: NodeId
    index: int
    own: bytes
    theirs: bytes


class Verifier:
    """Compares this node's shards with its own disk and with the other nodes."""

    def __init__(self, node_id: int, shards: Sequence[Shard], disk: Disk, peers: Peers) -> None:
        self._node_id = NodeId(node_id)
        self._shards = shards
        self._disk = disk
        self._peers = peers
        self.cuts = BackupCuts(disk)
        """The cuts that backups read from this node's disk."""

    def own_checkpoints(
        self, shards: Iterable[int], *, recorded: bool = False
    ) -> list[pb.CheckpointsResponse.Checkpoint]:
        """The latest checkpoints of these shards, or of all, of the states that are held now.

        None of a replica that is loading, in quarantine, or a learner: it vouches for nothing.
        `recorded`: whatever was recorded of whichever state, which is no vote.
        """
        wanted = set(shards) or set(range(len(self._shards)))
        return [
            pb.CheckpointsResponse.Checkpoint(
                shard=shard.number,
                index=record.index,
                digest=record.digest,
                copy_of=shard.log.copy_of,
                set_aside=shard.log.set_aside is not None,
            )
            for shard in self._shards
            if shard.number in wanted
            for record in (shard.persist.checkpoints if recorded else _vouched(shard))[
                -CHECKPOINTS_SHOWN:
            ]
        ]

    def shared(self, shard: Shard) -> list[Shared]:
        """Per peer the newest checkpoint that both recorded."""
        own = {record.index: record.digest for record in _held(shard)}
        found = []
        for node in self._peers.nodes:
            theirs = self._peers.checkpoints(node, shard.number)
            common = own.keys() & theirs.keys()
            if common:
                index = max(common)
                found.append(Shared(node, index, own[index], theirs[index]))
        return found

    def outvoted_by(self, shard: Shard) -> Sequence[NodeId]:
        """The others that agree with each other, and not with this node: over half of all nodes.

        The newest index at which a majority agrees decides; nobody, where that is this node's, too.
        Of a shard in quarantine, whose own state counts for nothing: those that agree, unless
        others differ at a later index: then the verdict stands that there was.
        """
        for _, votes in self._votes(shard):
            for nodes in votes.values():
                if self._are_majority(shard, nodes):
                    if self._node_id in nodes:
                        return ()
                    if shard.quarantined or any(self._node_id in one for one in votes.values()):
                        return nodes
            if shard.quarantined and len(votes) > 1:
                return ()
        return ()

    def conflict(self, shard: Shard) -> bool | None:
        """True where replicas differ, and no majority has agreed there or later.

        What this replica noted of it counts, restarts included: no older agreement ends that. None
        where nothing shows either: a doubt that was seen is not over.
        """
        noted = _noted_index(shard)
        for index, votes in self._votes(shard):
            if index <= noted:
                break
            if any(self._are_majority(shard, nodes) for nodes in votes.values()):
                return False
            if len(votes) > 1:
                return True
        return True if noted else None

    def differing(self, shard: Shard) -> dict[NodeId, int]:
        """The nodes whose state differs from this one's while no majority agrees, since when.

        A node is judged by the newest index that both recorded; of one that shares none since it
        was noted, the note holds. Whose copy differs is named, too: the state is its.
        """
        if self.conflict(shard) is False:
            return {}
        notes = dict(shard.log.differing)
        for one in self.shared(shard):
            if one.own == one.theirs:
                if one.index > notes.get(one.node, one.index):
                    del notes[one.node]
                continue
            for node in (one.node, self._copy_of(shard, one.node)):
                if node is not None and node != self._node_id:
                    notes[node] = max(one.index, notes.get(node, 0))
        return notes

    def confirmed(self, shard: Shard) -> bool:
        """True where this replica's state is a copy, and need not be called one any longer.

        A majority of witnesses, or else every node, recorded the same digest since it came. Not
        every node where one of them keeps a state that differed: that is one more.
        """
        if shard.log.copy_of is None:
            return False
        return any(
            self._node_id in nodes
            and (self._are_majority(shard, nodes) or self._are_all(shard, nodes))
            for _, votes in self._votes(shard)
            for nodes in votes.values()
        )

    def _are_all(self, shard: Shard, nodes: Sequence[NodeId]) -> bool:
        """Whether these are all nodes, and none of them has set another state aside."""
        if shard.log.set_aside or len(nodes) <= len(self._peers.nodes):
            return False
        return not any(self._peers.set_aside(node, shard.number) for node in self._peers.nodes)

    def _are_majority(self, shard: Shard, nodes: Sequence[NodeId]) -> bool:
        """Whether so many replicas agree independently: copies count as what they are copies of."""
        origins = ((node, self._copy_of(shard, node)) for node in nodes)
        witnesses = {node if origin is None else origin for node, origin in origins}
        return 2 * len(witnesses) > len(self._peers.nodes) + 1

    def _copy_of(self, shard: Shard, node: NodeId) -> NodeId | None:
        own = node == self._node_id
        return shard.log.copy_of if own else self._peers.copy_of(node, shard.number)

    def _votes(self, shard: Shard) -> list[tuple[int, dict[bytes, list[NodeId]]]]:
        """By index, the newest first, which nodes recorded which digest; this node is the last."""
        by_node = [(n, self._peers.checkpoints(n, shard.number)) for n in self._peers.nodes]
        by_node.append((self._node_id, {one.index: one.digest for one in _vouched(shard)}))
        votes: dict[int, dict[bytes, list[NodeId]]] = {}
        for node, points in by_node:
            for index, digest in points.items():
                votes.setdefault(index, {}).setdefault(digest, []).append(node)
        return sorted(votes.items(), reverse=True, key=lambda one: one[0])

    async def verify(self, numbers: Sequence[int]) -> pb.VerifyResponse:
        """Answer `muster cluster verify` for these shards, or for all."""
        shards = [s for s in self._shards if not numbers or s.number in set(numbers)]
        await self._checkpoint(shards)
        await self._catch_up(shards)
        response = pb.VerifyResponse(node_id=self._node_id)
        for shard in shards:
            for node in (self._node_id, *self._peers.nodes):
                if (origin := self._copy_of(shard, node)) is not None:
                    response.copies.add(shard=shard.number, node_id=node, copy_of=origin)
            await _compare_set_aside(shard, response)
            differs = self._compare_checkpoints(shard, response)
            await self._compare_disk(shard, response, show_groups=differs)
        return response

    async def _checkpoint(self, shards: Sequence[Shard]) -> None:
        """Have a fresh checkpoint of each shard that this node leads."""
        before = {shard.number: _latest(shard) for shard in shards}
        led = [shard for shard in shards if shard.checkpoint_soon()]
        for _ in range(CHECKPOINT_ON_DEMAND_MS // 10):
            if all(_latest(shard) > before[shard.number] for shard in led):
                return
            await asyncio.sleep(0.01)

    async def _catch_up(self, shards: Sequence[Shard]) -> None:
        """Ask the peers until their latest checkpoints are this node's, or for a second."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + CHECKPOINT_ON_DEMAND_MS / 1_000
        while True:
            await self._peers.refresh()
            if all(self._latest_are_shared(shard) for shard in shards) or loop.time() > end_s:
                return
            await asyncio.sleep(0.05)

    def _latest_are_shared(self, shard: Shard) -> bool:
        newest = [
            max(self._peers.checkpoints(n, shard.number), default=0) for n in self._peers.nodes
        ]
        return all(index == _latest(shard) for index in newest)

    def _compare_checkpoints(self, shard: Shard, response: pb.VerifyResponse) -> bool:
        differs = False
        for index, digest in sorted({(s.index, s.own) for s in self.shared(shard)}):
            response.checkpoints.add(
                shard=shard.number, index=index, node_id=self._node_id, digest=digest, equal=True
            )
        for shared in self.shared(shard):
            differs |= shared.own != shared.theirs
            response.checkpoints.add(
                shard=shard.number,
                index=shared.index,
                node_id=shared.node,
                digest=shared.theirs,
                equal=shared.own == shared.theirs,
            )
        return differs

    async def _compare_disk(
        self, shard: Shard, response: pb.VerifyResponse, *, show_groups: bool
    ) -> None:
        frozen = await self._freeze(shard)
        index = frozen.view.applied_index
        stored = await _scrub(frozen.view)
        if stored.total != frozen.digest:
            show_groups = True
            await self._name_differences(shard, response)
        if show_groups:
            for group_id, digest in sorted(stored.groups.items()):
                response.groups.add(
                    shard=shard.number,
                    group_id=group_id,
                    digest=digest_bytes(digest),
                    applied_index=index,
                )
            response.groups.add(
                shard=shard.number, digest=digest_bytes(stored.shard_wide), applied_index=index
            )

    async def _freeze(self, shard: Shard) -> Frozen:
        while (frozen := self._disk.freeze(shard.number)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # a write stall: the disk says when it takes more
        return frozen

    async def _name_differences(self, shard: Shard, response: pb.VerifyResponse) -> None:
        """Once more, with the running digest of every group at the same moment."""
        frozen = await self._freeze(shard)
        memory = {group.group_id: group.digest for group in shard.state.groups.values()}
        shard_wide = (frozen.digest - sum(memory.values())) % DIGEST_MODULUS
        stored = await _scrub(frozen.view)
        odd = [
            group_id
            for group_id in sorted(memory.keys() | stored.groups.keys())
            if memory.get(group_id) != stored.groups.get(group_id)
        ]
        for group_id in odd:
            response.differences.add(
                shard=shard.number,
                group_id=group_id,
                detail="the keys on disk hash to another digest than the state in memory",
            )
        if stored.shard_wide != shard_wide:
            response.differences.add(
                shard=shard.number,
                detail="the shard-wide keys on disk differ from the state in memory",
            )


async def _compare_set_aside(shard: Shard, response: pb.VerifyResponse) -> None:
    """Say that a state was set aside, and which of its offsets are above the present ones."""
    aside = shard.log.set_aside
    if aside is None:
        return
    response.differences.add(
        shard=shard.number,
        detail=f"this node took another node's state, which differed from its own of index "
        f"{aside.view.applied_index} while no majority agreed on either; its own is set aside",
    )
    loading = load_in_slices(aside.view.scan(), SLICE_RECORDS)
    while True:
        try:
            next(loading)
        except StopIteration as done:
            state: ShardState = done.value
            break
        await asyncio.sleep(0)
    for group_id, topic, partition, offset in islice(_above(state, shard.state), ASIDE_SHOWN_MAX):
        response.differences.add(
            shard=shard.number,
            group_id=group_id,
            detail=f"the offset of {topic}/{partition} that was set aside, {offset}, "
            "is above the present one",
        )


def _above(aside: ShardState, present: ShardState) -> Iterator[tuple[str, str, int, int]]:
    for group_id, group in sorted(aside.groups.items()):
        kept = present.groups.get(group_id)
        there = {} if kept is None else kept.offsets
        for (topic, partition), stored in sorted(group.offsets.items()):
            now = there.get((topic, partition))
            if now is None or now.offset < stored.offset:
                yield group_id, topic, partition, stored.offset


def _noted_index(shard: Shard) -> int:
    """The newest index at which this replica saw that another differs; 0 where none is noted."""
    aside = shard.log.set_aside
    return max((*shard.log.differing.values(), aside.noted_index if aside else 0))


async def _scrub(view: StateView) -> StoredDigests:
    digests = StoredDigests()
    for digests in scrub(view, SLICE_RECORDS):  # noqa: B007  # the last is whole
        await asyncio.sleep(0)
    return digests


def _held(shard: Shard) -> list[CheckpointRecord]:
    """Return what was recorded of the state that is in memory, and of none before it was loaded."""
    return [one for one in shard.persist.checkpoints if one.index > shard.loaded_index]


def _vouched(shard: Shard) -> list[CheckpointRecord]:
    """Return this replica's votes: none while it loads, is in quarantine, or learns."""
    log = shard.log
    return [] if log.loading or log.role is Role.LEARNER else _held(shard)


def _latest(shard: Shard) -> int:
    checkpoints = shard.persist.checkpoints
    return checkpoints[-1].index if checkpoints else 0
