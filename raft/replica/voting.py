"""Elections: pre-vote, sticky voters, one vote per voter and term, broken links as silence.

Sources: thesis sections 3.4 and 3.6 (elections), 9.6 (pre-vote), 4.2.3 (voters that hear a leader
ignore candidates), 3.10 (transfer); the flaws pso-F2, pso-F7, pso-F8, pso-F8b, pso-F16.
"""

from musterd.raft.candidacy import Candidacy
from musterd.raft.codec import Message
from musterd.raft.contract import NodeId, Role, Room, ShardId
from musterd.raft.host import Host
from musterd.raft.journal import Journal
from musterd.raft.notices import ElectionCause
from musterd.raft.pre_vote import PreVote, RefusedPreVote
from musterd.raft.replica.pysyncobj_adapter import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    NEVER,
    PeerNode,
    SyncObjAdapter,
)

_ROLES = {FOLLOWER: Role.FOLLOWER, CANDIDATE: Role.CANDIDATE, LEADER: Role.LEADER}
_STANDING = frozenset({"pre_vote", "request_vote"})
_SKIPPED_TERMS = 1 << 20
_PASSED_OVER_MAX = 3
"""So many elections a replica whose state is wrong leaves to the others."""


class Voting(SyncObjAdapter):
    """Gains and gives up leadership."""

    _rebuilding: bool
    """Its applied state is wrong and all of it is awaited from the leader (`Applying`)."""

    def __init__(self, host: Host, shard: ShardId, journal: Journal) -> None:
        self._votes_term = -1
        self._votes_from: set[int] = set()
        self._pre_vote = PreVote()
        self._force_term: int | None = None
        """The term of an election that a leadership transfer asked for."""
        self._candidacy = Candidacy(shard, host.tell)
        self._contact: float | None = None
        """When the leader was last heard."""
        self._passed_over = 0
        """How many elections it left to the others since a leader was heard."""
        self._put_off: float | None = None
        """An election deadline that was put off once because this node stood still."""
        super().__init__(host, shard, journal)

    @property
    def role(self) -> Role:
        """LEARNER while the shard has yet to admit this node."""
        if self._state != LEADER and self.learner:
            return Role.LEARNER
        return _ROLES[self._state]

    @property
    def learner(self) -> bool:
        """Whether its node was replaced and this shard has not admitted it: no votes yet."""
        return self._book.is_learner(self._shard)

    @property
    def _abstains(self) -> bool:
        """Whether it declines to lead: a learner, one whose state is wrong or whose disk hangs."""
        return self.learner or self._rebuilding or self._keeps_out

    @property
    def _keeps_out(self) -> bool:
        """Whether it takes no part in elections: a vote would not leave before its disk returns."""
        return self._host.disk_hangs

    def _waits_for_others(self) -> bool:
        """Whether this election is left to others.

        A replica whose state is wrong leaves a few to them. Then it stands all the same, since its
        log may be the only one that is long enough; as a leader it gives way (ticking.py).
        So does one whose loss was accepted, until it is admitted: others may have what it lost. And
        one whose disk has no room.
        """
        if self.learner or self._keeps_out:
            return True
        fit = not self._rebuilding and self._host.rooms.own is not Room.NONE
        if fit and self._book.is_admitted(self._shard, self._me.id):
            return False
        self._passed_over += 1
        return self._passed_over <= _PASSED_OVER_MAX

    # Standing for election.

    def _may_elect(self, now: float) -> bool:
        """The election deadline has passed: whether the base may start an election in this tick."""
        if self._waits_for_others():
            self._pre_vote.cancel()
            self._put_election_off(now)
            return False
        next_term = self._term + 1
        if self._transfer_in_progress:
            self._force_term = next_term
            self._candidacy.because(ElectionCause.TRANSFER)
            return True
        if self._pre_vote.take_won(next_term):
            return True
        self._start_pre_vote(now)
        return False

    def _start_pre_vote(self, now: float) -> None:
        self._election_deadline = now + self._begin_pre_vote()
        last_term, last_index = self._last_log()
        for peer in self._peers:
            self._send_node(
                peer,
                {
                    "type": "pre_vote",
                    "term": self._term,
                    "next_term": self._term + 1,
                    "last_log_index": last_index,
                    "last_log_term": last_term,
                },
            )

    def _begin_pre_vote(self) -> float:
        """How long this pre-vote is waited for: seconds. Answers that come later still count."""
        doublings = self._pre_vote.begin(self._term + 1)
        timeout = self._election_timeout()
        if doublings is None:
            return timeout
        soon = self._ms(self._settings.pre_vote_retry_ms << doublings)
        return min(timeout, soon * (0.75 + self._host.rng.random() / 2))

    def _leave_it_to(self, peer: PeerNode, next_term: int) -> None:
        """Who would vote for another does not stand beside it, or the votes would split.

        Where both have asked, the one that comes first in the shard's order of successors goes on.
        """
        asks = self._pre_vote.is_about(next_term)
        if asks and self._rank(self._me.id) < self._rank(peer.id):
            return
        self._pre_vote.cancel()
        low, high = self._settings.bystander_min_ms, self._settings.bystander_max_ms
        wait = self._ms(low) + self._ms(high - low) * self._host.rng.random()
        self._election_deadline = max(self._election_deadline, self._clock() + wait)

    def _rank(self, node: int) -> int:
        """Place of `node` among the successors of this shard's leader; 0 is the driver's choice.

        Two replicas may see it differently for a moment: then both stand, or neither, for once.
        """
        gone = None if self._leader is None else self._leader.id
        survivors = [one for one in self._host.identity.nodes if one != gone]
        if node not in survivors:
            return len(survivors)
        return (survivors.index(NodeId(node)) - self._shard) % len(survivors)

    def _on_pre_vote(self, peer: PeerNode, message: Message) -> None:
        if self._keeps_out:
            return
        could = (
            message["next_term"] > self._term
            and (message["last_log_term"], message["last_log_index"]) >= self._last_log()
        )
        granted = could and not self._sticky()
        alive = could and not granted
        self._pre_vote.note_refused(
            RefusedPreVote(peer.id, message, self._clock()) if alive else None
        )
        if granted:
            self._leave_it_to(peer, message["next_term"])
        self._send_node(
            peer,
            {
                "type": "pre_vote_reply",
                "term": self._term,
                "next_term": message["next_term"],
                "granted": granted,
            },
        )

    def _on_pre_vote_reply(self, peer: PeerNode, message: Message) -> None:
        if message["term"] > self._term:
            self._step_down(message["term"])
            return
        next_term = self._term + 1
        counts = message["granted"] and message["next_term"] == next_term
        if not counts or self._state == LEADER:
            return
        if self._pre_vote.granted(peer.id, next_term, self._quorum):
            self._election_deadline = 0.0

    def _sticky(self) -> bool:
        """Whether candidates are ignored: a leader is alive, or was before this start."""
        if self._state == LEADER:
            return True
        now, quiet = self._clock(), self._ms(self._settings.election_min_ms)
        if now < self._started + quiet:
            return True
        return self._contact is not None and now < self._contact + quiet

    def leader_lost(self, node: int, delay_ms: float) -> None:
        """The control connection to `node` broke: if it leads us, that is silence.

        Ask for votes after `delay_ms`; voters that still hear the leader refuse (raft-9). Whoever
        was refused for that by this one, a moment ago, is answered again.
        """
        if self._state == LEADER or self._leader is None or self._leader.id != node:
            return
        self._contact = None
        self._candidacy.because(ElectionCause.CONNECTION_LOST)
        self._pre_vote.leader_lost()
        now = self._clock()
        if delay_ms > 0:
            self._election_deadline = min(self._election_deadline, now + delay_ms / 1000)
        else:
            self._election_deadline = 0.0
            self._host.mark(self._shard)
        refused = self._pre_vote.take_refused(now - self._ms(self._settings.bystander_max_ms))
        if refused is not None:
            self._on_pre_vote(self._by_id[refused.node], refused.message)

    def _leader_spoke(self) -> None:
        self._contact = self._clock()
        self._candidacy.because(ElectionCause.LEADER_SILENT)
        self._pre_vote.leader_heard()
        self._passed_over = 0

    def _put_election_off(self, now: float) -> None:
        self._election_deadline = now + self._election_timeout()

    def _put_election_off_once(self, since: float, now: float, step_s: float) -> None:
        """A deadline that fell into `since` until now, when this node stood still, is moved."""
        if since <= self._election_deadline < now and self._election_deadline != self._put_off:
            self._election_deadline = self._put_off = now + step_s

    def set_first_deadline(self, delay_ms: int) -> None:
        """After a start: when to ask for votes for the first time."""
        self._election_deadline = self._clock() + self._ms(delay_ms)

    def _send_node(self, node: PeerNode, message: Message) -> None:
        """Mark the election that a transfer asked for (thesis section 4.2.3).

        Voters answer it although they hear the leader.
        """
        if message["type"] == "request_vote" and self._force_term == message["term"]:
            message["force"] = True
        super()._send_node(node, message)

    # Votes.

    def _on_voting(self, peer: PeerNode, message: Message) -> None:
        """Handle vote messages; who counts, and who is answered, raft/peers.py says."""
        if not self._answers(peer, message):
            return
        kind = message["type"]
        if kind == "pre_vote":
            self._on_pre_vote(peer, message)
        elif kind == "pre_vote_reply":
            self._on_pre_vote_reply(peer, message)
        elif kind == "request_vote":
            self._on_request_vote(peer, message)
        else:
            self._on_vote(peer, message)

    def _answers(self, peer: PeerNode, message: Message) -> bool:
        """Whether this replica hears `peer` as a voter or candidate.

        Whoever does not count here is neither heard nor answered, and a learner answers nobody. But
        between the two entries of an admission one side may have the first one alone:

        - A voter answers a candidate in the store that its log announces. No learner stands, so
          that one has the second entry.
        - A learner whose store its log announces answers candidates of later terms. Only one that
          has the second entry counts the answer.
        """
        stands = message["type"] in _STANDING
        if self.learner:
            announced = self._book.announced_itself(self._shard)
            if not stands or announced is None:
                return False
            term = message["next_term" if message["type"] == "pre_vote" else "term"]
            if term <= announced.term:
                return False
        announces = stands and self._book.is_announced(self._shard, peer.id)
        return announces or self._counts(peer)

    def _on_request_vote(self, peer: PeerNode, message: Message) -> None:
        term = message["term"]
        if term < self._term:
            self._reject(peer)
            return
        if term > self._term and not message.get("force") and self._sticky():
            return
        if term == self._term and self._voted_for == peer.id and self._state == FOLLOWER:
            self._send_node(peer, {"type": "response_vote", "term": term})  # pso-F8b: ask again
            return
        self._base_receive(peer, message)

    def _on_vote(self, peer: PeerNode, message: Message) -> None:
        term = message["term"]
        if term > self._term:
            self._step_down(term)
            return
        if term < self._term or self._state != CANDIDATE:
            return
        if self._votes_term != term:
            self._votes_term, self._votes_from = term, set()
        if self._is_repeated_vote(peer):
            return
        self._votes_from.add(peer.id)
        self._base_receive(peer, message)

    def _is_repeated_vote(self, peer: PeerNode) -> bool:
        """One vote per voter and term (pso-F7)."""
        return peer.id in self._votes_from

    def _reject(self, peer: PeerNode) -> None:
        """Tell a deposed leader or late candidate the newer term (pso-F3)."""
        self._send_node(peer, {"type": "term_reject", "term": self._term})

    def _step_down(self, term: int) -> None:
        """A newer term exists (thesis section 3.3): follow nobody until its leader is heard."""
        if term > self._term:
            self._base_set_term(term, None)
        self._leader = None
        self._set_state(FOLLOWER)

    # Ticking without leadership.

    def _tick_unled(self) -> None:
        """A base tick of a follower or candidate, in which it stands only if that was decided here.

        The base reads the clock again inside its tick and might start an election that the pre-vote
        has not allowed yet, so its deadline is hidden meanwhile.
        """
        elect = False
        if self._election_deadline < self._clock():
            elect = self._may_elect(self._clock())
        hidden = self._election_deadline
        if not elect:
            self._election_deadline = NEVER
        try:
            self._base_tick()
        finally:
            if not elect and self._election_deadline == NEVER:
                self._election_deadline = hidden

    def skip_terms(self) -> None:
        """Go on in a term above all in which this replica may have voted and forgotten it."""
        self._step_down(self._term + _SKIPPED_TERMS)

    def _elect_alone(self) -> None:
        """The only node of its cluster: its own vote is the majority.

        Nothing is acknowledged before term, vote and no-op are synced, because the durable index
        caps the commit.
        """
        self._candidacy.because(ElectionCause.ONLY_NODE)
        self._base_set_term(self._term + 1, self._me.id)
        self._set_state(CANDIDATE)
        self._base_become_leader()
