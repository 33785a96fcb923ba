"""Builds whose quarantine lacks a rule. The simulator compares no checkpoints: unit tests do."""

from collections.abc import Collection, Sequence
from typing import Any

import musterd.coordinator.integrity.verify
import musterd.raft.driver
import musterd.raft.replica.replication
from musterd.chaos.mutants.build import Build
from musterd.coordinator.integrity.peer_checkpoints import PeerCheckpoints
from musterd.coordinator.integrity.verify import Verifier
from musterd.coordinator.runtime.persist import CheckpointRecord
from musterd.coordinator.runtime.shard import Shard
from musterd.raft.codec import Message
from musterd.raft.contract import NodeId
from musterd.raft.replica.pysyncobj_adapter import PeerNode
from musterd.raft.replica.replica import Replica
from musterd.raft.snapshots import Arriving, Snapshots


def _two_are_majority(_verifier: Verifier, _shard: Shard, nodes: Sequence[NodeId]) -> bool:
    return len(nodes) > 1


def _nobody(_verifier: Verifier, _shard: Shard, _node: NodeId) -> None:
    """Whose state a copy is of."""


def _all_recorded(shard: Shard) -> list[CheckpointRecord]:
    return list(shard.persist.checkpoints)


class SendingAnyState(Replica):
    """Sends its state to followers also when it knows that it is wrong."""

    def _start_snapshot(self, peer: PeerNode) -> None:
        rebuilding, self._rebuilding = self._rebuilding, False
        try:
            super()._start_snapshot(peer)
        finally:
            self._rebuilding = rebuilding


class ForgettingCopies(Replica):
    """Takes the state that it finds at its start for its own, wherever it came from."""

    def load(self) -> None:
        super().load()
        self._snapshots.confirm()


class NamingTheLeader(Snapshots):
    """Calls a copy of a copy a copy of whoever sent it."""

    def _begin(self, key: tuple[int, int, int], chunk: Message) -> None:
        super()._begin(key, {**chunk, "copy_of": None})


class DroppingItsOwn(Snapshots):
    """Drops its own state for one that differs, as if a majority had agreed."""

    def _note_taken(self, arrived: Arriving) -> None:
        del arrived
        self.differing = {}
        self._put_differing()


def _nothing_noted(_shard: Shard) -> int:
    """As of which index a difference was noted."""
    return 0


def _are_all(verifier: Verifier, _shard: Shard, nodes: Sequence[NodeId]) -> bool:
    return len(nodes) == len(verifier._peers.nodes) + 1


class InstallingUnread(Snapshots):
    """Installs a state that it has not looked at."""

    def _take(self, arriving: Arriving, chunk: Message) -> bool:
        arriving.examine = lambda _key, _value: True
        return super()._take(arriving, chunk)


class ForgettingWhoDiffers(Replica):
    """Forgets at its start whose state differed from its own."""

    def load(self) -> None:
        super().load()
        self._snapshots.differing = {}


class TakingAnyState(Replica):
    """Replaces a wrong state by that of whoever leads, and hands over to anybody."""

    def rebuild(self, trusted: Collection[NodeId]) -> None:
        del trusted
        super().rebuild([NodeId(peer.id) for peer in self._peers])


class ForgettingQuarantine(Replica):
    """Takes the state that it finds at its start for right."""

    def load(self) -> None:
        super().load()
        self._rebuilding, self._snapshots.trusted = False, frozenset()


def _valid_for_ever(self: PeerCheckpoints, node: NodeId) -> Any:
    return self._answers.get(node)


BUILDS = (
    Build(
        "replaced_store_heard",
        "Counts what a node said of checkpoints before its store was replaced.",
        ((PeerCheckpoints, "_valid", _valid_for_ever),),
    ),
    Build(
        "two_suffice",
        "Takes two equal others for a majority, of however many nodes.",
        ((Verifier, "_are_majority", _two_are_majority),),
    ),
    Build(
        "stale_votes",
        "Counts what was recorded of a state that was replaced since, or is being replaced.",
        ((musterd.coordinator.integrity.verify, "_vouched", _all_recorded),),
    ),
    Build(
        "copies_vote",
        "Counts copies of one state as many witnesses.",
        ((Verifier, "_copy_of", _nobody),),
    ),
    Build(
        "copies_of_copies_vote",
        NamingTheLeader.__doc__ or "",
        ((musterd.raft.replica.replication, "Snapshots", NamingTheLeader),),
    ),
    Build(
        "own_state_dropped",
        DroppingItsOwn.__doc__ or "",
        ((musterd.raft.replica.replication, "Snapshots", DroppingItsOwn),),
    ),
    Build(
        "unread_state_installed",
        InstallingUnread.__doc__ or "",
        ((musterd.raft.replica.replication, "Snapshots", InstallingUnread),),
    ),
    Build(
        "older_agreement_decides",
        "Takes an agreement from before a difference for its end.",
        ((musterd.coordinator.integrity.verify, "_noted_index", _nothing_noted),),
    ),
    Build(
        "copies_confirm_each_other",
        "Takes all nodes for agreed though one has set another state aside.",
        ((Verifier, "_are_all", _are_all),),
    ),
    *(
        Build(name, build.__doc__ or "", ((musterd.raft.driver, "Replica", build),))
        for name, build in (
            ("wrong_state_sent", SendingAnyState),
            ("copy_forgotten", ForgettingCopies),
            ("differing_forgotten", ForgettingWhoDiffers),
            ("any_state_taken", TakingAnyState),
            ("quarantine_forgotten", ForgettingQuarantine),
        )
    ),
)
