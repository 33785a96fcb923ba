"""Replica: one node's copy of one shard, PySyncObj's core made safe by pinned overrides.

The overrides are in pysyncobj_adapter.py; tests/raft/flaws/README.md says which flaws of PySyncObj
they avoid. Nothing in here is ever pickled.
"""

from collections.abc import Callable

from musterd.raft.codec import Message, Reach
from musterd.raft.contract import (
    NodeId,
    NotLeader,
    Outcome,
    Overloaded,
    Room,
    ShardId,
    StateMachine,
)
from musterd.raft.host import Host
from musterd.raft.journal import Journal
from musterd.raft.log_format import KIND_COMMAND
from musterd.raft.replica.pysyncobj_adapter import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    PeerNode,
)
from musterd.raft.replica.ticking import Ticking

_VOTING = frozenset({"request_vote", "response_vote", "pre_vote", "pre_vote_reply"})
_COMMAND_PREFIX = bytes((KIND_COMMAND,))


class Replica(Ticking):
    """A `ReplicatedLog` over PySyncObj. Driven by `musterd.raft.driver.Driver` and nobody else."""

    def __init__(self, host: Host, shard: ShardId, journal: Journal, machine: StateMachine) -> None:
        self._reach = Reach()
        self._draining = False
        super().__init__(host, shard, journal, machine)

    # ReplicatedLog (raft/contract.py).

    @property
    def shard(self) -> ShardId:
        """Which shard this is a replica of."""
        return self._shard

    @property
    def term(self) -> int:
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
        """Whether it leads with a quorum, or heard from its leader lately.

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
            and not self._draining
            and self._transfer.target is None
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
        quorum = self._quorum
        for peer in self._peers:
            if heard >= quorum and linked >= quorum:
                break
            if self._counts(peer):
                progress = self._progress[peer]
                heard += progress.heard_at > heard_after
                linked += progress.broken_since > broken_before
        return heard >= quorum and linked >= quorum

    @property
    def loading(self) -> bool:
        """Whether applied state is an older one than the applied index says; see the contract."""
        return self._reloading or self._rebuilding

    @property
    def current(self) -> bool:
        """Whether applied state lacks nothing but what is new; see the contract."""
        if self.loading or not self.leader_heard:
            return False
        if self._state == LEADER:
            return self._promoted
        told, log = self._told_commit, self._log
        applied = log.first_index <= told <= self._applied
        return applied and log.term_at(told) == self._term

    @property
    def room(self) -> Room:
        if self._host.rooms.enough:
            return Room.ENOUGH
        return max(self._host.rooms.own, self.majority_room)

    @property
    def majority_room(self) -> Room:
        """The room that the disks of a majority have at least; without one, this node's own.

        Who is not connected has said nothing, and stores nothing.
        """
        rooms = self._host.rooms
        peers = [peer for peer in self._peers if peer in self._connected and self._counts(peer)]
        known = sorted((rooms.own, *(rooms.of(peer.id) for peer in peers)))
        return rooms.own if len(known) < self._quorum else known[self._quorum - 1]

    def propose(self, entry: bytes, done: Callable[[Outcome], None]) -> None:
        """Append `entry` at once; see the contract. The next tick sends it."""
        unwilling = self._draining or self._rebuilding or self._transfer.target is not None
        if self._state != LEADER or unwilling:
            done(NotLeader(self._hint()))
            return
        refusal = self._proposals.refusal(len(entry))
        if refusal is not None:
            done(Overloaded(refusal))
            return
        index = self._append_own(_COMMAND_PREFIX + entry)
        self._proposals.add(index, self._term, len(entry), done)
        self._want_send()

    def _hint(self) -> NodeId | None:
        if self._transfer.target is not None:
            return self._transfer.target
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
        self._want_round()

    def transfer_leadership(self, to: NodeId | None = None) -> bool:
        """Stop proposals and hand over once the target holds the whole log; see the contract."""
        if self._state != LEADER or not self._promoted or self._transfer.target is not None:
            return False
        return self._hand_over(to)

    def _hand_over(self, to: NodeId | None) -> bool:
        able = [peer for peer in self._peers if to in (None, peer.id) and self._may_take_over(peer)]
        if not able:
            return False
        self._begin_transfer(max(able, key=lambda peer: (self._match[peer], -peer.id)))
        return True

    def leave(self, hand_over: bool) -> None:
        """Its disk hangs: hand over if `hand_over` and somebody can, else step down.

        It waits for nothing that waits for the disk: who takes over has the proposals in its log,
        the no-op too, and commits them. A hand-over that is under way goes on.
        """
        if self._state != LEADER or not self._peers or self._transfer.target is not None:
            return
        if not (hand_over and self._hand_over(None)):
            self._step_down(self._term)

    def _may_take_over(self, peer: PeerNode) -> bool:
        """Whether `peer` is up to date, or nearly, in its log and its state, and awake.

        One that is connected but suspended would only stop the proposals for a while. What it had
        acknowledged to an earlier leader says nothing (match begins at 0).
        """
        window = self._settings.message_entries
        heard_after = self._clock() - self._ms(self._settings.quorum_ms)
        return (
            peer in self._connected
            and self._counts(peer)
            and self._trusts(peer)
            and self._match[peer] > 0
            and self._match[peer] + window >= self._log.last_index
            and self._progress[peer].heard_at > heard_after
            and not self._progress[peer].behind
        )

    # Messages.

    def receive(self, node: int, message: Message) -> None:
        """One decoded message from a peer. The driver ticks the shard afterwards.

        Raises CodecError for a term that is too far ahead (`Reach` in raft/codec.py).
        """
        self._reach.check(f"shard {self._shard}: a message of term", self._term, message["term"])
        peer = self._by_id[node]
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
            self._base_receive(peer, message)

    def peer_connected(self, node: int) -> None:
        """The control connection to `node` stands."""
        peer = self._by_id[node]
        self._progress[peer].link_stands()
        self._base_connected(peer)
        if self._state == LEADER:
            self._want_round()

    def peer_disconnected(self, node: int) -> None:
        """The control connection to `node` broke: what was on its way counts as lost."""
        peer = self._by_id[node]
        self._progress[peer].link_broke(self._clock())
        self._base_disconnected(peer)
        self._forget_in_flight(peer)

    def peer_started_anew(self, node: int) -> None:
        """The store of `node` is in a new life, or a new one: what it acknowledged is forgotten."""
        peer = self._by_id[node]
        self._forget_in_flight(peer)
        if self._state == LEADER:
            self._forget_acknowledged(peer)
        self._pre_vote.forget(node)
        if self._state == CANDIDATE and node in self._votes_from:
            self._step_down(self._term)  # a vote that was counted is forgotten

    def drain(self) -> None:
        """The node will stop: from now on no proposals are taken, so that leadership can move."""
        self._draining = True

    def lose(self) -> None:
        """This node's store lost what it had synced: it leads nothing more (raft/lives.py)."""
        if self._state == LEADER:
            self._step_down(self._term)

    @property
    def _is_behind(self) -> bool:
        stuck = self._host.disk_hangs or self._host.rooms.own is Room.NONE
        return stuck or super()._is_behind

    # What the driver asks, and tells.

    def stood_still(self, since: float, step_s: float) -> None:
        """This node did nothing from `since` until now, but for a step of `step_s` seconds.

        What others sent meanwhile waits to be read. So a leader takes what it stood still off their
        silence; a follower whose deadline fell into it waits for a step more, once. This says
        nothing of whether a quorum is heard: that depends on when it was asked.
        """
        now = self._clock()
        if self._state == LEADER:
            still_s = now - since - step_s
            for peer in self._peers:
                self._last_response[peer] = min(self._last_response[peer] + still_s, now)
                self._progress[peer].stood_still(still_s, now)
        else:
            self._put_election_off_once(since, now, step_s)

    @property
    def due(self) -> float:
        """When this replica wants a tick even if nothing happens, on the node's clock."""
        return self._heartbeat_due if self._state == LEADER else self._election_deadline

    @property
    def busy(self) -> bool:
        """Whether it wants another tick at once: applying or loading was cut short."""
        if self._reloading:
            return self._load_runs
        return self._commit > self._applied and not self._rebuilding

    @property
    def leads(self) -> bool:
        """Whether this replica is the leader, ready or not."""
        return self._state == LEADER

    @property
    def waiting(self) -> int:
        """Proposals that wait for their commit."""
        return len(self._proposals)

    @property
    def rising(self) -> bool:
        """Elected, and the entry that lets it serve is not committed yet."""
        return self._state == LEADER and not self._promoted

    def hastens(self, message: Message) -> bool:
        """Whether an election waits for what follows from this message."""
        return message["type"] in _VOTING or message["type"] == "timeout_now" or self.rising

    @property
    def waits_for_sync(self) -> bool:
        """Whether a leader may be able to commit more once more is durable here."""
        return self._state == LEADER and self._commit < self._log.last_index
