"""Appends and their answers: sanitise what arrives, then let PySyncObj's core act on it.

Sources: the thesis, section 3.5 (log replication, with "AppendEntries" of Figure 3.1) and section
10.2 (pipelining, and writing to the leader's disk in parallel); the flaws pso-F1, pso-F2, pso-F5b,
pso-F14 and pso-F20; raft-2.
"""

from collections.abc import Callable

from musterd.invariant import invariant
from musterd.raft.codec import Message, message_bytes
from musterd.raft.contract import Examination, Room, ShardId
from musterd.raft.heartbeat_rounds import RoundTimes
from musterd.raft.host import Host
from musterd.raft.journal import Journal
from musterd.raft.log_format import KIND_ADMITTED, Entry
from musterd.raft.peers import ReplicaAdmission, decode_admission
from musterd.raft.progress import Progress
from musterd.raft.reads import Reads
from musterd.raft.replica.pysyncobj_adapter import FOLLOWER, LEADER, PeerNode
from musterd.raft.replica.voting import Voting
from musterd.raft.snapshots import Snapshots

_ANNOUNCE_READ = 64
"""Entries that one read of the journal hands on."""


class Replication(Voting):
    """Sends entries and snapshots from the leader to followers, and answers back."""

    def __init__(
        self, host: Host, shard: ShardId, journal: Journal, examine: Callable[[], Examination]
    ) -> None:
        self._told_commit = 0
        """The commit index that the leader stated last, whatever of it this replica holds."""
        self._verified: int | None = None
        """While an append is handled: up to where our log is known to equal the leader's."""
        self._in_seq = 0
        self._in_empty = False
        self._seq = 0
        """Number of the last append sent; rises for the life of the process."""
        self._resend_at = 0.0
        self._send_wanted = False
        self._round_wanted = False
        self._reads = Reads()
        self._rounds = RoundTimes(
            self._ms(host.settings.quorum_ms), self._ms(host.settings.heartbeat_ms) / 4
        )
        self._snapshots = Snapshots(host, shard, journal, examine)
        super().__init__(host, shard, journal)
        self._progress = {
            peer: Progress(host.settings, host.budget(peer.id)) for peer in self._peers
        }
        self._serializer = self._snapshots

    # Receiving appends, as a follower.

    def _on_append(self, peer: PeerNode, message: Message) -> None:
        """Take an append, or end where its sender leads the term that this replica leads.

        No damage on the way says so (a frame has a checksum, and names its sender's store and
        life): somebody voted twice, or two processes run on one store. Who leads the rest of the
        cluster is not known here, and to go on would acknowledge in both halves.
        """
        term = message["term"]
        if term < self._term:
            self._reject(peer)
            return
        invariant(
            term > self._term or self._state != LEADER,
            f"shard {self._shard}: two leaders in term {term}",
        )
        if self._state == LEADER:
            # The base would step down only after `_keep_matching`, and what this log held until
            # then would be announced over what the message brings.
            self._step_down(term)
        self._hear_leader(message)
        invariant(message["prevLogIdx"] >= 1, "an append without the entry before it")
        self._keep_matching(message)
        if self._is_news(peer, message):
            self._base_receive(peer, message)
        else:
            self._take_heartbeat(peer, message)

    def _is_news(self, peer: PeerNode, message: Message) -> bool:
        """Whether an append says more than that the leader we follow is alive, and its commit."""
        return (
            self._verified is None
            or bool(message["entries"])
            or message["prevLogIdx"] != self._log.last_index
            or message["term"] != self._term
            or self._leader != peer
            or self._state != FOLLOWER
            or self._transfer_in_progress
        )

    def _take_heartbeat(self, peer: PeerNode, message: Message) -> None:
        """Handle an append that matches and adds nothing, as the base does; most messages are such.

        The next election is put off, the answer says so, the commit index follows (already capped).
        """
        self._put_election_off(self._clock())
        self._answer_append(peer, self._log.last_index + 1, reset=False, success=True)
        self._commit = max(self._commit, message["commit_index"])

    def _hear_leader(self, message: Message) -> None:
        self._leader_spoke()
        self._told_commit = message["commit_index"]
        self._in_seq = message.get("seq", 0)
        self._in_empty = not message.get("entries")
        self._verified = None

    def _verified_by_snapshot(self, index: int) -> None:
        """A snapshot arrived: up to its `index` our log equals the leader's."""
        self._verified = index

    def _keep_matching(self, message: Message) -> None:
        """Truncation guard (pso-F1): cut nothing that matches (thesis Figure 3.1, AppendEntries 3).

        The base cuts behind prevLogIdx whatever arrives. So it is handed only what starts at the
        first conflict or behind our log, or nothing at all where everything is known already.
        """
        log = self._log
        prev, entries = message["prevLogIdx"], message["entries"]
        first, last = log.first_index, log.last_index
        if prev > last:
            return  # the base answers with a reset to last + 1
        top = prev + len(entries)
        if prev < first:  # below our anchor everything is committed, hence the same
            entries = entries[first - prev :]
            prev = first
        elif log.term_at(prev) != message["prevLogTerm"]:
            return  # the base answers with a reset
        known = self._matching(entries)
        if self._host.rooms.own is Room.NONE and known < len(
            entries
        ):  # none is taken, all come again
            entries, top = entries[:known], prev + known
        if known == len(entries):
            prev, entries = last, []
        else:
            prev, entries = prev + known, entries[known:]
            invariant(
                prev >= self._commit or prev == last,
                f"shard {self._shard}: a conflict below the commit index {self._commit}",
            )
            if prev < last:
                self._announce_unapplied(prev)  # what is cut is void
            self._announce(entries)
        message["prevLogIdx"], message["entries"] = prev, entries
        message["prevLogTerm"] = log.term_at(prev)
        self._verified = top
        message["commit_index"] = self._append_commit(message["commit_index"], top)

    def _matching(self, entries: list[Entry]) -> int:
        log, known = self._log, 0
        for _, index, term in entries:
            if index > log.last_index or log.term_at(index) != term:
                break
            known += 1
        return known

    def _announce_unapplied(self, last: int) -> None:
        """Announce the admissions that the log has behind the applied state, up to `last`."""
        self._book.forget_unapplied(self._shard)
        at = self._applied + 1
        while at <= last:
            count = min(_ANNOUNCE_READ, last - at + 1)
            entries = self._log.read(at, count, self._settings.message_bytes)
            self._announce(entries)
            at = entries[-1].log_index + 1

    def _announce(self, entries: list[Entry]) -> None:
        """A ReplicaAdmitted entry counts from the moment it is in the log (raft/peers.py).

        The second one of a leader that still leads counts there when it is applied.
        """
        for command, _, term in entries:
            if command[0] == KIND_ADMITTED:
                admission = decode_admission(command[1:])
                if admission.effective and self._state == LEADER and term == self._term:
                    continue
                was_learner = self.learner
                self._book.announce(self._shard, admission)
                self._begin_to_vote(admission, was_learner)

    def _begin_to_vote(self, admission: ReplicaAdmission, was_learner: bool) -> None:
        """A newcomer starts with a vote for the leader that admitted it, in that leader's term."""
        if admission.node != self._me.id or not was_learner or self.learner:
            return
        term, voted_for = self._term, self._voted_for
        if term < admission.term or (term == admission.term and voted_for is None):
            self._base_set_term(admission.term, admission.leader)

    def _append_commit(self, leader_commit: int, verified: int) -> int:
        """Commit cap: never beyond what this append has verified (thesis Figure 3.1, 5)."""
        return min(leader_commit, verified)

    def _snapshot_commit(self, leader_commit: int) -> int:
        """Snapshot commit cap (pso-F5b): a chunk proves nothing about our log's tail."""
        return min(leader_commit, self._commit)

    def _answer_append(
        self, peer: PeerNode, wanted: int | None, *, reset: bool, success: bool
    ) -> None:
        """Answer an append with term and message number, claiming no more than was verified.

        A reset asks for commitIndex + 1 at once: our committed prefix always matches.
        """
        next_index = self._log.last_index + 1 if wanted is None else wanted
        if reset and wanted is not None:
            next_index = min(next_index, self._commit + 1)
        if success and self._verified is not None:
            next_index = min(next_index, self._verified + 1)
        self._reply(peer, next_index, reset, success)

    def _reply(self, peer: PeerNode, next_index: int, reset: bool, success: bool) -> None:
        """Answer an empty append at once with what is durable, entries when they are durable.

        So a stalled disk deposes nobody, and a ReadIndex round costs no sync.
        """
        term_durable = self._log.term_durable()
        durable = self._log.durable_index()
        if self._in_empty and success and term_durable:
            next_index = min(next_index, durable + 1)
        message = {
            "type": "next_node_idx",
            "term": self._term,
            "seq": self._in_seq,
            "next_node_idx": next_index,
            "reset": reset,
            "success": success,
            "behind": self._is_behind,
        }
        early = term_durable and (not success or next_index <= durable + 1)
        self._host.post(self._shard, peer.id, message, self._hold(message) and not early)

    @property
    def _is_behind(self) -> bool:
        """Whether it could not serve at once if it led."""
        unapplied = max(self._commit, self._told_commit) - self._applied
        return self._rebuilding or unapplied > self._settings.message_entries

    # Receiving answers, as the leader.

    def _on_reply(self, peer: PeerNode, message: Message) -> None:
        if message["term"] > self._term:
            self._step_down(message["term"])
            return
        if message["term"] < self._term or self._state != LEADER:
            return  # pso-F2: an answer to another leadership
        if message["success"] and message["next_node_idx"] - 1 > self._log.last_index:
            return
        if message["seq"] > self._seq:
            return  # nothing that was sent has this number
        progress = self._progress[peer]
        next_before = self._next[peer]
        self._ignore_stale_reset(peer, message, progress)
        reset = message["reset"]
        self._base_receive(peer, message)
        if reset:
            progress.clear()
            self._next[peer] = min(self._next[peer], self._log.last_index + 1)
            self._resend_soon()
        else:
            self._next[peer] = max(next_before, self._next[peer])
            progress.acked(self._match[peer])
            self._send_wanted = self._send_wanted or self._has_unsent()
        progress.echoed(message["seq"], behind=message.get("behind", False))
        sent_at = self._sent_at(message["seq"])
        if sent_at is not None:
            progress.heard(sent_at, self._clock())

    def _sent_at(self, seq: int) -> float | None:
        """When the append `seq` was sent at the earliest; None where that is no help any more."""
        return self._rounds.begun_at(seq)

    def _ignore_stale_reset(self, peer: PeerNode, message: Message, progress: Progress) -> None:
        """Void a reset at or below what matched, or older than the last one handled (pso-F14)."""
        if message["reset"]:
            beyond = message["next_node_idx"] > self._match[peer]
            message["reset"] = beyond and progress.takes_reset(message["seq"], self._seq)

    def _resend_soon(self) -> None:
        """At most one eager re-send per quarter of a heartbeat: no storms under reordering."""
        now = self._clock()
        if now >= self._resend_at:
            self._resend_at = now + self._ms(self._settings.heartbeat_ms) / 4
            self._send_wanted = True

    def _quorum_seq(self) -> int:
        """The greatest message number that a majority, this leader included, has echoed."""
        seqs = sorted(
            (self._progress[peer].ack_seq for peer in self._peers if self._counts(peer)),
            reverse=True,
        )
        others = self._quorum - 1
        return seqs[others - 1] if len(seqs) >= others else 0

    # Sending, as the leader.

    def _has_unsent(self) -> bool:
        """Whether the log has what was not sent to some peer yet."""
        last, sent = self._log.last_index, self._next
        return any(sent[peer] <= last for peer in self._peers)

    def _want_send(self) -> None:
        """Send what the windows allow in this turn or the next."""
        self._send_wanted = True
        self._host.mark(self._shard)

    def _want_round(self) -> None:
        """Begin a round in this turn or the next."""
        self._round_wanted = True
        self._host.mark(self._shard)

    def _send_round(self) -> None:
        """A round: to every connected peer what its window allows, and a heartbeat in any case.

        The next one is due at a whole multiple of the period, so that all shards which this node
        leads share a turn and a frame.
        """
        period = self._ms(self._settings.heartbeat_ms)
        now = self._clock()
        self._heartbeat_due = (now // period + 1) * period
        self._rounds.begin(self._seq + 1, now)
        self._round_wanted = self._send_wanted = False
        for peer in self._peers:
            if peer in self._connected:
                self._send_entries(peer)
                self._send_heartbeat(peer)

    def _send_due(self) -> None:
        """After proposals or answers: what the windows allow."""
        if self._round_wanted:
            self._send_round()
        elif self._send_wanted:
            self._send_wanted = False
            for peer in self._peers:
                if peer in self._connected:
                    self._send_entries(peer)

    def _send_entries(self, peer: PeerNode) -> None:
        now, progress, log = self._clock(), self._progress[peer], self._log
        if progress.stale(now):
            progress.clear()
            self._next[peer] = self._next_after_loss(peer)
        if self._snapshots.sending(peer.id):
            self._send_chunks(peer)
            return
        if self._next[peer] <= log.first_index:
            self._start_snapshot(peer)
            return
        settings = self._settings
        while self._next[peer] <= log.last_index and progress.open(self._match[peer] == 0):
            start = self._next[peer]
            entries = log.read(start, settings.message_entries, settings.message_bytes)
            message = self._append_message(start - 1, entries)
            progress.sent(entries[-1].log_index, message_bytes(message), now)
            self._next[peer] = entries[-1].log_index + 1
            self._send_node(peer, message)

    def _forget_in_flight(self, peer: PeerNode) -> None:
        """Forget what was on its way to `peer`: it is lost."""
        self._snapshots.cancel(peer.id)
        self._progress[peer].clear()
        if self._state == LEADER:
            self._next[peer] = self._next_after_loss(peer)

    def _next_after_loss(self, peer: PeerNode) -> int:
        """Where to go on when what is in flight was lost: behind what the follower surely holds.

        Where nothing is known yet, at our end: its answer says how far back to go (thesis 3.5). To
        begin at 1 would give it the whole state although the log has what it misses.
        """
        match, log = self._match[peer], self._log
        return max(match, log.first_index) + 1 if match else log.last_index + 1

    def _send_heartbeat(self, peer: PeerNode) -> None:
        """Send an empty append, whose answer need not wait for the follower's disk.

        It checks the end of what was sent, which finds losses, unless it may overtake that on the
        other connection.
        """
        log = self._log
        prev = self._next[peer] - 1
        if self._progress[peer].bulky:
            prev = self._match[peer]
        prev = min(max(prev, log.first_index), log.last_index)
        self._send_node(peer, self._append_message(prev, []))

    def _append_message(self, prev: int, entries: list[Entry]) -> Message:
        self._seq += 1
        return {
            "type": "append_entries",
            "term": self._term,
            "seq": self._seq,
            "commit_index": self._commit,
            "prevLogIdx": prev,
            "prevLogTerm": self._log.term_at(prev),
            "entries": entries,
        }

    # Snapshots (raft/snapshots.py has the how).

    def _start_snapshot(self, peer: PeerNode) -> None:
        if not self._rebuilding and self._snapshots.start(peer.id):
            self._send_chunks(peer)

    def _on_wanted(self, peer: PeerNode, message: Message) -> None:
        """A follower's state is wrong: it gets all of it, though our log reaches back to it."""
        leads = self._state == LEADER and message["term"] == self._term
        if leads and not self._snapshots.sending(peer.id):
            self._start_snapshot(peer)

    def _send_chunks(self, peer: PeerNode) -> None:
        for chunk in self._snapshots.chunks(peer.id):
            chunk["term"], chunk["commit_index"] = self._term, self._commit
            self._send_node(peer, chunk)

    def _on_snapshot(self, peer: PeerNode, message: Message) -> None:
        kind = message["type"]
        if kind == "snapshot_chunk":
            self._on_chunk(peer, message)
        elif kind == "snapshot_ack":
            self._on_ack(peer, message)
        elif kind == "snapshot_wanted":
            self._on_wanted(peer, message)

    def _on_chunk(self, peer: PeerNode, message: Message) -> None:
        """Let the base take a chunk, as an append without prevLogIdx; it is leader contact.

        The base hands the chunk to `_serializer`; after the last one comes `_install_snapshot`.
        """
        if message["term"] < self._term:
            self._reject(peer)
            return
        invariant(
            message["term"] > self._term or self._state != LEADER,
            f"shard {self._shard}: two leaders in term {message['term']}",
        )
        self._hear_leader(message)
        self._in_empty = False
        if self._host.rooms.own is Room.NONE:
            return  # the snapshot is given up, and begins anew when there is room
        append = {
            "type": "append_entries",
            "term": message["term"],
            "commit_index": self._snapshot_commit(message["commit_index"]),
            "serialized": (peer.id, message),
        }
        self._base_receive(peer, append)
        ack = {
            "type": "snapshot_ack",
            "term": self._term,
            "snapshot_id": message["snapshot_id"],
            "next_number": self._snapshots.next_number(peer.id, message),
        }
        self._send_node(peer, ack)

    def _on_ack(self, peer: PeerNode, message: Message) -> None:
        if message["term"] > self._term:
            self._step_down(message["term"])
        elif message["term"] == self._term and self._state == LEADER:
            self._last_response[peer] = self._clock()
            finished = self._snapshots.acked(
                peer.id, message["snapshot_id"], message["next_number"]
            )
            if finished is not None:
                self._progress[peer].clear()
                self._next[peer] = max(self._next[peer], finished + 1)
                self._send_wanted = True
            else:
                self._send_chunks(peer)
