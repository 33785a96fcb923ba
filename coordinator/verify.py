"""Do replicas agree?

Checkpoints compared between nodes, digests recomputed from the keys on disk.

Architecture 3 rule 9. A replica is quarantined where more than half of all nodes agree with each
other and not with it; where there is no majority nobody stops. A record counts only for the state
that its replica holds now. `muster cluster verify` asks every node and compares group by group.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from coordinator.machine.digest import DIGEST_MODULUS, digest_bytes, digest_of
from coordinator.machine.records import group_records
from coordinator.persist import CheckpointRecord, StoredDigests, scrub
from coordinator.shard import Shard
from coordinator.timeouts import CHECKPOINT_ON_DEMAND_MS
from muster.v1 import admin_pb2 as pb
from raft.contract import NodeId, Role, StateView

CHECKPOINTS_SHOWN: Final = 8
"""Per shard; two nodes that both run share one of the latest few."""

SLICE_RECORDS: Final = 1_000
"""Records hashed between two pauses for the loop."""


class Frozen(NamedTuple):
    """A shard's keys and its running digest, both as of one applied index.

    A scan of the view stays at the moment at which it begins: begin it before anything else runs.
    """

    view: StateView
    digest: int


class Disk(Protocol):
    """Where frozen views come from: the node, between two turns."""

    def freeze(self, shard: int) -> Frozen | None:
        """What is stored of a shard now, with all that is applied; None = ask again."""
        ...


class Peers(Protocol):
    """What the other nodes recorded."""

    async def refresh(self) -> None:
        """Ask every other node now."""
        ...

    def checkpoints(self, node: NodeId, shard: int) -> Mapping[int, bytes]:
        """Index -> digest, as the node said last of the state that it holds."""
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
        self._node_id = node_id
        self._shards = shards
        self._disk = disk
        self._peers = peers

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
                shard=shard.number, index=record.index, digest=record.digest
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
        Of a shard in quarantine, whose own state counts for nothing: those that agree.
        """
        own = {record.index: record.digest for record in _vouched(shard)}
        for index, votes in self._votes(shard):
            for digest, nodes in votes.items():
                agrees = own.get(index) == digest
                if self._are_majority(len(nodes) + agrees):
                    if agrees:
                        return ()
                    if shard.quarantined or index in own:
                        return nodes
        return ()

    def conflict(self, shard: Shard) -> bool:
        """True where replicas differ, and no majority has agreed there or later."""
        own = {record.index: record.digest for record in _vouched(shard)}
        for index, votes in self._votes(shard):
            counts = {digest: len(nodes) for digest, nodes in votes.items()}
            if index in own:
                counts[own[index]] = counts.get(own[index], 0) + 1
            if self._are_majority(max(counts.values())):
                return False
            if len(counts) > 1:
                return True
        return False

    def _are_majority(self, count: int) -> bool:
        return 2 * count > len(self._peers.nodes) + 1

    def _votes(self, shard: Shard) -> list[tuple[int, dict[bytes, list[NodeId]]]]:
        """By index, the newest first, which other nodes recorded which digest."""
        votes: dict[int, dict[bytes, list[NodeId]]] = {}
        for node in self._peers.nodes:
            for index, digest in self._peers.checkpoints(node, shard.number).items():
                votes.setdefault(index, {}).setdefault(digest, []).append(node)
        return sorted(votes.items(), reverse=True)

    async def verify(self, numbers: Sequence[int]) -> pb.VerifyResponse:
        """Answer `muster cluster verify` for these shards, or for all."""
        shards = [s for s in self._shards if not numbers or s.number in set(numbers)]
        await self._checkpoint(shards)
        await self._catch_up(shards)
        response = pb.VerifyResponse(node_id=self._node_id)
        for shard in shards:
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
        """Once more, with the digests of every group in memory taken at the same moment."""
        frozen = await self._freeze(shard)
        memory = {
            group.group_id: digest_of(group_records(group)) % DIGEST_MODULUS
            for group in shard.state.groups.values()
        }
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


async def _scrub(view: StateView) -> StoredDigests:
    digests = StoredDigests()
    for digests in scrub(view, SLICE_RECORDS):  # noqa: B007  # the last is whole
        await asyncio.sleep(0)
    return digests


def _held(shard: Shard) -> list[CheckpointRecord]:
    """What was recorded of the state that is in memory, and of none before it was loaded."""
    return [one for one in shard.persist.checkpoints if one.index > shard.loaded_index]


def _vouched(shard: Shard) -> list[CheckpointRecord]:
    """What counts as this replica's vote: nothing while it loads, is in quarantine, or learns."""
    log = shard.log
    return [] if log.loading or log.role is Role.LEARNER else _held(shard)


def _latest(shard: Shard) -> int:
    checkpoints = shard.persist.checkpoints
    return checkpoints[-1].index if checkpoints else 0
