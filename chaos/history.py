"""The operations of clients with their outcomes, known or not, one JSON object per line.

Each process writes a file of its own. An operation is written when it begins, and again when its
outcome is known. So what a killed client had begun is there with an unknown outcome, as a call that
timed out is. Times are CLOCK_MONOTONIC in ns. All processes share one machine's clock: that is a
limit of such a test, and its report says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

KINDS = frozenset({"commit", "read", "delete", "reset", "heartbeat"})
"""What an operation can be."""
WRITES = frozenset({"commit", "delete", "reset"})
"""Those that change an offset: their value is known before they are sent."""
SUPERSEDED = "SUPERSEDED"
"""The `error` of a commit that a newer one of the same member had overtaken: its outcome is
unknown (an earlier attempt may have been stored), but it has no effect after it was answered."""


class Outcome(StrEnum):
    """The outcome of an operation, as its client knows it."""

    OK = "ok"
    """It was answered and done."""
    FAIL = "fail"
    """It was refused: it has not been done, and never will be."""
    UNKNOWN = "unknown"
    """No answer, or one that says nothing of the effect: it may be done, or be done later."""


@dataclass(frozen=True, slots=True)
class Key:
    """The partition and the group that an offset belongs to."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of one client that reads or changes an offset.

    Kinds: `commit` (value: the offset committed, unique within its key), `read` (value: the offset
    answered, -1 for none; linearizable), `delete` and `reset` (value: what it is afterwards, -1 for
    none), `heartbeat` (no value; its key has the group alone, `Key(group, "", -1)`).
    """

    client: str
    kind: str
    key: Key
    began_ns: int
    ended_ns: int | None = None
    """None: never answered."""
    outcome: Outcome = Outcome.UNKNOWN
    value: int | None = None
    member_id: str = ""
    generation: int = -1
    """Under which a commit was sent; -1: outside a group."""
    node: int | None = None
    """Who was asked, where the client knows."""
    error: str = ""
    """Name of the error, where there was one (`REBALANCE_IN_PROGRESS`)."""
    numbered: bool = False
    """A commit with a `commit_seq`: its client sends one after the other, each with a greater one
    (arch-3.6)."""
    token: int = 0
    """The fencing token under which a commit was sent; 0: not recorded."""
    quiet_ns: int | None = None
    """For how long, when it answered this, the node had exchanged nothing with a majority, by its
    own clock; None: not known. Only simulated runs know it, and these of heartbeats alone."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """One partition in the hands of one member, as the member itself confirmed it.

    From the moment the member was told that it owns the partition until it had stopped to work on
    it (it returned from `revoked`, or found that it is `lost`), or until it died.
    """

    client: str
    key: Key
    member_id: str
    generation: int
    """The generation in which it was assigned; in a modern group the token of the grant."""
    from_ns: int
    until_ns: int | None = None
    """None: it still owned it when the history ended."""
    ended: str = ""
    """revoked | lost | left | died; "" while it owns it."""
    instance_id: str = ""
    revoking_ns: int | None = None
    """When it was told to give it up and began to; None: not known."""
    token: int = 0
    """The fencing token that it was told with it; 0: not recorded."""

    @property
    def owner(self) -> str:
        """Who: a static member by its instance id, any other by its member id."""
        return f"instance:{self.instance_id}" if self.instance_id else self.member_id


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation of a group, as one member was told of it or the server recorded it."""

    group: str
    generation: int
    members: tuple[str, ...]
    """All of them where the source knows (the group's leader, the server); else the one member.
    Named as `Ownership.owner` names them: a static one is `instance:ID`, whichever process it is.
    """
    at_ns: int
    source: str
    """Name of the client or `node-N`."""
    whole: bool
    """Whether `members` are all."""
    asked_ns: int | None = None
    """When the source asked for it (sent its Join); None: not known."""
    assigned: tuple[Key, ...] | None = None
    """What the one member owns in it; None: not known. Only where `whole` is false."""


@dataclass(frozen=True, slots=True)
class Members:
    """All members of a modern group, as its coordinator said after it had asked a quorum.

    They are these from when it was asked until it said otherwise, at the `former_ns` of the next.
    """

    group: str
    members: tuple[str, ...]
    """Their ids, in order."""
    asked_ns: int
    former_ns: int | None = None
    """When the last answer that named the members before these was asked for; None: there is no
    other."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A span in which a member is none of its group's, as the group's log says."""

    group: str
    member_id: str
    from_ns: int | None
    """None: when a generation after `generation` was first known. An exported log has no time that
    clients share, only the order in which things were."""
    until_ns: int | None = None
    """When it was one again under the same id, by its first Join sent again; None: never."""
    generation: int = -1
    """The last that it was in, of a modern group the highest token that was granted before; -1: not
    said."""


@dataclass(frozen=True, slots=True)
class StaleJoin:
    """The group gave a partition away under its owner, for a Join that said no more what is true.

    It came late a second time, and no coordinator can tell (sc-S25). Only simulated runs have it.
    """

    key: Key
    member_id: str
    """The owner."""
    generation: int
    """Which gave it away."""


@dataclass(frozen=True, slots=True)
class StoreWrite:
    """A write to a store outside of muster that was handed a fencing token (workload chaos-W4)."""

    client: str
    key: Key
    token: int
    sequence: int
    """Rises with each write of this client under this token."""
    at_ns: int
    """When the store decided, by the store's own record: the order of its decisions."""
    accepted: bool
    fenced: bool
    """Whether this store refuses older tokens."""


@dataclass(frozen=True, slots=True)
class FaultSpan:
    """One fault: from before it was injected until it was healed."""

    kind: str
    targets: tuple[str, ...]
    """`node-1`, `node-0>node-2`, ..."""
    began_ns: int
    healed_ns: int
    quorum: bool
    """Whether a majority was up and connected throughout, so that service had to go on."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The digest that one node had at one index of one shard."""

    node: int
    shard: int
    index: int
    digest: str


@dataclass(frozen=True, slots=True)
class Side:
    """A span in which some nodes could not reach a majority."""

    nodes: tuple[int, ...]
    from_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class NodeState:
    """A span in which a node had to refuse service, or a part of it, whatever its quorum."""

    node: int
    kind: str
    """`disk_error`: every write and sync fails (EIO), from before `from_ns`. `corrupt`: its files
    were damaged while it was down. `forgot`: it was started on an older copy of them. `diverged`:
    what it stores of one shard is not what the log says. `sync_hangs`: no sync ended, for so long
    that it has to lead nothing, or to end. `slept`: its machine did, so that it has to give up what
    it led. `no_room`: its disk was low or full."""
    from_ns: int
    until_ns: int
    """When the span was over: the node ran again with a sound disk, or was replaced."""
    found: str
    """`stopped`: it ended by itself; `refused`: it did not start, and said why; `repaired`: it
    came up with its peers' state, and served only then; `running`: it went on, or served; `behind`:
    it did, and never got what it lacked; `believed`: others took its state for the right one;
    `silent`: it neither served nor ended in time; `left`: it led nothing any more; `leading`: it
    still led; `stayed`: it did not end; `failed`: it ended with another exit code than it has
    to."""
    detail: str = ""
    shard: int = -1
    """Of which shard alone it is said; -1: of all."""
    from_index: int = 0
    until_index: int = 0
    """Where that had diverged: behind the first of these indexes, and up to the second."""


@dataclass(frozen=True, slots=True)
class Round:
    """One rebalance as the server recorded it (`muster group why`)."""

    group: str
    generation: int
    """What it formed."""
    cause: str
    """The trigger, one of a closed list (`member_joined`); "": none was recorded."""
    source: str
    """`node-N`, or the name of the export that it is from."""


@dataclass(frozen=True, slots=True)
class Operated:
    """One call of an operator that is not about offsets; written down when it was over.

    What: `set` (a group's setting), `setting` (it is read), `kick` (a member), `grow` (a topic),
    `partitions` (a node's number of them is read, when all was quiet).
    """

    client: str
    what: str
    subject: str
    """The group, or the topic."""
    began_ns: int
    ended_ns: int
    outcome: Outcome
    name: str = ""
    """The setting, or the member's id."""
    value: int | None = None
    """Of the setting (-1: the group has none of its own), or the number of partitions."""
    node: int | None = None
    """Who was asked, of `partitions`."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The digest that a replay of the history reached at one index of one shard."""

    source: str
    """`server` (it told of itself), `python`, `spark`."""
    shard: int
    index: int
    digest: str


@dataclass(frozen=True, slots=True)
class ShardLog:
    """The exported log of one shard, as far as it has no hole: from `first` to its end."""

    shard: int
    first: int
    """Index of an entry; 1: nothing of the log is missing."""


@dataclass(frozen=True, slots=True)
class Logged:
    """Offsets of one key that are in the exported log of its shard, behind its last hole.

    Several lines may be of one key.
    """

    shard: int
    key: Key
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """A group with live members from the fact `quiet_from_ns` to the end, unless not `lasting`.

    One for every group with members: its timeouts say how late a member may be.
    """

    group: str
    topics: tuple[tuple[str, int], ...]
    """Each topic that it is subscribed to, with its number of partitions."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    cooperative: bool = False
    lasting: bool = True
    """False: it may be without members at the end."""
    left_alone: bool = False
    """Nobody kills, stops or restarts its members: only faults of the cluster reach them."""
    modern: bool = False
    """Its coordinator assigns: each grant has a token, which says how old it is in place of a
    generation, and no member's epoch makes another's commit stale."""


@dataclass(slots=True)
class History:
    """Everything that one run left behind."""

    operations: list[Operation] = field(default_factory=list)
    ownerships: list[Ownership] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    members: list[Members] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    stale_joins: list[StaleJoin] = field(default_factory=list)
    store_writes: list[StoreWrite] = field(default_factory=list)
    faults: list[FaultSpan] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    minorities: list[Side] = field(default_factory=list)
    node_states: list[NodeState] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    operated: list[Operated] = field(default_factory=list)
    replays: list[Replayed] = field(default_factory=list)
    logs: list[ShardLog] = field(default_factory=list)
    logged: list[Logged] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    """Of the checkers' interest: `quiet_from_ns` (from then on nothing was broken, killed, joined
    or changed any more) and `ended_ns` (until then members were left alone), CLOCK_MONOTONIC;
    `shards` (how many the cluster has); `began_ns` (from when the times in findings count)."""

    def commits(self) -> Iterator[Operation]:
        """The commits among the operations."""
        return (one for one in self.operations if one.kind == "commit")


RECORDS: dict[str, type[Any]] = {
    name: get_args(hint)[0]
    for name, hint in get_type_hints(History).items()
    if get_origin(hint) is list and name not in ("operations", "ownerships")
}
"""What takes one line in a file: its list in `History`, which is its name there, and its shape."""
