"""Ticks: what a replica does when it is its turn, around one tick of PySyncObj's core.

Sources: thesis sections 3.10 and 6.4; raft-3, raft-4 and raft-11.
"""

from collections.abc import Collection

from musterd.raft.admission import Admitting
from musterd.raft.codec import Message
from musterd.raft.contract import NodeId, ShardId, StateMachine
from musterd.raft.host import Host
from musterd.raft.journal import Journal
from musterd.raft.log_format import KIND_ADMITTED
from musterd.raft.notices import ElectionCause, LeadershipLost
from musterd.raft.peers import ReplicaAdmission
from musterd.raft.replica.applying import Applying
from musterd.raft.replica.pysyncobj_adapter import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    NEVER,
    PeerNode,
)
from musterd.raft.transfer import Transfer

_APPENDING = frozenset({"append_entries", "next_node_idx"})


class Ticking(Applying):
    """Turns of a follower, of a leader, and of the only node of its cluster."""

    def __init__(self, host: Host, shard: ShardId, journal: Journal, machine: StateMachine) -> None:
        self._transfer = Transfer()
        self._uncapped: dict[PeerNode, int] = {}
        """The match indexes during a tick, in which the base sees lower ones."""
        self._admitting = Admitting()
        self._admit_at = 0.0
        super().__init__(host, shard, journal, machine)

    def wants_tick(self, message: Message, term: int) -> bool:
        """Whether a tick could do anything now that `message` was received, in `term` until then.

        Nearly all that arrives at rest are heartbeats and their answers, and nothing follows from
        them: a tick would look at everything and change nothing. What is due by time comes with the
        driver's timer, what waits for the disk with its sync.
        """
        if message["type"] not in _APPENDING or self._term != term:
            return True
        if self._commit > self._applied or self._reloading or self._rebuilding:
            return True
        if self._state != LEADER:
            return self._state != FOLLOWER or bool(message.get("entries"))
        return (
            self._commit < self._log.last_index
            or not self._promoted
            or self._round_wanted
            or self._transfer.target is not None
            or len(self._reads) > 0
            or self._has_unsent()
        )

    def _tick(self) -> None:
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
        if self._transfer.target is not None:
            self._tick_transfer(self._by_id[self._transfer.target])
        elif self._rebuilding:
            self._give_way()
        if self._promoted and self._peers:
            self._admit_newcomers()
        if self._reads:
            quorum_seq = self._quorum_seq() if self._peers else self._seq + 1
            self._reads.advance(quorum_seq, self._applied)

    def _tick_leading(self) -> None:
        """Tick the base with the followers' match capped (raft-3).

        The base counts the leader itself for every index it has. So each follower's match is at
        most what is durable here, and nothing for those that do not count: the base then commits
        min(majority, own durable index).

        The base steps down where no majority answered within `quorum_ms`, however old the answers
        were: a leader that was stopped itself shall have the time to ask, and none of what it stood
        still counts (`stood_still`). But who answered nothing in time for twice as long does not
        count: a leader that may say nothing (`quorum_heard`) shall not keep others from leading.
        """
        durable = self._durable_cap()
        silent_before = self._clock() - 2 * self._ms(self._settings.quorum_ms)
        real = self._match
        capped = {}
        for peer in self._peers:
            if self._counts(peer):
                capped[peer] = min(real[peer], durable)
                silent = self._progress[peer].answered_at < silent_before
            else:
                capped[peer] = 0
                silent = True
            if silent:
                self._last_response[peer] = -NEVER
        self._match, self._uncapped = capped, real
        try:
            self._base_tick()  # the commit rule: what it commits is durable; then it applies
        finally:
            if self._match is capped:
                self._match = self._uncapped
            self._uncapped = {}

    def _forget_acknowledged(self, peer: PeerNode) -> None:
        """Forget what `peer` acknowledged to this leader."""
        self._match[peer] = 0
        if peer in self._uncapped:  # it is said by an entry, which a tick applies
            self._uncapped[peer] = 0
        self._next[peer] = self._log.last_index + 1
        self._last_response[peer] = -NEVER
        self._progress[peer].forget()

    def _durable_cap(self) -> int:
        """By raft-3 a leader commits at most its own durable index."""
        return self._log.durable_index()

    def _tick_alone(self) -> None:
        """A cluster of one: what is durable here is committed (raft-4)."""
        durable = self._durable_cap()
        if durable > self._commit and self._log.term_at(durable) == self._term:
            self._commit = durable
        self._apply_committed()
        if self._clock() > self._heartbeat_due:
            self._send_round()
        self._send_due()
        self._trim_log()

    def rebuild(self, trusted: Collection[NodeId]) -> None:
        """Begin no hand-over, and end the one that runs, to a node that is not trusted."""
        super().rebuild(trusted)
        target = self._transfer.target
        if target is not None and not self._trusts(self._by_id[target]):
            self._transfer.end()

    def _begin_transfer(self, target: PeerNode) -> None:
        until = self._clock() + self._ms(self._settings.transfer_ms)
        self._transfer.begin(NodeId(target.id), until)
        self._host.mark(self._shard)

    def _give_way(self) -> None:
        """A leader whose state is wrong serves nobody: whoever has its log shall lead instead.

        It stood because nobody else could. A follower whose state is wrong too declines, so the
        choice is drawn anew each time.
        """
        last = self._log.last_index
        able = [
            peer
            for peer in self._peers
            if peer in self._connected
            and self._counts(peer)
            and self._trusts(peer)
            and self._match[peer] == last
        ]
        if able:
            self._begin_transfer(self._host.rng.choice(able))

    def _tick_transfer(self, target: PeerNode) -> None:
        connected = target in self._connected
        holds_all = self._match[target] == self._log.last_index
        if self._transfer.step(self._clock(), connected=connected, holds_all=holds_all):
            self._send_node(target, {"type": "timeout_now", "term": self._term})

    def _admit_newcomers(self) -> None:
        """Bring replaced and forgetful nodes back into the quorum, step by step (raft/peers.py)."""
        now = self._clock()
        if now < self._admit_at:
            return
        self._admit_at = now + self._ms(self._settings.admission_ms)
        newcomers = self._book.newcomers(self._shard)
        if not newcomers:
            return
        holds = {peer.id: self._match[peer] for peer in self._peers}
        for node, store_uuid, life in newcomers:
            voters = [
                holds[peer.id]
                for peer in self._peers
                if self._counts(peer) or self._admitting.counts_elsewhere(peer.id)
            ]
            held_by_voters = min([*voters, self._durable_cap()])
            step = self._admitting.next_step(node, store_uuid, life, held_by_voters, holds[node])
            if step is None:
                continue
            admission = ReplicaAdmission(
                node, store_uuid, self._term, self._me.id, effective=step, life=life
            )
            index = self._append_own(bytes((KIND_ADMITTED,)) + admission.encode())
            if not step:
                self._book.announce(self._shard, admission)
            self._admitting.appended(admission, index)
            self._want_send()

    def _set_state(self, state: int) -> None:
        old = self._state
        self._base_set_state(state)
        self._note_election(state)
        if old != LEADER and state == LEADER:
            self._transfer.end()
            self._admitting.restart()
            self._rounds.restart()
            # Nobody is heard yet; so long may the first answer take (`_tick_leading`).
            heard_at = self._clock() - self._ms(self._settings.quorum_ms)
            for peer in self._peers:
                self._progress[peer].restart(heard_at)
        elif old == LEADER and state != LEADER:
            self._forget_own_lead()
            self._demote()

    def _note_election(self, state: int) -> None:
        if state == LEADER:
            self._candidacy.won(self._term)
        elif state == CANDIDATE:
            self._candidacy.stand(self._term + 1)
        else:
            self._candidacy.lost()

    def _forget_own_lead(self) -> None:
        """The base does so too, but only after callers were told who leads in the later term."""
        if self._leader == self._me:
            self._leader = None

    def _demote(self) -> None:
        """Leadership is lost: what waited has an unknown outcome (pso-F16, pso-F17)."""
        self._host.tell(LeadershipLost(self._shard, self._term, self._transfer.target))
        self._candidacy.because(ElectionCause.LEADERSHIP_LOST)
        self._put_election_off(self._clock())
        self._transfer.end()
        if self._book.newcomers(self._shard):
            self._announce_unapplied(self._log.last_index)  # what it was about to admit, too
        self._snapshots.cancel_all()
        for peer in self._peers:
            self._progress[peer].clear()
        self._lose_leadership()
