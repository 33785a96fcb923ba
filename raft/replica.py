# ruff: noqa: N802, SLF001 - overrides carry the names of PySyncObj, and call its private methods
"""Replica: one node's copy of one shard, PySyncObj's core made safe by pinned overrides.

The overrides, by name: onMessageReceived, onTick, checkCommandsToApply, applyLogEntries,
doApplyCommand, setState, tryLogCompaction, loadDumpFile and transferLeadership here;
sendNextNodeIdx and sendAppendEntries in replication.py; getEntries and generateRaftTimeout in
core.py. raft-layer.md section 4 says why each is needed. Nothing in here is ever pickled.
"""

from collections.abc import Callable, Iterator
from typing import Any

from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj

from raft.admission import Admitting
from raft.codec import Message
from raft.contract import (
    ENTRY_BYTES_MAX,
    Applied,
    NodeId,
    NotLeader,
    Outcome,
    Overloaded,
    Role,
    ShardId,
    StateMachine,
    Unknown,
)
from raft.core import CANDIDATE, FOLLOWER, LEADER, NEVER, Host, PeerNode
from raft.journal import KIND_ADMITTED, KIND_COMMAND, KIND_NOOP, Entry, Journal
from raft.peers import Admission, decode_admission
from raft.replication import Replication
from raft.state import ShardBatch, ShardView
from storage.invariant import BrokenInvariantError, invariant

_ROLES = {FOLLOWER: Role.FOLLOWER, CANDIDATE: Role.CANDIDATE, LEADER: Role.LEADER}
_VOTING = frozenset({"request_vote", "response_vote", "pre_vote", "pre_vote_reply"})
_COMMAND_PREFIX = bytes((KIND_COMMAND,))
_APPLY_READ = 64
"""Entries that one read of the journal hands to the apply loop."""


class Replica(Replication):
    """raft.contract.ReplicatedLog over PySyncObj. Driven by raft.driver.Driver and nobody else."""

    def __init__(self, host: Host, shard: ShardId, journal: Journal, machine: StateMachine) -> None:
        self._machine = machine
        self._waiting: dict[int, tuple[int, int, Callable[[Outcome], None]]] = {}
        self._waiting_bytes = 0
        self._loading: Iterator[None] | None = None
        self._reload_epoch: int | None = None
        self._promoted = False
        self._transfer: tuple[PeerNode, float, bool] | None = None
        self._broken_since: dict[int, float] = {}
        self._rebuild_at = 0.0
        self._applying: Entry | None = None
        self.draining = False
        """Set on shutdown: no new proposals, so that leadership can move."""
        super().__init__(host, shard, journal)
        self._batch = ShardBatch(host.store, shard, self._snapshots.local_id)
        self._admitting = Admitting()
        self._admit_at = 0.0
        self._applied = self._commit = max(1, self._snapshots.applied_index)
        self._announce_unapplied()

    def _announce_unapplied(self) -> None:
        at = self._applied + 1
        while at <= self._log.last_index:
            entries = self._log.read(at, _APPLY_READ, self._settings.message_bytes)
            self._announce(entries)
            at = entries[-1][1] + 1

    # raft.contract.ReplicatedLog.

    @property
    def shard(self) -> ShardId:
        """Which shard this is a replica of."""
        return self._shard

    @property
    def role(self) -> Role:
        """LEARNER while the shard has yet to admit this node."""
        if self._state != LEADER and self.learner:
            return Role.LEARNER
        return _ROLES[self._state]

    @property
    def term(self) -> int:
        """The Raft term."""
        return self._term

    @property
    def leader(self) -> NodeId | None:
        """Who leads in `term`, as far as this replica knows."""
        return None if self._leader is None else NodeId(self._leader.id)

    @property
    def applied_index(self) -> int:
        """Everything up to here is applied."""
        return self._applied

    @property
    def commit_index(self) -> int:
        """Everything up to here is known to be committed."""
        return self._commit

    @property
    def last_index(self) -> int:
        """The newest entry of the log."""
        return self._log.last_index

    @property
    def journal(self) -> Journal:
        """The log, for the driver and status."""
        return self._log

    @property
    def leader_heard(self) -> bool:
        """Whether it leads with a quorum, or heard from its leader lately; for metrics.

        Lately: within the longest election time-out. `leader` alone still names one that is dead.
        """
        if self._state == LEADER:
            return self.quorum_heard
        quiet = self._ms(self._settings.election_max_ms)
        return self._contact is not None and self._clock() < self._contact + quiet

    def matches(self) -> dict[NodeId, int]:
        """On a leader: peer -> newest index it is known to hold. Empty elsewhere; for metrics."""
        if self._state != LEADER:
            return {}
        return {NodeId(peer.id): self._match[peer] for peer in self._peers}

    @property
    def ready(self) -> bool:
        """On a leader that has applied its own no-op, is not draining and hands over to nobody."""
        return (
            self._state == LEADER
            and self._promoted
            and not self.draining
            and self._transfer is None
        )

    @property
    def quorum_heard(self) -> bool:
        """Check quorum; see the contract."""
        if self._state != LEADER:
            return False
        now = self._clock()
        heard_after = now - self._ms(self._settings.quorum_ms)
        broken_before = now - self._ms(self._settings.broken_quorum_ms)
        heard = linked = 1
        for peer in self._peers:
            if self._counts(peer):
                heard += self._last_response.get(peer, 0.0) > heard_after
                linked += self._broken_since.get(peer.id, NEVER) > broken_before
        return heard >= self._quorum and linked >= self._quorum

    def propose(self, entry: bytes, done: Callable[[Outcome], None]) -> None:
        """Append `entry` at once; see the contract. The next tick sends it."""
        if self._state != LEADER or self.draining or self._transfer is not None:
            done(NotLeader(self._hint()))
            return
        refusal = self._refusal(len(entry))
        if refusal is not None:
            done(Overloaded(refusal))
            return
        index = self._append_own(_COMMAND_PREFIX + entry)
        self._waiting[index] = (self._term, len(entry), done)
        self._waiting_bytes += len(entry)
        self._send_wanted = True
        self._host.mark(self._shard)

    def _refusal(self, size: int) -> str | None:
        settings = self._settings
        if size >= ENTRY_BYTES_MAX:
            return f"an entry of {size} bytes; {ENTRY_BYTES_MAX - 1} at most"
        if len(self._waiting) >= settings.waiting_entries:
            return f"{settings.waiting_entries} entries wait for their commit"
        if self._waiting_bytes + size > settings.waiting_bytes:
            return f"{settings.waiting_bytes} bytes wait for their commit"
        return None

    def _hint(self) -> NodeId | None:
        if self._transfer is not None:
            return NodeId(self._transfer[0].id)
        return None if self._state == LEADER else self.leader

    def read_index(self, done: Callable[[bool], None]) -> None:
        """ReadIndex; see the contract. Answered from a tick, never from in here unless refused."""
        refused = (
            self._state != LEADER
            or not self._promoted
            or len(self._reads) >= self._settings.waiting_reads
        )
        if refused:
            done(False)
            return
        self._reads.ask(self._seq, self._commit, done)
        self._round_wanted = True
        self._host.mark(self._shard)

    def transfer_leadership(self, to: NodeId | None = None) -> bool:
        """Stop proposals and hand over once the target holds the whole log; see the contract."""
        if self._state != LEADER or not self._promoted or self._transfer is not None:
            return False
        window = self._settings.message_entries
        able = [
            peer
            for peer in self._peers
            if to in (None, peer.id)
            and peer in self._connected
            and self._counts(peer)
            and self._match[peer] + window >= self._log.last_index
        ]
        if not able:
            return False
        target = max(able, key=lambda peer: (self._match[peer], -peer.id))
        deadline = self._clock() + self._ms(self._settings.transfer_ms)
        self._transfer = (target, deadline, False)
        self._host.mark(self._shard)
        return True

    def transferLeadership(self, node: Any = None, callback: Any = None) -> None:
        """PySyncObj's entry point leads to ours; it has no callback because a transfer may fail."""
        invariant(callback is None, "watch `leader` instead of a callback")
        self.transfer_leadership(None if node is None else NodeId(node.id))

    # Messages.

    def receive(self, node: int, message: Message) -> None:
        """One decoded message from a peer. The driver ticks the shard afterwards."""
        self._SyncObj__onMessageReceived(self._by_id[node], message)

    def _SyncObj__onMessageReceived(self, node: Node, message: Message) -> None:
        peer = self._by_id.get(node.id)
        if peer is None:
            return
        kind = message["type"]
        if kind == "append_entries":
            self._on_append(peer, message)
        elif kind == "next_node_idx":
            self._on_reply(peer, message)
        elif kind in _VOTING:
            self._on_voting(peer, message)
        elif kind.startswith("snapshot_"):
            self._on_snapshot(peer, message)
        elif kind == "term_reject":
            if message["term"] > self._term:
                self._step_down(message["term"])
        elif kind == "timeout_now":
            self._on_timeout_now(peer, message)
        # Anything else (apply_command, transmissions) is PySyncObj's own and never accepted.

    def _on_timeout_now(self, peer: PeerNode, message: Message) -> None:
        follows = self._state == FOLLOWER and self._leader == peer and not self._abstains
        if follows and message["term"] == self._term:
            SyncObj._SyncObj__onMessageReceived(self, peer, message)

    def peer_connected(self, node: int) -> None:
        """The control connection to `node` stands."""
        self._broken_since.pop(node, None)
        self._SyncObj__onNodeConnected(self._by_id[node])
        if self._state == LEADER:
            self._round_wanted = True
            self._host.mark(self._shard)

    def peer_disconnected(self, node: int) -> None:
        """The control connection to `node` broke: what was on its way counts as lost."""
        self._broken_since.setdefault(node, self._clock())
        peer = self._by_id[node]
        self._SyncObj__onNodeDisconnected(peer)
        self._forget_flight(peer)

    def peer_replaced(self, node: int) -> None:
        """The store of `node` is a new one: nothing it ever acknowledged is worth anything."""
        peer = self._by_id[node]
        self._forget_flight(peer)
        if self._state == LEADER:
            self._match[peer] = 0
            self._next[peer] = self._log.last_index + 1
            self._last_response[peer] = -NEVER
        self._votes_from.discard(node)
        self._pre_votes_from.discard(node)

    def _forget_flight(self, peer: PeerNode) -> None:
        self._snapshots.cancel(peer.id)
        self._progress[peer].clear()
        if self._state == LEADER:
            match = self._match[peer]
            self._next[peer] = (
                max(match, self._log.first_index) + 1 if match else self._log.last_index + 1
            )

    # A state that is wrong.

    def rebuild(self) -> bool:
        """Take the whole state anew from the leader; see the contract."""
        if self._state != FOLLOWER or not self._peers:
            return False
        self._rebuilding = self._snapshots.wanted = True
        self._host.mark(self._shard)
        return True

    def _ask_for_state(self) -> None:
        now = self._clock()
        if self._leader is None or self._reloading or now < self._rebuild_at:
            return
        self._rebuild_at = now + self._ms(self._settings.resend_ms)
        self._send_node(self._leader, {"type": "snapshot_wanted", "term": self._term})

    # Ticks.

    @property
    def due(self) -> float:
        """When this replica wants a tick even if nothing happens, on the node's clock."""
        return self._heartbeat_due if self._state == LEADER else self._election_deadline

    @property
    def busy(self) -> bool:
        """Whether it wants another tick at once: applying or loading was cut short."""
        return self._reloading or (self._commit > self._applied and not self._rebuilding)

    @property
    def leads(self) -> bool:
        """Whether this replica is the leader, ready or not."""
        return self._state == LEADER

    @property
    def waiting(self) -> int:
        """Proposals that wait for their commit."""
        return len(self._waiting)

    @property
    def waits_for_sync(self) -> bool:
        """Whether a leader may be able to commit more once more is durable here."""
        return self._state == LEADER and self._commit < self._log.last_index

    @property
    def _reloading(self) -> bool:
        return self._loading is not None or self._reload_epoch is not None

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N803 - PySyncObj's name
        invariant(timeToWait == 0.0, "a tick never waits")
        if self._state != LEADER and not self._peers:
            self._elect_alone()
        if self._state != LEADER:
            self._tick_unled()
        elif self._peers:
            self._tick_leading()
        else:
            self._tick_alone()
        if self._state == LEADER:
            self._tick_led()
        elif self._rebuilding:
            self._ask_for_state()

    def _tick_led(self) -> None:
        if self._transfer is not None:
            self._tick_transfer()
        if self._promoted and self._peers:
            self._admit_newcomers()
        if self._reads:
            quorum_seq = self._quorum_seq() if self._peers else self._seq + 1
            self._reads.advance(quorum_seq, self._applied)

    def _tick_leading(self) -> None:
        """Tick the base with the followers' match capped (durability rule 3).

        The base counts the leader itself for every index it has. So each follower's match is at
        most what is durable here, and nothing for those that do not count: the base then commits
        min(majority, own durable index).
        """
        durable = self._durable_cap()
        real = self._match
        capped = {}
        for peer in self._peers:
            if self._counts(peer):
                capped[peer] = min(real[peer], durable)
            else:
                capped[peer] = 0
                self._last_response[peer] = -NEVER
        self._match = capped
        try:
            SyncObj._onTick(self, 0)
        finally:
            if self._match is capped:
                self._match = real

    def _durable_cap(self) -> int:
        """Durability rule 3: a leader commits at most its own durable index."""
        return self._log.durable_index()

    def _tick_alone(self) -> None:
        """A cluster of one: what is durable here is committed (durability rule 7)."""
        durable = self._durable_cap()
        if durable > self._commit and self._log.term_at(durable) == self._term:
            self._commit = durable
        self._SyncObj__applyLogEntries()
        if self._clock() > self._heartbeat_due:
            self._SyncObj__sendAppendEntries()
        self._checkCommandsToApply()
        self._SyncObj__tryLogCompaction()

    def _checkCommandsToApply(self) -> None:
        """Proposals append at once, so only the sending is left.

        Nothing is forwarded: clients are told who leads.
        """
        if self._state == LEADER:
            self._send_due()

    def _tick_transfer(self) -> None:
        """Hand over when the target has everything; go on leading where that takes too long."""
        if self._transfer is None:
            return
        target, deadline, asked = self._transfer
        if self._clock() > deadline or target not in self._connected:
            self._transfer = None
        elif not asked and self._match[target] == self._log.last_index:
            self._transfer = (target, deadline, True)
            self._send_node(target, {"type": "timeout_now", "term": self._term})

    def _admit_newcomers(self) -> None:
        """Bring replaced nodes back into the quorum, step by step (raft/peers.py)."""
        now = self._clock()
        if now < self._admit_at:
            return
        self._admit_at = now + self._ms(self._settings.admission_ms)
        newcomers = self._book.newcomers(self._shard)
        if not newcomers:
            return
        holds = {peer.id: self._match[peer] for peer in self._peers}
        voters = [holds[peer.id] for peer in self._peers if self._counts(peer)]
        held_by_all = min([*voters, self._durable_cap()])
        for node, store_uuid in newcomers:
            step = self._admitting.next_step(store_uuid, min(held_by_all, holds[node]))
            if step is None:
                continue
            admission = Admission(node, store_uuid, self._term, self._me.id, effective=step)
            index = self._append_own(bytes((KIND_ADMITTED,)) + admission.encode())
            self._book.announce(self._shard, admission)
            self._admitting.appended(admission, index)
            self._send_wanted = True
            self._host.mark(self._shard)

    def _SyncObj__setState(self, newState: int) -> None:  # noqa: N803 - PySyncObj's name
        old = self._state
        SyncObj._SyncObj__setState(self, newState)
        if old != LEADER and newState == LEADER:
            self._promoted = False
            self._transfer = None
            self._admitting.restart()
            for peer in self._peers:
                self._progress[peer].clear()
        elif old == LEADER and newState != LEADER:
            self._demote()

    def _demote(self) -> None:
        """Leadership is lost: what waited has an unknown outcome (pso-F16, F17)."""
        self._election_deadline = self._clock() + self._SyncObj__generateRaftTimeout()
        self._promoted, self._transfer = False, None
        self._snapshots.cancel_all()
        for peer in self._peers:
            self._progress[peer].clear()
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        for _, _, done in waiting.values():
            done(Unknown())
        self._reads.fail()
        self._machine.role_changed(self.role, self._term)

    # Applying.

    def _SyncObj__applyLogEntries(self) -> bool:
        """Apply what is committed, at most so many entries and milliseconds in one tick."""
        if self._reloading and not self._continue_reload():
            return False
        if self._rebuilding:
            return False
        if self._commit <= self._applied:
            return False
        deadline = self._clock() + self._ms(self._settings.apply_ms)
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
        return False

    def _keep_applied(self) -> None:
        """State and applied index travel in one batch; soft, since the log can be applied again."""
        self._snapshots.applied_index = self._applied
        self._batch.put_applied(self._applied)

    def _apply(self, entry: Entry) -> None:
        command, index, term = entry
        invariant(index == self._applied + 1, f"entry {index} applied after {self._applied}")
        self._applying = entry
        result = self._SyncObj__doApplyCommand(command)
        self._applied = index
        waiting = self._waiting.pop(index, None)
        if waiting is not None:
            self._waiting_bytes -= waiting[1]
            invariant(waiting[0] == term, f"entry {index} is not the one that was proposed")
            waiting[2](Applied(index, term, result))
        own_noop = self._state == LEADER and index == self._noop_index
        if own_noop and not self._promoted:
            self._promoted = True
            self._machine.role_changed(Role.LEADER, self._term)

    def _SyncObj__doApplyCommand(self, command: bytes) -> object:
        """By kind. What a machine raises stops the process: better than diverging."""
        entry = self._applying
        if entry is None:
            raise BrokenInvariantError("commands are applied by applyLogEntries only")
        kind = command[0]
        if kind == KIND_COMMAND:
            return self._machine.apply(entry[1], entry[2], command[1:], self._batch)
        if kind == KIND_ADMITTED:
            self._admit(decode_admission(command[1:]))
        elif kind != KIND_NOOP:
            raise BrokenInvariantError(
                f"shard {self._shard}: entry {entry[1]} is of kind {kind}, "
                "which this version does not know: install the version that wrote it"
            )
        return None

    def _admit(self, admission: Admission) -> None:
        """A ReplicaAdmitted entry takes effect; a newcomer starts with a vote for that leader."""
        was_learner = self.learner
        self._book.admit(self._shard, admission)
        if admission.node != self._me.id or not was_learner or self.learner:
            return
        if self._term == admission.term and self._voted_for is None:
            self._set_term(self._term, admission.leader)
        self._host.store.mark_hard()

    def _SyncObj__tryLogCompaction(self) -> None:
        """State is on disk with its applied index, so the log's front may go when it is long."""
        self._log.trim(self._applied)

    # Installing a snapshot.

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: N803 - PySyncObj's name
        """The last chunk has arrived: one small batch makes its state ours."""
        invariant(clearJournal, "the base loads a dump only for a snapshot that arrived")
        arrived = self._snapshots.take_arrived()
        _, index, term = arrived.entry
        self._verified = index
        again = self._rebuilding and index == self._applied
        if index <= self._applied and not again:  # pso-F5c: never an older state over a newer one
            return
        self._rebuilding = self._snapshots.wanted = False
        if not self._log.matches(index, term):
            self._log.reset(arrived.entry)
        self._snapshots.flip(arrived)
        for admission in arrived.admissions:
            self._admit(decode_admission(admission))
        self._applied = index
        self._commit = max(self._commit, index)
        self._batch = ShardBatch(self._host.store, self._shard, self._snapshots.local_id)
        self._loading = None
        self._reload_epoch = self._host.store.pending_epoch
        self._host.mark(self._shard)

    def _continue_reload(self) -> bool:
        """Load the installed state in slices; True when the machine is up to date."""
        store = self._host.store
        if self._reload_epoch is not None:
            if store.written_epoch < self._reload_epoch:
                store.write()
            if store.written_epoch < self._reload_epoch:
                return False
            self._reload_epoch = None
            self._loading = self._reload()
            self._snapshots.drop_old()
        deadline = self._clock() + self._ms(self._settings.reload_ms)
        while self._loading is not None:
            if next(self._loading, self) is self:
                self._loading = None
            elif self._clock() > deadline:
                return False
        return True

    def stored(self) -> ShardView:
        """What is written of this shard; a scan begun now stays at this moment."""
        return ShardView(self._host.store, self._shard, self._snapshots.local_id, self._applied)

    def _reload(self) -> Iterator[None] | None:
        return self._machine.reload(self.stored())

    def load(self) -> None:
        """At start, before the first turn: let the machine load its state, all of it."""
        for _ in self._reload() or ():
            pass
