"""The interface of consensus: one replicated log and the state machine it feeds.

Everything here is synchronous and called from the node's one loop. Entries are opaque bytes.
Nothing in this file knows PySyncObj, so that the simulator, the shard and the tests can stand on it
alone.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NewType, Protocol

NodeId = NewType("NodeId", int)
ShardId = NewType("ShardId", int)

ENTRY_BYTES_MAX = 768 * 1024
"""A longer entry would take PySyncObj's chunk path, which is not used; `propose` refuses it."""


class Role(Enum):
    """A replica's part in its Raft group (thesis 3.3). A learner neither votes nor counts."""

    FOLLOWER = "Follower"
    CANDIDATE = "Candidate"
    LEADER = "Leader"
    LEARNER = "Learner"


class Room(IntEnum):
    """The room on a node's disk; equal to `DiskRoom` in `proto/muster/v1/peer.proto`."""

    ENOUGH = 0
    LOW = 1
    """Below the reserve: nothing that grows the state, so that the rest can go on."""
    NONE = 2
    """Below a quarter of it: no entry, so that no write fails for want of room."""


class ClientReach(IntEnum):
    """The result of a node's probe of its clients' address; `ClientReach` in `peer.proto`."""

    UNKNOWN = 0
    OK = 1
    FAILS = 2


@dataclass(frozen=True, slots=True)
class Applied:
    """The entry is committed, durable on a majority, and applied here.

    `result` is what `apply` returned.
    """

    index: int
    term: int
    result: object


@dataclass(frozen=True, slots=True)
class NotLeader:
    """The entry was never appended. `leader` is who leads, if known."""

    leader: NodeId | None


@dataclass(frozen=True, slots=True)
class Unknown:
    """Leadership was lost with the entry in the log: it may or may not commit."""


@dataclass(frozen=True, slots=True)
class Overloaded:
    """A limit is reached; the entry was never appended. Retry later."""

    what: str


Outcome = Applied | NotLeader | Unknown | Overloaded


class ReplicatedLog(Protocol):
    """One replica of one shard's log."""

    @property
    def shard(self) -> ShardId: ...

    @property
    def role(self) -> Role: ...

    @property
    def term(self) -> int: ...

    @property
    def leader(self) -> NodeId | None:
        """Who leads in `term`, as far as this replica knows."""
        ...

    @property
    def applied_index(self) -> int:
        """Everything up to here is applied."""
        ...

    @property
    def commit_index(self) -> int:
        """Everything up to here is known to be committed."""
        ...

    @property
    def ready(self) -> bool:
        """True on a leader that has applied its own no-op and is not draining: it may serve."""
        ...

    @property
    def quorum_heard(self) -> bool:
        """Check quorum (thesis section 6.2): without it a leader answers nothing but an error.

        True on a leader that within 0.4 s has sent what a majority answered, and whose control
        connections to a majority have not been broken for 0.1 s. When an answer is read says
        nothing: it may have waited while this process stood still.
        """
        ...

    @property
    def loading(self) -> bool:
        """True while a snapshot is loaded or waited for: what is there is an older state."""
        ...

    @property
    def current(self) -> bool:
        """True where nothing acknowledged is missing here but what is younger than a second.

        On a leader: its no-op is applied and `quorum_heard`. Elsewhere: it heard a leader within
        the longest election time-out, which had committed an entry of its own term, and has applied
        all that this leader told as committed. So what a copy that is current lacks does not exist,
        or was acknowledged after the leader last spoke.
        """
        ...

    @property
    def room(self) -> Room:
        """On a leader: what its own disk, and those of a majority of the voters, have room for."""
        ...

    def propose(self, entry: bytes, done: Callable[[Outcome], None]) -> None:
        """Append `entry` on the leader.

        `done` is called exactly once, from the loop, never from inside `propose` unless the entry
        is refused.
        """
        ...

    def read_index(self, done: Callable[[bool], None]) -> None:
        """ReadIndex (thesis section 6.4).

        `done(True)` once leadership was confirmed by a quorum round that began after this call and
        every entry committed before it is applied; `done(False)` where that cannot be. One round
        serves all reads of the turn.
        """
        ...

    @property
    def distrusted(self) -> bool:
        """True from `rebuild` until a whole state has come from a leader, restarts included.

        `loading` is True as long, and until that state is loaded.
        """
        ...

    def rebuild(self, trusted: Collection[NodeId]) -> None:
        """The applied state of this replica is wrong: take all of it from a leader in `trusted`.

        `trusted` are those who agree on another state, at least one. Until it has arrived nothing
        is applied, no snapshot is sent, and this replica leaves elections to the others; its log
        and its vote go on as before. A leader, also one that is elected because nobody else can be,
        serves nothing and hands over to one in `trusted`. All that outlives a restart. Then
        `reload` is called. A later call replaces `trusted`.
        """
        ...

    @property
    def copy_of(self) -> NodeId | None:
        """Whose state the applied one is a copy of, from a snapshot's arrival until `confirm_copy`.

        Restarts included. It is the node where that state was applied: a copy of an unconfirmed
        copy names the same node. None: this replica has applied what it holds itself, or it was
        confirmed. A copy is no witness beside its origin for what both hold.
        """
        ...

    def confirm_copy(self) -> None:
        """Enough others hold the same state: this replica is a witness of its own from now on."""
        ...

    @property
    def differing(self) -> Mapping[NodeId, int]:
        """The nodes that `note_differing` named last, restarts included; index of each note.

        A snapshot ends the notes of the node that sent it and of its origin; one that `rebuild`
        asked for ends all.
        """
        ...

    def note_differing(self, notes: Mapping[NodeId, int]) -> None:
        """The states of these nodes differ from this one, and no majority agrees on either.

        `notes`: since which checkpoint's index. Where a snapshot of one of them, or of a copy of
        its state, replaces this replica's, this replica's is set aside.
        """
        ...

    @property
    def set_aside(self) -> "SetAsideState | None":
        """The first state that was set aside and not dropped since, restarts included."""
        ...

    def drop_set_aside(self) -> None:
        """A majority has agreed since: the state that was set aside is not needed any more."""
        ...

    def transfer_leadership(self, to: NodeId | None = None) -> bool:
        """Ask a caught-up follower to take over (thesis 3.10). False if there is none now."""
        ...


class StateBatch(Protocol):
    """This shard's slice of the node's pending write. Keys are relative to the shard.

    What is put here reaches the disk together with the applied index, in one batch.
    """

    def put(self, key: bytes, value: bytes) -> None:
        """Set a state key: part of snapshots."""
        ...

    def put_all(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Set each of these state keys to its value."""
        ...

    def delete(self, key: bytes) -> None: ...

    def delete_prefix(self, prefix: bytes) -> None:
        """Remove all state keys that start with `prefix`, which is not empty."""
        ...

    def put_meta(self, key: bytes, value: bytes) -> None:
        """Set a key of this replica alone: never part of a snapshot."""
        ...

    def delete_meta(self, key: bytes) -> None:
        """Remove a key of this replica alone."""
        ...


class StateView(Protocol):
    """This shard's stored state, as of one applied index."""

    @property
    def applied_index(self) -> int:
        """The entry up to which the state holds everything."""
        ...

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """State keys that start with `prefix`, in key order."""
        ...

    def scan_meta(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys of this replica alone that start with `prefix`, in key order."""
        ...


@dataclass(frozen=True, slots=True)
class SetAsideState:
    """The state that a replica gave up for one that differed, without a majority for either."""

    view: StateView
    noted_index: int
    """The newest checkpoint at which the two were seen to differ."""


Examination = Callable[[bytes, bytes], bool]
"""Takes a state's records in key order; False for one that a reload could not read."""


class StateMachine(Protocol):
    """A shard, as its replica uses it.

    Must be total and deterministic: an exception stops the process.
    """

    def apply(self, index: int, term: int, entry: bytes, batch: StateBatch) -> object:
        """Apply one committed entry.

        No-ops are not passed here; the applied index moves over them.
        """
        ...

    def reload(self, view: StateView) -> Iterator[None] | None:
        """Forget everything and load from disk: at start and after a snapshot was installed.

        May be a generator: each `yield` is a place where loading may pause, so yield every few
        hundred keys. After a snapshot the replica resumes it for some milliseconds a turn and
        applies nothing meanwhile; at start it is run to its end.
        """
        ...

    def examine(self) -> Examination:
        """Look at a state that arrives, before it replaces the one here; changes nothing.

        False refuses it: the replica keeps its own state, stays behind the log, and is offered
        another snapshot 10 s later at the earliest.
        """
        ...

    def role_changed(self, role: Role, term: int) -> None:
        """`LEADER` is told once the replica is `ready`, anything else once it is not the leader.

        When leadership is lost, the waiting `done` callbacks were called (`Unknown`) before this
        one.
        """
        ...


class ForwardLink(Protocol):
    """A connection between two nodes on which one, the edge, passes calls of clients to the other.

    The peer is a node of this cluster: by its store, and by its certificate or on loopback.
    """

    @property
    def node(self) -> NodeId:
        """The node at the other end."""
        ...

    @property
    def is_certified(self) -> bool:
        """Whether that node has shown its certificate."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether what was sent before has to leave first; `ForwardEnd.writable` says when."""
        ...

    def send(self, frame: bytes) -> None:
        """Send a frame of at most FRAME_BYTES_MAX bytes; nothing where the connection is gone."""
        ...

    def hang_up(self) -> None:
        """Close it at once."""
        ...


class ForwardEnd(Protocol):
    """One side of all such connections of a node: the edge's, or the coordinator's."""

    def opened(self, link: ForwardLink) -> None:
        """A connection stands."""
        ...

    def arrived(self, link: ForwardLink, frame: memoryview) -> None:
        """A frame came. Raises ValueError where it is none: the connection is closed."""
        ...

    def writable(self, link: ForwardLink) -> None:
        """What waited has left."""
        ...

    def closed(self, link: ForwardLink) -> None:
        """The connection is gone. Called once for each that was opened."""
        ...

    def refused(self, node: NodeId, reason: str) -> None:
        """That node takes no such connections, or may be given none, and why."""
        ...

    def failed(self, node: NodeId, reason: str) -> None:
        """A connection to that node failed otherwise, and how: the next may stand."""
        ...
