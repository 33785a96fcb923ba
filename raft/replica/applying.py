"""Applying: committed entries, and states that arrive as snapshots, become the machine's state.

Sources: thesis sections 3.5 and 5.1; raft-5, raft-8 and raft-10.
"""

from collections.abc import Collection, Iterator, Mapping

from musterd.invariant import InvariantError, invariant
from musterd.raft.contract import NodeId, Role, SetAsideState, ShardId, StateMachine
from musterd.raft.host import Host
from musterd.raft.journal import Journal
from musterd.raft.log_format import KIND_ADMITTED, KIND_COMMAND, KIND_NOOP, Entry
from musterd.raft.peers import ReplicaAdmission, decode_admission
from musterd.raft.proposals import Proposals
from musterd.raft.replica.pysyncobj_adapter import LEADER, PeerNode
from musterd.raft.replica.replication import Replication
from musterd.raft.state import ShardBatch, ShardView

_APPLY_READ = 64
"""Entries that one read of the journal hands to the apply loop."""


class Applying(Replication):
    """Applies committed entries to the state machine, and answers their proposals."""

    def __init__(self, host: Host, shard: ShardId, journal: Journal, machine: StateMachine) -> None:
        self._machine = machine
        self._proposals = Proposals(host.settings)
        self._rebuilding = False
        self._load_waits = False
        """Whether the state that was found at start is not loaded, and has not begun to be."""
        self._loading: Iterator[None] | None = None
        self._reload_epoch: int | None = None
        self._promoted = False
        """Whether this leader has applied its own no-op."""
        self._rebuild_at = 0.0
        super().__init__(host, shard, journal, machine.examine)
        self._batch = ShardBatch(host.store, shard, self._snapshots.local_id)
        self._rebuilding = bool(self._snapshots.trusted)
        self._applied = self._commit = max(1, self._snapshots.applied_index)
        self._announce_unapplied(self._log.last_index)

    @property
    def _reloading(self) -> bool:  # asked several times in each tick
        return self._load_waits or self._loading is not None or self._reload_epoch is not None

    @property
    def _load_runs(self) -> bool:
        return self._loading is not None or self._reload_epoch is not None

    @property
    def _is_behind(self) -> bool:
        return self._reloading or super()._is_behind

    def _apply_committed(self) -> None:
        """Apply what is committed, at most so many entries and milliseconds in one tick.

        One entry, or one slice of a load, at least, unless the turn's time was over before.
        """
        if self._host.apply_over:
            return
        if self._reloading and not self._continue_reload():
            return
        if self._rebuilding or self._commit <= self._applied:
            return
        deadline = self._host.apply_until
        left = self._settings.apply_entries
        while left > 0 and self._applied < self._commit:
            count = min(left, self._commit - self._applied, _APPLY_READ)
            for entry in self._log.read(self._applied + 1, count, self._settings.message_bytes):
                self._apply(entry)
                left -= 1
                if self._clock() > deadline:
                    left = 0
                    break
        self._keep_applied()

    def _keep_applied(self) -> None:
        """State and applied index travel in one batch; soft, since the log can be applied again."""
        self._snapshots.note_applied(self._applied)
        self._batch.put_applied(self._applied)

    def _apply(self, entry: Entry) -> None:
        command, index, term = entry
        invariant(index == self._applied + 1, f"entry {index} applied after {self._applied}")
        result = self._apply_command(command, index, term)
        self._applied = index
        if command[0] == KIND_ADMITTED:
            self._announce_unapplied(self._log.last_index)
        self._proposals.applied(index, term, result)
        own_noop = self._state == LEADER and index == self._noop_index
        if own_noop and not self._promoted:
            self._promoted = True
            self._machine.role_changed(Role.LEADER, self._term)

    def _lose_leadership(self) -> None:
        """Fail what waits, its outcome being unknown, then tell the machine (pso-F17)."""
        self._promoted = False
        self._proposals.fail()
        self._reads.fail()
        self._machine.role_changed(self.role, self._term)

    def _apply_command(self, command: bytes, index: int, term: int) -> object:
        """By kind. What a machine raises stops the process: better than diverging."""
        kind = command[0]
        if kind == KIND_COMMAND:
            return self._machine.apply(index, term, command[1:], self._batch)
        if kind == KIND_ADMITTED:
            self._admit(decode_admission(command[1:]))
        elif kind != KIND_NOOP:
            raise InvariantError(
                f"shard {self._shard}: entry {index} is of kind {kind}, "
                "which this version does not know: install the version that wrote it"
            )
        return None

    def _admit(self, admission: ReplicaAdmission) -> None:
        """A ReplicaAdmitted entry is committed, or came with a snapshot."""
        was_learner = self.learner
        self._book.admit(self._shard, admission)
        self._begin_to_vote(admission, was_learner)

    def _trim_log(self) -> None:
        """State is on disk with its applied index, so the log's front may go when it is long."""
        self._log.trim(self._applied)

    # Installing a snapshot.

    def _install_snapshot(self) -> None:
        """The last chunk has arrived: one small batch makes its state ours."""
        arrived = self._snapshots.take_arrived()
        _, index, term = arrived.entry
        self._verified_by_snapshot(index)
        again = self._rebuilding and index == self._applied
        if index <= self._applied and not again:  # pso-F5c: never an older state over a newer one
            return
        self._rebuilding = False
        if not self._log.matches(index, term):
            self._log.reset(arrived.entry)
        self._snapshots.flip(arrived)
        for admission in arrived.admissions:
            self._admit(decode_admission(admission))
        self._applied = index
        self._announce_unapplied(self._log.last_index)
        self._commit = max(self._commit, index)
        self._batch = ShardBatch(self._host.store, self._shard, self._snapshots.local_id)
        self._load_waits, self._loading = False, None
        self._reload_epoch = self._host.store.pending_epoch
        self._host.mark(self._shard)

    def _continue_reload(self) -> bool:
        """Load the installed state in slices; True when the machine is up to date."""
        store = self._host.store
        if self._load_waits:
            return False
        if self._reload_epoch is not None:
            if store.written_epoch < self._reload_epoch:
                store.write()
            if store.written_epoch < self._reload_epoch:
                return False
            self._reload_epoch = None
            self._loading = self._reload()
            self._snapshots.drop_old()
        until = min(self._host.apply_until, self._clock() + self._ms(self._settings.load_ms))
        while self._loading is not None:
            if next(self._loading, self) is self:
                self._loading = None
            elif self._clock() >= until:
                return False
        return True

    def stored(self) -> ShardView:
        """Return a view of what is written of this shard; a scan begun now stays at this moment."""
        return ShardView(self._host.store, self._shard, self._snapshots.local_id, self._applied)

    def _reload(self) -> Iterator[None] | None:
        return self._machine.reload(self.stored())

    def load(self) -> None:
        """At start, before the first turn: the machine has no state until `begin_load`.

        What is read by now is term, vote and log: so this replica votes, and acknowledges entries,
        which it applies once its state is loaded.
        """
        self._load_waits = True

    def begin_load(self) -> None:
        """It is this replica's turn to load what was found at start: the next ticks do so."""
        self._load_waits = False
        self._loading = self._reload()
        self._host.mark(self._shard)

    @property
    def load_waits(self) -> bool:
        """Whether the state that was found at start waits to be loaded."""
        return self._load_waits

    @property
    def load_runs(self) -> bool:
        """Whether a state is being loaded now, or waited for by a load."""
        return self._load_runs

    # A state that is wrong.

    def rebuild(self, trusted: Collection[NodeId]) -> None:
        """Take the whole state anew from a leader among `trusted`; see the contract."""
        self._snapshots.distrust(trusted)
        self._rebuilding = True
        self._host.mark(self._shard)

    @property
    def distrusted(self) -> bool:
        """Whether the applied state is known to be wrong; see the contract."""
        return self._rebuilding

    @property
    def copy_of(self) -> NodeId | None:
        """Whose state the applied one is an unconfirmed copy of; see the contract."""
        return self._snapshots.copy_of

    def confirm_copy(self) -> None:
        """The applied state is this node's own from now on; see the contract."""
        self._snapshots.confirm()

    @property
    def differing(self) -> Mapping[NodeId, int]:
        """Whose states differ from this one while no majority agrees; see the contract."""
        return self._snapshots.differing

    def note_differing(self, notes: Mapping[NodeId, int]) -> None:
        """Set the state here aside where one of theirs replaces it; see the contract."""
        if self._snapshots.note_differing(notes):
            self._host.mark(self._shard)

    @property
    def set_aside(self) -> SetAsideState | None:
        """A state that was replaced without a verdict; see the contract."""
        aside = self._snapshots.set_aside
        if aside is None:
            return None
        view = ShardView(self._host.store, self._shard, aside.local_id, aside.applied_index)
        return SetAsideState(view, aside.noted_index)

    def drop_set_aside(self) -> None:
        """A majority has agreed since; see the contract."""
        self._snapshots.drop_set_aside()

    def _trusts(self, peer: PeerNode) -> bool:
        """Whether this state, where it is wrong, may be replaced by that of `peer`."""
        return not self._rebuilding or peer.id in self._snapshots.trusted

    def _ask_for_state(self) -> None:
        now = self._clock()
        if self._leader is None or self._reloading or now < self._rebuild_at:
            return
        if not self._trusts(self._leader):
            return
        self._rebuild_at = now + self._ms(self._settings.resend_ms)
        self._send_node(self._leader, {"type": "snapshot_wanted", "term": self._term})
