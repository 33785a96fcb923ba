"""Builds whose quarantine lacks a rule."""

from collections.abc import Collection, Sequence
from typing import Any

from musterd.chaos.mutants.build import Builds, gives, replaced
from musterd.coordinator.integrity import verify
from musterd.coordinator.integrity.peer_checkpoints import PeerCheckpoints
from musterd.coordinator.integrity.verify import Verifier
from musterd.coordinator.runtime.persist import CheckpointRecord
from musterd.coordinator.runtime.shard import Shard
from musterd.raft import driver
from musterd.raft.codec import Message
from musterd.raft.contract import NodeId
from musterd.raft.replica import replication
from musterd.raft.replica.pysyncobj_adapter import PeerNode
from musterd.raft.replica.replica import Replica
from musterd.raft.snapshots import Arriving, SnapshotKey, Snapshots

BUILDS = Builds()


@BUILDS.replaces("two_suffice", Verifier, "_are_majority")
def _two_are_majority(_verifier: Verifier, _shard: Shard, nodes: Sequence[NodeId]) -> bool:
    """Takes two equal others for a majority, of however many nodes."""
    return len(nodes) > 1


@BUILDS.replaces("stale_votes", verify, "_vouched")
def _all_recorded(shard: Shard) -> list[CheckpointRecord]:
    """Counts what was recorded of a state that was replaced since, or is being replaced."""
    return list(shard.persist.checkpoints)


@BUILDS.replaces("wrong_state_sent", driver)
class SendingAnyState(Replica):
    """Sends its state to followers also when it knows that it is wrong."""

    def _start_snapshot(self, peer: PeerNode) -> None:
        with replaced(self, "_rebuilding", False):
            super()._start_snapshot(peer)


@BUILDS.replaces("copy_forgotten", driver)
class ForgettingCopies(Replica):
    """Takes the state that it finds at its start for its own, wherever it came from."""

    def load(self) -> None:
        super().load()
        self._snapshots.confirm()


@BUILDS.replaces("copies_of_copies_vote", replication)
class NamingTheLeader(Snapshots):
    """Calls a copy of a copy a copy of whoever sent it."""

    def _begin(self, key: SnapshotKey, chunk: Message) -> None:
        super()._begin(key, {**chunk, "copy_of": None})


@BUILDS.replaces("own_state_dropped", replication)
class DroppingItsOwn(Snapshots):
    """Drops its own state for one that differs, as if a majority had agreed."""

    def _note_taken(self, arrived: Arriving) -> None:
        self.differing = {}
        self._put_differing()


@BUILDS.replaces("copies_confirm_each_other", Verifier, "_are_all")
def _are_all(verifier: Verifier, _shard: Shard, nodes: Sequence[NodeId]) -> bool:
    """Takes all nodes for agreed though one has set another state aside."""
    return len(nodes) == len(verifier._peers.nodes) + 1


@BUILDS.replaces("unread_state_installed", replication)
class InstallingUnread(Snapshots):
    """Installs a state that it has not looked at."""

    def _take(self, arriving: Arriving, chunk: Message) -> bool:
        arriving.examine = gives(True)
        return super()._take(arriving, chunk)


@BUILDS.replaces("differing_forgotten", driver)
class ForgettingWhoDiffers(Replica):
    """Forgets at its start whose state differed from its own."""

    def load(self) -> None:
        super().load()
        self._snapshots.differing = {}


@BUILDS.replaces("any_state_taken", driver)
class TakingAnyState(Replica):
    """Replaces a wrong state by that of whoever leads, and hands over to anybody."""

    def rebuild(self, trusted: Collection[NodeId]) -> None:
        super().rebuild([NodeId(peer.id) for peer in self._peers])


@BUILDS.replaces("quarantine_forgotten", driver)
class ForgettingQuarantine(Replica):
    """Takes the state that it finds at its start for right."""

    def load(self) -> None:
        super().load()
        self._rebuilding, self._snapshots.trusted = False, frozenset()


@BUILDS.replaces("replaced_store_heard", PeerCheckpoints, "_valid")
def _valid_for_ever(self: PeerCheckpoints, node: NodeId) -> Any:
    """Counts what a node said of checkpoints before its store was replaced."""
    return self._answers.get(node)


BUILDS.add_all(
    ("copies_vote", "Counts copies of one state as many witnesses.",
     Verifier, "_copy_of", gives(None)),
    ("older_agreement_decides", "Takes an agreement from before a difference for its end.",
     verify, "_noted_index", gives(0)),
)  # fmt: skip
