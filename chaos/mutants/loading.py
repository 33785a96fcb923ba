"""Builds that take a node for loaded before it is."""

from muster.admin import restart_safety
from muster.v1.admin_pb2 import Shard
from musterd.chaos.mutants.build import Builds
from musterd.raft import driver
from musterd.raft.journal import Journal
from musterd.raft.replica.replica import Replica

BUILDS = Builds()
_load = Journal._load
_counts = restart_safety._counts


@BUILDS.replaces("unloaded_state_served", driver)
class ServingUnloaded(Replica):
    """Applies entries to the empty state of a shard that is not loaded, and answers from it."""

    @property
    def _reloading(self) -> bool:
        return self._load_runs


@BUILDS.replaces("vote_unread", Journal, "_load")
def _load_without_vote(journal: Journal) -> None:
    """Votes before it has read whom it voted for."""
    _load(journal)
    journal._voted_for = None


@BUILDS.replaces("loading_node_counts", restart_safety, "_counts")
def _counts_though_it_loads(node: int, state: Shard, leader: int, committed: int) -> bool:
    """Lets a node be restarted while another one that it needs is still loading."""
    loaded = Shard()
    loaded.CopyFrom(state)
    loaded.loading = False
    return _counts(node, loaded, leader, committed)
