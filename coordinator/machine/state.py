"""A classic consumer group as every replica of its shard holds it.

Two house rules: whatever a later answer depends on is a field here, and `evolve` alone writes the
fields. Parked calls, sessions and heartbeats are not state: they belong to the coordinator of the
day (gp-1.5, gp-5.6.4).

How each phase answers (gp-1.6). "Round": a round opens; "park": the answer comes when the round
closes or, for a Sync, with the assignment; "drop": the member goes.

====================  ========  ====================  ====================  ======
call                  Empty     PreparingRebalance    CompletingRebalance   Stable
====================  ========  ====================  ====================  ======
Join without a nonce  an id     an id                 an id                 an id
Join, new member      round     park, may close       round                 round
Join, instance held   -         (2), may close        (2), round            (2), (3)
Join, known, same     unknown   park (8), may close   current generation    (1)
Join, known, changed  unknown   park, may close       round                 round
Sync, group leader    unknown   in progress           publish, to Stable    stored
Sync, other           unknown   in progress           park                  stored
Heartbeat             unknown   in progress           NONE                  NONE
Leave, expiry         unknown   drop, may close       drop, round           drop, round
the same of an id     drop      drop, may close       drop                  drop
Commit of a member    unknown   stored (7)            in progress           stored (7)
Simple commit (-1)    stored    unknown               unknown               unknown
DeleteGroup           gone      not empty             not empty             not empty
OffsetDelete          gone      (4)                   (4)                   (4)
ExpireOffsets         due: gone nothing               nothing               (5)
TopicsChanged         nothing   nothing               (6)                   (6)
DropOffsets           gone      gone                  gone                  gone
AlterGroupConfig      stored    stored                stored                stored
timer INITIAL_DELAY   -         extend, or close      -                     -
timer JOIN            -         drop absent, close    -                     -
timer SYNC            -         -                     drop unsynced, round  the same
====================  ========  ====================  ====================  ======

unknown = UNKNOWN_MEMBER_ID, in progress = REBALANCE_IN_PROGRESS; an id = MEMBER_ID_REQUIRED, and
until it is used or expires no round but an initial one closes before its timer. (1): the group
leader opens a round, others get the current generation. (2): the new member takes the place of the
static one, which is fenced, and a token of its own. (3): a round only where another protocol would
be selected, else the current generation. The timer JOIN drops dynamic members alone; while nobody
has joined and static members remain it waits again. (4): of topics that are not subscribed;
NON_EMPTY_GROUP where the protocol type is not "consumer". (5): of topics that are not subscribed,
where due. (6): a round, where the topic is subscribed and the generation formed before. (7): in
progress, and in Stable a round, where a topic of the commit was made after the generation formed.
(8): the current generation, where it formed of this Join and the member was not told of it.
Expiry and timers that name what is past do nothing. A
round closes to CompletingRebalance, or to Empty without members. Dead answers
COORDINATOR_NOT_AVAILABLE and is not left. Where there is no group the answers are Empty's, but a
member's commit is GROUP_ID_NOT_FOUND.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple
from typing import Protocol as Shape

from musterd.coordinator.machine.commands import Protocol, RoundTimer
from musterd.coordinator.machine.events import GenerationFormed
from musterd.coordinator.machine.history import Rebalance
from musterd.coordinator.machine.modern.group import ModernGroup


class Phase(StrEnum):
    """Kafka's states of a classic group, by Kafka's names (gp-1.3)."""

    EMPTY = "Empty"
    """No members; maybe offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """A round is open: members join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A generation is formed: the group leader's assignment is awaited."""
    STABLE = "Stable"
    """The assignment is durable and may be had."""
    MODERN = "Modern"
    """The coordinator assigns, and there are members; Kafka's states of such a group follow from
    the rest (gp-1.7)."""
    DEAD = "Dead"
    """Deleted; terminal."""


LEGAL_PREDECESSORS: Mapping[Phase, tuple[Phase, ...]] = MappingProxyType(
    {
        Phase.EMPTY: (Phase.PREPARING_REBALANCE, Phase.MODERN),
        Phase.PREPARING_REBALANCE: (Phase.EMPTY, Phase.COMPLETING_REBALANCE, Phase.STABLE),
        Phase.COMPLETING_REBALANCE: (Phase.PREPARING_REBALANCE,),
        Phase.STABLE: (Phase.COMPLETING_REBALANCE,),
        Phase.MODERN: (Phase.EMPTY,),
        Phase.DEAD: (
            Phase.EMPTY,
            Phase.PREPARING_REBALANCE,
            Phase.COMPLETING_REBALANCE,
            Phase.STABLE,
        ),
    }
)
"""Which phases may precede each (gp-1.3); any other transition is a broken invariant."""

NEVER_SYNCED = -1
"""`synced_generation` of a member that has synced in none."""


@dataclass(slots=True)
class Member:
    """A member, as it described itself in its last accepted Join. Durations in ms.

    `joined_round` is the last round it joined, `synced_generation` the last generation it synced in
    (both replicated, so that an open round survives a failover: arch-3.5). `instance_id` is "" for
    a dynamic member; `replaced_id` whose place a static one took last. `joined_ms` is the shard
    time of its last Join, 0 under rules 1. `token` is the fencing token that it took when it
    replaced another process; 0: none but its generation's (`Group.token_of`). `with_assignment`:
    the Join by which it entered its last round asked for the assignment, too. `principal` is who
    made it a member; "" where that was below level 6.
    """

    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    subscribed_topics: tuple[str, ...]
    join_seq: int
    joined_round: int
    synced_generation: int = NEVER_SYNCED
    assignment: bytes = b""
    instance_id: str = ""
    replaced_id: str = ""
    joined_ms: int = 0
    token: int = 0
    with_assignment: bool = False
    principal: str = ""

    def supports(self, name: str) -> bool:
        """True where `name` is among this member's protocols."""
        return any(protocol.name == name for protocol in self.protocols)

    def metadata_of(self, name: str) -> bytes:
        """The metadata under protocol `name`; empty where the member does not list it."""
        return next((p.metadata for p in self.protocols if p.name == name), b"")


def metadata_bytes(protocols: Iterable[Protocol], topics: Iterable[str]) -> int:
    """How much a member's description weighs against the limits."""
    return sum(len(p.name.encode()) + len(p.metadata) for p in protocols) + sum(
        len(topic.encode()) for topic in topics
    )


MEMBER_OVERHEAD_BYTES: Final = 16
TOPIC_OVERHEAD_BYTES: Final = 10
"""At least what protobuf adds for a member, and for a topic with its partition count, in the group
leader's Join answer."""


def naming_bytes(member_id: str, instance_id: str, topics: Sequence[str]) -> int:
    """Return a member's bytes beside its metadata, from rules 2 on: its ids, and an overhead.

    So the group leader's Join answer, which names everybody, is not longer than the group weighs
    (but for its fields of the generation): it fits a message.
    """
    ids = len(member_id.encode()) + len(instance_id.encode())
    return MEMBER_OVERHEAD_BYTES + ids + TOPIC_OVERHEAD_BYTES * len(topics)


@dataclass(slots=True)
class Tally:
    """Counts over all members of a group, so that a Join of a large group need not count anew.

    Follows from the members, so it is no state of its own: not stored, not in the digest, counted
    again when a group is loaded, compared with a recount by the invariants (gp-I1, gp-I4, gp-I5).
    """

    joined: int = 0
    """Members that have joined the open round."""
    synced: int = 0
    """Members that have synced in the current generation."""
    support: dict[str, int] = field(default_factory=dict)
    """How many members list each protocol."""
    metadata_bytes: int = 0
    naming_bytes: int = 0
    topics: dict[str, int] = field(default_factory=dict)
    """How often the members name each topic. It has no order: who goes through it sorts."""
    without_topics: int = 0
    """Members that name no topic."""
    dropped: int = field(default=0, compare=False)
    """Names counted out since the dict was last copied: a dict does not shrink by itself."""

    def add(self, group: "Group", member: Member, sign: int = 1) -> None:
        """Count a member in (1) or out (-1), as it stands now."""
        self.joined += sign * group.has_joined(member)
        self.synced += sign * group.has_synced(member)
        self.metadata_bytes += sign * metadata_bytes(member.protocols, member.subscribed_topics)
        self.naming_bytes += sign * naming_bytes(
            member.member_id, member.instance_id, member.subscribed_topics
        )
        _count(self.support, dict.fromkeys(p.name for p in member.protocols), sign)
        _count(self.topics, member.subscribed_topics, sign)
        self.without_topics += sign * (not member.subscribed_topics)
        if sign < 0:
            self._shrink(len(member.subscribed_topics))

    def _shrink(self, dropped: int) -> None:
        """Copy the topics once more were dropped than are left, so that they hold no more room."""
        self.dropped += dropped
        if self.dropped > len(self.topics):
            self.topics = dict(self.topics)
            self.dropped = 0


def _count(counts: dict[str, int], names: Iterable[str], sign: int) -> None:
    """Count each of `names` in (1) or out (-1)."""
    for name in names:
        count = counts.get(name, 0) + sign
        if count:
            counts[name] = count
        else:
            del counts[name]


UNHASHED: Final = 0
"""In place of an offset's digest, where its record is not hashed yet: what it adds to the sums."""


@dataclass(slots=True)
class Offset:
    """A stored offset, and which commit wrote it (gp-O9).

    A simple commit has member "" and `commit_seq` 0. `wall_ms` is for people and for retention.
    `digest` is that of its record, so that the next commit need not put this one anew to take it
    off the shard's; it follows from the rest, UNHASHED is in no sum yet, and None is in them, but
    not known.
    """

    offset: int
    metadata: str
    end_offset: int | None
    member_id: str
    generation: int
    commit_seq: int
    wall_ms: int
    start_offset: int | None = None
    leader_epoch: int | None = None
    digest: int | None = field(default=None, compare=False, metadata={"derived": True})
    size: int = field(default=0, compare=False, metadata={"derived": True})
    """Bytes of its record's value; known where `digest` is."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that an application keeps with its offsets, and the commit that wrote them (gp-O9).

    b"" is nothing; without a record where no commit ever brought one.
    """

    blob: bytes = b""
    member_id: str = ""
    generation: int = 0
    commit_seq: int = 0


class OffsetsAtRest(Shape):
    """A group's offsets as bytes (records/packed_offsets.py)."""

    @property
    def offset_count(self) -> int:
        """How many they are."""
        ...

    def unpacked(self) -> dict[tuple[str, int], Offset]:
        """Make them anew, in the order in which they were packed."""
        ...


NO_BLOB: Final = Blob()
"""What nearly every group has: it is replaced, never written to."""


@dataclass(slots=True)
class Group:
    """A group. `members` is in join order (ascending `join_seq`); `deadline_ms` is in shard time.

    `round` is the number of the open or last round, `generation` of the last that formed. While
    `timer` is None, `deadline_ms` is 0. `remaining_ms` and `new_member_added` belong to the initial
    delay (gp-4.3). `pending` are ids handed out and not used yet, with their session timeout in ms
    (gp-J7.4); they have no order: who goes through them sorts, or a replica that was loaded would
    differ from one that was not. `emptied_wall_ms` says since when it is Empty, 0 where it is not,
    or where nobody knows (rules 1, or never had members). `rebalances` are the last rounds by
    number, with what became of them (history.py). `topics_version` is that of the topic registry
    under which the generation formed, `config` the group's overrides by name (config.py),
    `texts` those that are texts, such as which topics go together. `token` is the fencing token
    that the generation took, `fence` the last one that was taken; 0 while the generation is the
    token (rules 1 and 2).
    `instances` says who holds each instance id: like `tally` it follows from the members. `digest`
    is the sum of those of the group's records, but for offsets that are not hashed yet. `stored`
    has the offsets: as objects while they are in use, else as bytes (`offsets` and `thawed`).
    `modern` is there while the coordinator assigns: the members are in it, and `generation` is the
    group epoch. `former` says of which generation each member was in the modern group that this was
    until the open round began; empty otherwise.
    """

    group_id: str
    phase: Phase = Phase.EMPTY
    protocol_type: str = ""
    protocol_name: str = ""
    generation: int = 0
    round: int = 0
    leader_id: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    next_join_seq: int = 0
    stored: dict[tuple[str, int], Offset] | OffsetsAtRest = field(default_factory=dict)
    timer: RoundTimer | None = None
    deadline_ms: int = 0
    remaining_ms: int = 0
    new_member_added: bool = False
    pending: dict[str, int] = field(default_factory=dict)
    emptied_wall_ms: int = 0
    blob: Blob = NO_BLOB
    topics_version: int = 0
    config: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    token: int = 0
    fence: int = 0
    rebalances: dict[int, Rebalance | bytes] = field(default_factory=dict)
    modern: ModernGroup | None = None
    former: dict[str, int] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally, metadata={"derived": True})
    instances: dict[str, str] = field(default_factory=dict, metadata={"derived": True})
    digest: int = field(default=0, metadata={"derived": True})
    bytes: int = field(default=0, compare=False, metadata={"derived": True})
    """What its records weigh (sizes.py)."""

    @property
    def offsets(self) -> Mapping[tuple[str, int], Offset]:
        """What is stored, to be read: offsets at rest are made anew with each call."""
        stored = self.stored
        return stored if isinstance(stored, dict) else MappingProxyType(stored.unpacked())

    @property
    def offset_count(self) -> int:
        """How many offsets there are."""
        stored = self.stored
        return len(stored) if isinstance(stored, dict) else stored.offset_count

    def thawed(self) -> dict[tuple[str, int], Offset]:
        """The offsets, to be changed: as objects from now on."""
        if not isinstance(self.stored, dict):
            self.stored = self.stored.unpacked()
        return self.stored

    @property
    def member_count(self) -> int:
        """How many members it has, of either protocol."""
        return len(self.members) if self.modern is None else len(self.modern.members)

    def has_member(self, member_id: str) -> bool:
        """True where there is such a member, of either protocol."""
        members = self.members if self.modern is None else self.modern.members
        return member_id in members

    def sessions(self) -> Iterator[tuple[str, int, bool]]:
        """Yield each member that has to be heard from: its id, its timeout in ms, if it is static.

        Members of a modern group that are away have no session.
        """
        for member in self.members.values():
            yield member.member_id, member.session_timeout_ms, bool(member.instance_id)
        for one in self.modern.members.values() if self.modern is not None else ():
            if not one.is_away:
                yield one.member_id, one.said.session_timeout_ms, bool(one.instance_id)

    @property
    def from_empty(self) -> bool:
        """True while the open round is an initial one: only its timer completes it (gp-4.3)."""
        return self.timer is RoundTimer.INITIAL_DELAY

    def has_joined(self, member: Member) -> bool:
        """True where `member` has joined the open round."""
        return self.phase is Phase.PREPARING_REBALANCE and member.joined_round == self.round

    def has_synced(self, member: Member) -> bool:
        """True where `member` has synced in the current generation."""
        return member.synced_generation == self.generation

    def synced_by_joining(self, formed: GenerationFormed) -> list[Member]:
        """Whose Join of the round that ends asked for the assignment, too: that is their Sync.

        The group leader's is not: it has to bring everybody's assignment.
        """
        return [
            member
            for member in self.members.values()
            if member.with_assignment
            and member.joined_round == formed.round
            and member.member_id != formed.leader_id
        ]

    def token_of(self, member: Member) -> int:
        """The fencing token of `member` in the current generation.

        Tokens only rise, so its own counts until a generation took a later one for everybody.
        """
        return max(member.token, self.token or self.generation)


def recount(group: Group) -> Tally:
    tally = Tally()
    for member in group.members.values():
        tally.add(group, member)
    return tally


def holders(group: Group) -> dict[str, str]:
    """Which member holds each instance id, found anew."""
    held = {m.instance_id: m.member_id for m in group.members.values() if m.instance_id}
    for one in group.modern.members.values() if group.modern is not None else ():
        if one.instance_id:
            held[one.instance_id] = one.member_id
    return held


def modern_of(group: Group | None) -> ModernGroup | None:
    """Return what only a modern group has; None of others, and where there is no group."""
    return None if group is None else group.modern


class DeadlineKey(NamedTuple):
    """Names a timer; with its deadline, the CloseRound that fires it.

    `member_id` is "" where it is a round's, else whose it is; `round` is then its `timer_seq`.
    """

    group_id: str
    round: int
    timer: RoundTimer
    member_id: str = ""


def deadlines(group: Group) -> Iterator[tuple[DeadlineKey, int]]:
    """Yield the deadlines that a new coordinator re-arms, in ms of shard time (not sessions)."""
    if group.timer is not None:
        yield DeadlineKey(group.group_id, group.round, group.timer), group.deadline_ms
    timers = {} if group.modern is None else group.modern.timers
    if timers:  # the earliest; of several the first in order of their ids
        member_id = min(timers, key=lambda one: (timers[one][0], one))
        deadline_ms, timer, seq = timers[member_id]
        yield DeadlineKey(group.group_id, seq, timer, member_id), deadline_ms
