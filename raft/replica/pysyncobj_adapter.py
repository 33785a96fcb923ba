# ruff: noqa: N802, N803 - overrides carry the names of PySyncObj
"""The one place that knows PySyncObj's private names: `SyncObjAdapter`, which a replica extends.

What of PySyncObj runs once a replica is made is `RUNNING`, with about a sixth of the lines of its
syncobj.py: roles, terms and votes, the vote-grant rule, appending and cutting, the commit rule
(majority and current term), the no-op of a new leader, the silence that ends a leadership. What it
calls of ours instead of its own is `OVERRIDES`. All else that a replica does is code of raft/, and
most of PySyncObj is never entered: its journal, dump files, serializer, transport, clients'
commands and changes of the cluster.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj
from pysyncobj.transport import Transport

from musterd.invariant import invariant
from musterd.raft import pysyncobj_pin
from musterd.raft.codec import Message
from musterd.raft.contract import ENTRY_BYTES_MAX, ShardId
from musterd.raft.host import Host
from musterd.raft.journal import Journal
from musterd.raft.settings import SECOND_MS, RaftSettings

RUNNING = frozenset(
    {
        "Node.id",
        "SyncObj.__connectedToAnyone",
        "SyncObj.__deleteEntriesFrom",
        "SyncObj.__getCurrentLogIndex",
        "SyncObj.__getCurrentLogTerm",
        "SyncObj.__onBecomeLeader",
        "SyncObj.__onLeaderChanged",
        "SyncObj.__onMessageReceived",
        "SyncObj.__onNodeConnected",
        "SyncObj.__onNodeDisconnected",
        "SyncObj.__setCurrentTerm",
        "SyncObj.__setState",
        "SyncObj._onTick",
        "SyncObj.doTick",
        "Transport.ready",
    }
)
"""Every function of PySyncObj that is entered after a replica's construction."""

OVERRIDES = frozenset(
    {
        "_SyncObj__applyLogEntries",
        "_SyncObj__generateRaftTimeout",
        "_SyncObj__getEntries",
        "_SyncObj__loadDumpFile",
        "_SyncObj__sendAppendEntries",
        "_SyncObj__sendNextNodeIdx",
        "_SyncObj__setState",
        "_SyncObj__tryLogCompaction",
        "_checkCommandsToApply",
        "_onTick",
    }
)
"""Every method of PySyncObj that `SyncObjAdapter` replaces; PySyncObj itself calls each."""

FOLLOWER, CANDIDATE, LEADER = range(3)
"""PySyncObj's role numbers."""

NEVER = float("inf")


class PeerNode(int, Node):
    """A node by its number, and as cheap a key as one: each entry looks dozens of them up."""


class _HostTransport(Transport):
    """Stands where SyncObj expects a network: it hands messages to the host's queues."""

    def __init__(self, deliver: Callable[[PeerNode, Message], None]) -> None:
        super().__init__(None, None, [])
        self._deliver = deliver

    def send(self, node: PeerNode, message: Message) -> bool:
        self._deliver(node, message)
        return True


_UNBINDING = frozenset(
    {"append_entries", "snapshot_chunk", "pre_vote", "pre_vote_reply", "timeout_now"}
)
"""Messages that promise nothing which a crash could take back.

`timeout_now` tells a follower to stand in a later term, with its own log; of its sender it says
that it leads its term, and that was synced before it asked for votes.
"""


def _private(name: str) -> Any:
    """A private attribute of SyncObj under a readable name; the type stands at its declaration."""

    def write(self: object, value: object) -> None:
        setattr(self, name, value)

    return property(attrgetter(name), write)


class SyncObjAdapter(SyncObj, ABC):
    """SyncObj over our journal, clock and outbox, with its private names under readable ones.

    What the layers call of PySyncObj begins with `_base_`; what PySyncObj calls of theirs is
    abstract here.
    """

    _state: int = _private("_SyncObj__raftState")
    _term: int = _private("_SyncObj__raftCurrentTerm")
    _voted_for: int | None = _private("_SyncObj__votedForNodeId")
    _leader: PeerNode | None = _private("_SyncObj__raftLeader")
    _base_log: Journal = _private("_SyncObj__raftLog")
    _commit: int = _private("_SyncObj__raftCommitIndex")
    _applied: int = _private("_SyncObj__raftLastApplied")
    _match: dict[PeerNode, int] = _private("_SyncObj__raftMatchIndex")
    _next: dict[PeerNode, int] = _private("_SyncObj__raftNextIndex")
    _last_response: dict[PeerNode, float] = _private("_SyncObj__lastResponseTime")
    _election_deadline: float = _private("_SyncObj__raftElectionDeadline")
    _heartbeat_due: float = _private("_SyncObj__newAppendEntriesTime")
    _transfer_in_progress: bool = _private("_SyncObj__transferInProgress")
    _noop_index: int | None = _private("_SyncObj__noopIDx")
    _connected: set[PeerNode] = _private("_SyncObj__connectedNodes")
    _needs_dump: bool = _private("_SyncObj__needLoadDumpFile")
    _serializer: Any = _private("_SyncObj__serializer")

    def __init__(self, host: Host, shard: ShardId, journal: Journal) -> None:
        self._host = host
        self._shard = shard
        self._log = journal
        self._settings = host.settings
        self._clock = host.clock
        self._book = host.book
        self._me = PeerNode(host.identity.node_id)
        self._peers = tuple(PeerNode(node) for node in host.identity.peers)
        self._by_id = {int(peer.id): peer for peer in self._peers}
        # SyncObj's constructor reads every attribute of its class once; these it sets only later.
        self._heartbeat_due = 0.0
        self._needs_dump = False
        pysyncobj_pin.use_clock(host.clock)
        super().__init__(
            self._me,
            self._peers,
            conf=_pysyncobj_conf(host.settings),
            transport=_HostTransport(self._send_node),
        )
        self._base_log = journal
        self._term = journal.getCurrentTerm()
        self._voted_for = journal.getVotedForNodeId()
        self._needs_dump = False
        self._started = host.clock()

    # Helpers for all layers.

    @property
    def _quorum(self) -> int:
        return (len(self._peers) + 1) // 2 + 1

    def _counts(self, peer: PeerNode) -> bool:
        """Whether `peer` may vote and acknowledge in this shard.

        Not if it is a replaced node that the shard has yet to admit (arch-6.2).
        """
        return self._book.counts(self._shard, peer.id)

    def _hold(self, message: Message) -> bool:
        """Whether a message waits for the sync of what was pending when it was made.

        By raft-2: all but a leader's append, a pre-vote and the request to take over, which claim
        nothing about the disk and bind nobody: the vote behind them waits. (The answer to an append
        decides for itself, see `_reply`; what it claims early is durable.)
        """
        return message["type"] not in _UNBINDING

    def _send_node(self, node: PeerNode, message: Message) -> None:
        self._host.post(self._shard, node.id, message, self._hold(message))

    def _ms(self, milliseconds: int) -> float:
        return milliseconds / SECOND_MS

    def _last_log(self) -> tuple[int, int]:
        """(term, index) of the newest entry: the order of "up-to-date" (thesis section 3.6.1)."""
        return self._log.last_term, self._log.last_index

    def _append_own(self, command: bytes) -> int:
        """Append one entry as the leader; returns its index."""
        invariant(self._state == LEADER, "only a leader appends")
        index = self._log.last_index + 1
        self._log.add(command, index, self._term)
        return index

    def _election_timeout(self) -> float:
        """Seconds, from the node's own generator, so that a run can be repeated."""
        low, high = self._settings.election_min_ms, self._settings.election_max_ms
        return self._ms(low) + self._ms(high - low) * self._host.rng.random()

    # What the layers call of PySyncObj.

    def _base_tick(self) -> None:
        super()._onTick(0)

    def _base_receive(self, peer: PeerNode, message: Message) -> None:
        self._SyncObj__onMessageReceived(peer, message)

    def _base_set_term(self, term: int, voted_for: int | None) -> None:
        self._SyncObj__setCurrentTerm(term, voted_for)

    def _base_set_state(self, state: int) -> None:
        super()._SyncObj__setState(state)

    def _base_become_leader(self) -> None:
        self._SyncObj__onBecomeLeader()

    def _base_connected(self, peer: PeerNode) -> None:
        self._SyncObj__onNodeConnected(peer)

    def _base_disconnected(self, peer: PeerNode) -> None:
        self._SyncObj__onNodeDisconnected(peer)

    # What PySyncObj calls of the layers.

    @abstractmethod
    def _tick(self) -> None:
        """It is this replica's turn."""

    @abstractmethod
    def _set_state(self, state: int) -> None:
        """Take a role."""

    @abstractmethod
    def _answer_append(
        self, peer: PeerNode, wanted: int | None, *, reset: bool, success: bool
    ) -> None:
        """Answer an append; `wanted` is the next index to send, None for the one behind the log."""

    @abstractmethod
    def _send_round(self) -> None:
        """Send entries and a heartbeat to every connected peer."""

    @abstractmethod
    def _send_due(self) -> None:
        """Send what was proposed or answered since the last tick."""

    @abstractmethod
    def _apply_committed(self) -> None:
        """Apply what is committed."""

    @abstractmethod
    def _trim_log(self) -> None:
        """Drop the front of a long log."""

    @abstractmethod
    def _install_snapshot(self) -> None:
        """The last chunk of a snapshot has arrived."""

    # The overrides.

    def _onTick(self, timeToWait: float = 0.0) -> None:
        invariant(timeToWait == 0.0, "a tick never waits")
        self._tick()

    def _checkCommandsToApply(self) -> None:
        """Proposals append at once, so only the sending is left.

        Nothing is forwarded: clients are told who leads.
        """
        if self._state == LEADER:
            self._send_due()

    def _SyncObj__setState(self, newState: int) -> None:
        self._set_state(newState)

    def _SyncObj__sendNextNodeIdx(
        self,
        node: PeerNode,
        reset: bool = False,
        nextNodeIdx: int | None = None,
        success: bool = False,
    ) -> None:
        self._answer_append(node, nextNodeIdx, reset=reset, success=success)

    def _SyncObj__sendAppendEntries(self) -> None:
        self._send_round()

    def _SyncObj__applyLogEntries(self) -> bool:
        self._apply_committed()
        return False

    def _SyncObj__tryLogCompaction(self) -> None:
        self._trim_log()

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        invariant(clearJournal, "the base loads a dump only for a snapshot that arrived")
        self._install_snapshot()

    def _SyncObj__generateRaftTimeout(self) -> float:
        return self._election_timeout()

    def _SyncObj__getEntries(
        self, fromIDx: int | None, count: int | None = None, maxSizeBytes: int | None = None
    ) -> Any:
        """Bounded: the base asks for one entry, or whether there is one and another behind it.

        The second must come however long the first is: without it the base would not cut.
        """
        log = self._log
        if fromIDx is None or not log.first_index <= fromIDx <= log.last_index:
            return []
        wanted = 2 if count is None else count
        return log.read(fromIDx, wanted, maxSizeBytes or wanted * ENTRY_BYTES_MAX)


def _pysyncobj_conf(settings: RaftSettings) -> SyncObjConf:
    conf = SyncObjConf(
        autoTick=False,
        raftMinTimeout=settings.election_min_ms / SECOND_MS,
        raftMaxTimeout=settings.election_max_ms / SECOND_MS,
        appendEntriesPeriod=settings.heartbeat_ms / SECOND_MS,
        leaderFallbackTimeout=settings.quorum_ms / SECOND_MS,
        connectionTimeout=10,
        appendEntriesUseBatch=True,
        appendEntriesBatchSizeBytes=1 << 20,
        logCompactionMinEntries=2000,
        logCompactionMinTime=10**9,
        dynamicMembershipChange=False,
        journalFile=None,
        fullDumpFile=None,
        useFork=False,
    )
    conf.validate()
    return conf
