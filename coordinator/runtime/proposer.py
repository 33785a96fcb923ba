"""Gathers the commands of one turn into one log entry, and sheds what does not fit.

The entry is closed at the end of the turn that heard the commands, so one sync and one quorum
round serve them all. While entries are under way the next commands gather, so the batch grows with
the load by itself. Large commands are held while the node has enough of them under way
(large_commits.py); small ones of other groups pass them.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, assert_never

from musterd.coordinator.codec import encode_entry
from musterd.coordinator.machine.commands import (
    AddPartitions,
    AlterAcls,
    AlterGroupConfig,
    AlterQuotas,
    BeginDrop,
    Checkpoint,
    CloseRound,
    Command,
    ConsumerGroupHeartbeat,
    CreateToken,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    DropOffsets,
    DropPart,
    EndDrop,
    ExpireMember,
    ExpireOffsets,
    FinalizeLevel,
    ForgetDeletion,
    JoinGroup,
    LeaveGroup,
    NoteBackup,
    NoteLevels,
    NoteTopics,
    OffsetCommit,
    OffsetDelete,
    Reconcile,
    RecordAudit,
    ReplaceNode,
    RevokeToken,
    SetTopicZones,
    ShardLevel,
    StoreTarget,
    SyncGroup,
    TopicsChanged,
)
from musterd.coordinator.machine.envelope import FORMAT
from musterd.coordinator.machine.limits import LIMITS, LIMITS_VERSION
from musterd.coordinator.machine.shard_state import Entry
from musterd.coordinator.runtime.answers import Answer
from musterd.coordinator.runtime.calls import Call
from musterd.coordinator.runtime.large_commits import LARGE, Share
from musterd.invariant import invariant
from musterd.levels import LAST_UNNAMED
from musterd.raft.contract import ENTRY_BYTES_MAX, Applied, Outcome, Overloaded

ENTRIES_IN_FLIGHT_MAX: Final = 8
"""More would add nothing but small entries; the commands behind them gather into bigger ones."""

ENTRY_OVERHEAD_BYTES: Final = 80
"""An entry's own fields: six integers of at most ten bytes with their tags."""

COMMAND_OVERHEAD_BYTES: Final = 8
"""A command's tag and length inside an entry."""

TURN_PARTITIONS_MAX: Final = 2_000
"""A turn closes no more entries of a shard once they name so many: it encodes each."""

OFFSETS_PER_PARTITION: Final = 20
"""Offsets of a group that is deleted that count as one partition (100,000 take 20 ms)."""

GRANTS_PER_PARTITION: Final = 100
"""Partitions of a member of a modern group that count as one where it joins again, which gives all
of them new tokens, syncs, or says something (100,000 take 10 ms at the least)."""

BYTES_PER_GRANT: Final = 8
"""Bytes of a classic group that count as one such partition where a modern member joins it, before
which what its members say is read (`READ_MAX` of machine/modern/conversion.py)."""

MEMBERS_PER_PARTITION: Final = 4
"""Members in a Leave that count as one partition."""

CHANGES_PER_PARTITION: Final = 2
"""Changes of a target, or of topics, that count as one partition."""

RECONCILE_WORK: Final = 500
"""What a Reconcile counts as in its entry: it grants and revokes 1,000 partitions at most. In the
queue it counts as 1: who is to have partitions does not wait for large commits."""

TOPICS_PER_PARTITION: Final = 50
"""Names of topics in a Join that count as one partition."""

TEXT_BYTES_PER_PARTITION: Final = 16
"""Bytes of a group's settings that count as one partition: a text is checked, and put in its one
form."""

SYNC_BYTES_PER_PARTITION: Final = 256
"""Bytes of a Sync that count as one partition in its entry: those of a group leader bring records
for all members, and who owns what is counted when they are applied (metrics/groups.py)."""

JOINING_WORK: Final = 10
"""What a new member of a modern group counts as in its entry, where 90 fill one: each takes 0.1 to
0.2 ms in a group of 1,000. With 30 a fleet of 1,000 started in 1.4 times the time."""

LEAVING_WORK: Final = 30
"""What one that leaves or falls silent counts as, where 32 fill one: 0.2 to 0.4 ms. In the queue
either counts like others: a fleet that starts or ends is not to keep out commits."""

TOPICS_PER_MEMBERSHIP: Final = 10
"""Topics that such a member reads that count as one more (1 us each)."""

JOIN_BYTES_PER_PARTITION: Final = 256
"""Bytes of a Join's metadata that count as one partition in its entry: where the coordinator
assigns, the partitions that are named there are read, which takes 14 ms of the longest."""

REPLACEMENT_WORK: Final = 40
"""What a Join that may replace a static member counts as in its entry, where 25 fill one.

The largest group (2,000 members) takes 0.3 ms for it, and 4 ms where its leader is replaced or
another protocol may be selected. In the queue it counts like other Joins: a fleet that restarts is
not refused."""

FIRING_BYTES: Final = 1_024
"""What the coordinator itself proposes is shorter: three ids of at most 249 bytes, or two and a
reason, and a few integers."""

Propose = Callable[[bytes, Callable[[Outcome], None]], None]


@dataclass(slots=True)
class Pending:
    """A command on its way; `call` is None for what the coordinator itself proposes.

    `size` is in bytes, `work` in partitions.
    """

    command: Command
    size: int
    work: int
    call: Call | None
    offered_s: float = 0.0
    number: int = 0
    """Its place among the commands that this proposer was offered."""
    begun: bool = False
    """Its work is counted as the node's."""
    growth: int = 0
    """What it adds to the state at most, in bytes (growth.py)."""
    more: int = 0
    """What it counts as in its entry, beside its work."""


@dataclass(slots=True, eq=False)
class InFlightEntry:
    """An entry that was proposed and is not applied yet."""

    encoded: bytes
    entry: Entry
    """What decoding `encoded` gives: the leader need not do it."""
    pending: tuple[Pending, ...]
    size: int
    work: int
    first: int
    """The lowest number of its commands."""


@dataclass(slots=True)
class QueueMeter:
    """Counts of a shard's queue, over all times that this node led the shard."""

    clock_s: Callable[[], float] = float
    waited: Callable[[float], None] = lambda _seconds: None
    """Told how long each command waited, in seconds of `clock_s`."""
    shed_total: int = 0


class Proposer:
    """The queue of one shard: at most 4,096 commands, 8 MiB, 5,000 partitions.

    As many in large commands besides, which small ones pass.
    Waiting or under way. What applying a command takes goes with its partitions, not its bytes.
    Commands of one group keep their order.
    """

    def __init__(
        self,
        failed: Callable[[Pending, Outcome], None],
        topics_version: Callable[[], int],
        share: Share,
        meter: QueueMeter,
        level: Callable[[], int],
    ) -> None:
        """`failed` is told of each command whose entry was refused or has an unknown outcome.

        `topics_version` is that of the registry as this node knows it now. `share`: of the node's
        large work. `level` is the shard's as its applied state says it; 0 below level 6.
        """
        self._failed = failed
        self._topics_version = topics_version
        self._share = share
        self._meter = meter
        self._level = level
        self._queue: deque[Pending] = deque()
        self._held: deque[Pending] = deque()
        """Large commands whose turn has not come, and what came after them of their groups."""
        self._held_groups: Counter[str] = Counter()
        self._in_flight: deque[InFlightEntry] = deque()
        self._groups: dict[str, int] = {}
        self._reserved: Counter[str] = Counter()
        self.reserved = 0
        """Bytes of state that what waits or is under way will add at most."""
        self.commands = 0
        self.bytes = 0
        self.work = 0
        """In partitions, as `work_of` counts them."""
        self._queued_size = self._queued_work = 0
        """The size and work of the commands that are neither held nor under way."""
        self.offered_total = 0

    def busy(self, group_id: str) -> bool:
        """True where a command of this group is waiting or under way."""
        return group_id in self._groups

    def ended_up_to(self, number: int) -> bool:
        """True where of the first `number` commands offered none waits or is under way."""
        if any(proposed.first <= number for proposed in self._in_flight):
            return False
        return all(not queue or queue[0].number > number for queue in (self._held, self._queue))

    def reserved_of(self, group_id: str) -> int:
        """Return the bytes of `reserved` that are this group's."""
        return self._reserved.get(group_id, 0)

    @property
    def large_work(self) -> int:
        """The part of `work` that is in large commands."""
        return self._share.work

    @property
    def waiting(self) -> bool:
        """True where commands wait that no entry holds yet."""
        return bool(self._queue or self._held)

    @property
    def open(self) -> bool:
        """True where the next flush may close an entry."""
        return len(self._in_flight) < ENTRIES_IN_FLIGHT_MAX

    @property
    def drains(self) -> bool:
        """True where the next flush closes entries over all that waits, with room to spare.

        But for what is held: who sent that is heard, and what comes now passes it.
        """
        half = self._queued_work < LIMITS.entry_max_partitions // 2
        return self.open and half and self._queued_size < ENTRY_BYTES_MAX // 2

    def offer(
        self,
        command: Command,
        size: int,
        call: Call | None = None,
        growth: int = 0,
        offsets: int = 0,
        grants: int = 0,
        more: int = 0,
    ) -> str | None:
        """Queue a command whose encoding is at most `size` bytes.

        `growth` bytes of state are reserved for it, and `offsets` of its group are deleted by it.
        The member that it is of has so many `grants`. In its entry it counts as so much `more`.
        The name of the limit where it is shed.
        """
        most = LIMITS.sync_max_bytes if type(command) is SyncGroup else LIMITS.command_max_bytes
        invariant(size <= most, "commands are measured before they are offered")
        if self.commands >= LIMITS.queue_max_commands:
            self._meter.shed_total += 1
            return "the shard's queue of commands"
        if self.bytes + size > LIMITS.queue_max_bytes:
            self._meter.shed_total += 1
            return "the bytes in the shard's queue"
        work = work_of(command, offsets, grants)
        large = work > LARGE
        alike = self.large_work if large else self.work - self.large_work
        if call is not None and alike + work > LIMITS.queue_max_partitions:
            self._meter.shed_total += 1
            return "the partitions in the shard's queue"
        self.offered_total += 1
        number = self.offered_total
        self._queue.append(
            Pending(
                command, size, work, call, self._meter.clock_s(), number, growth=growth, more=more
            )
        )
        self.commands += 1
        self.bytes += size
        self.work += work
        if large:
            self._share.hold(work)
        self._queued_size += size
        self._queued_work += work
        group_id = getattr(command, "group_id", None)
        if group_id is not None:
            self._groups[group_id] = self._groups.get(group_id, 0) + 1
        if growth:
            self.reserved += growth
            self._reserved[group_id or ""] += growth
        return None

    def flush(self, time_ms: int, wall_ms: int, propose: Propose) -> bool:
        """Close entries over what is queued, as long as the log takes more, and the turn does.

        Returns whether the turn had enough while the log takes more.
        """
        turn_work = 0
        while self.open and (taken := self._close_entry(turn_work)):
            entry = Entry(
                format=FORMAT,
                level=self._level() or LAST_UNNAMED,
                time_ms=time_ms,
                wall_ms=wall_ms,
                limits_version=LIMITS_VERSION,
                commands=tuple(pending.command for pending in taken),
                topics_version=self._topics_version(),
            )
            encoded = encode_entry(entry)
            invariant(len(encoded) < ENTRY_BYTES_MAX, "an entry never takes PySyncObj's chunk path")
            size, work = sum(p.size for p in taken), sum(p.work for p in taken)
            first = min(p.number for p in taken)
            proposed = InFlightEntry(encoded, entry, taken, size, work, first)
            turn_work += sum(map(_entry_work, taken))
            self._in_flight.append(proposed)
            propose(encoded, partial(self._done, proposed))
        return self.open and self._next() is not None

    def applied(self, encoded: bytes) -> InFlightEntry | None:
        """Take the oldest entry under way, which is the one being applied; None: it is not ours."""
        if not self._in_flight:
            return None
        proposed = self._in_flight.popleft()
        invariant(proposed.encoded == encoded, "a leader's entries are applied as it proposed them")
        self._forget(proposed.pending)
        return proposed

    def fail_queue(self, answer: Answer) -> None:
        """Answer what no entry holds yet: the shard is not led here any more."""
        for pending in self._take_queue():
            if pending.call is not None:
                pending.call.answer(answer)

    def refuse_queue(self, what: str) -> None:
        """No entry is proposed now because of the limit `what`."""
        for pending in self._take_queue():
            self._failed(pending, Overloaded(what))

    def _take_queue(self) -> tuple[Pending, ...]:
        waiting = tuple(sorted((*self._held, *self._queue), key=_number))
        self._queue.clear()
        self._held.clear()
        self._held_groups.clear()
        self._queued_size = self._queued_work = 0
        self._forget(waiting)
        return waiting

    def _close_entry(self, turn_work: int) -> tuple[Pending, ...]:
        """The next entry's commands; none where all is held, or the turn has had enough."""
        if turn_work >= TURN_PARTITIONS_MAX:
            return ()
        size, work = ENTRY_OVERHEAD_BYTES, 0
        taken: list[Pending] = []
        while (pending := self._next()) is not None:
            size += pending.size + COMMAND_OVERHEAD_BYTES
            work += _entry_work(pending)
            if taken and (size >= ENTRY_BYTES_MAX or work > LIMITS.entry_max_partitions):
                break
            self._take(pending)
            if _is_denied(pending):
                self._forget((pending,))
                size -= pending.size + COMMAND_OVERHEAD_BYTES
                work -= _entry_work(pending)
                continue
            _note_entry(pending)
            taken.append(pending)
        now_s = self._meter.clock_s()
        for pending in taken:
            self._meter.waited(now_s - pending.offered_s)
        return tuple(taken)

    def _next(self) -> Pending | None:
        """Return the oldest command that may be proposed now; those that may not are held."""
        if self._held and (_is_small(self._held[0]) or self._share.may_go(self._held[0].work)):
            return self._held[0]
        while self._queue:
            pending = self._queue[0]
            if not self._held and _is_small(pending):
                return pending
            group_id = getattr(pending.command, "group_id", "")
            behind = group_id in self._held_groups
            if not behind and (_is_small(pending) or self._share.may_go(pending.work)):
                return pending
            self._unqueue()
            self._held.append(pending)
            self._held_groups[group_id] += 1
        return None

    def _take(self, pending: Pending) -> None:
        """Remove what `_next` returned from where it waits."""
        if self._held and self._held[0] is pending:
            self._held.popleft()
            group_id = getattr(pending.command, "group_id", "")
            self._held_groups[group_id] -= 1
            if not self._held_groups[group_id]:
                del self._held_groups[group_id]
        else:
            self._unqueue()
        if not _is_small(pending):
            pending.begun = True
            self._share.begin(pending.work)

    def _unqueue(self) -> None:
        pending = self._queue.popleft()
        self._queued_size -= pending.size
        self._queued_work -= pending.work

    def _done(self, proposed: InFlightEntry, outcome: Outcome) -> None:
        if isinstance(outcome, Applied):
            return  # `applied` took it, in the order of the log
        if proposed in self._in_flight:
            self._in_flight.remove(proposed)
            self._forget(proposed.pending)
            for pending in proposed.pending:
                self._failed(pending, outcome)

    def _forget(self, pending: tuple[Pending, ...]) -> None:
        self.commands -= len(pending)
        for item in pending:
            self.bytes -= item.size
            self.work -= item.work
            if not _is_small(item):
                self._share.end(item.work, begun=item.begun)
            group_id = getattr(item.command, "group_id", None)
            if item.growth:
                self._release(group_id or "", item.growth)
            if group_id is not None:
                self._groups[group_id] -= 1
                if not self._groups[group_id]:
                    del self._groups[group_id]

    def _release(self, group_id: str, growth: int) -> None:
        self.reserved -= growth
        self._reserved[group_id] -= growth
        if not self._reserved[group_id]:
            del self._reserved[group_id]


def work_of(  # noqa: C901, PLR0911, PLR0912 - one per kind of work
    command: Command, offsets: int = 0, grants: int = 0
) -> int:
    """Return the work of applying a command, in partitions that it names; 1 for most others.

    The topics that a Join names are weighed and put several times. A group's deletion goes with the
    `offsets` that it has, and fills an entry at most. So do a Join, a Sync and a heartbeat with the
    `grants` that their member has.
    """
    if grants >= GRANTS_PER_PARTITION:
        most = LIMITS.entry_max_partitions
        return min(work_of(command, offsets) + grants // GRANTS_PER_PARTITION, most)
    if type(command) is OffsetCommit:
        return len(command.partitions) or 1
    match command:
        case OffsetCommit() | OffsetDelete() | ExpireOffsets() | DropOffsets():
            return max(1, len(command.partitions))
        case DeleteGroup():
            return min(1 + offsets // OFFSETS_PER_PARTITION, LIMITS.entry_max_partitions)
        case LeaveGroup():
            return max(1, len(command.members) // MEMBERS_PER_PARTITION)
        case JoinGroup():
            return 1 + len(command.subscribed_topics) // TOPICS_PER_PARTITION
        case ConsumerGroupHeartbeat() | NoteTopics() | StoreTarget() | DropPart():
            return _work_of_modern(command)
        case BeginDrop() | EndDrop() | ForgetDeletion():
            return max(1, len(command.topics))
        case AlterGroupConfig():
            texts = sum(len(one.value) for one in command.settings)
            return min(1 + texts // TEXT_BYTES_PER_PARTITION, LIMITS.entry_max_partitions)
        case AlterAcls():
            return max(1, len(command.added) + len(command.removed))
        case AlterQuotas():
            return max(1, len(command.changes))
        case (
            SyncGroup()
            | ExpireMember()
            | CloseRound()
            | TopicsChanged()
            | CreateTopic()
            | AddPartitions()
            | SetTopicZones()
            | DeleteTopic()
            | ReplaceNode()
            | FinalizeLevel()
            | NoteLevels()
            | ShardLevel()
            | RecordAudit()
            | Checkpoint()
            | CreateToken()
            | RevokeToken()
            | NoteBackup()
            | Reconcile()
        ):
            return 1
        case _:
            assert_never(command)


def _work_of_modern(command: ConsumerGroupHeartbeat | NoteTopics | StoreTarget | DropPart) -> int:
    match command:
        case ConsumerGroupHeartbeat():
            owned = sum(len(one.partitions) for one in command.owned or ())
            names = len(command.topics or ()) + len(command.owned or ()) + owned
            return 1 + names // TOPICS_PER_PARTITION
        case NoteTopics():
            named = sum(len(one.added) + len(one.removed) for one in command.patterns)
            return 1 + (len(command.counts) + named) // CHANGES_PER_PARTITION
        case StoreTarget():
            return 1 + sum(len(one.partitions) for one in command.changes) // CHANGES_PER_PARTITION
        case DropPart():
            return LIMITS.reconcile_max_partitions // CHANGES_PER_PARTITION


def _is_denied(pending: Pending) -> bool:
    """Answer a command whose caller lost the right to it while it waited."""
    call = pending.call
    if call is None or call.recheck is None:
        return False
    refused = call.recheck()
    if refused is None:
        return False
    call.answer(refused)
    return True


def _note_entry(pending: Pending) -> None:
    """From now on what becomes of the entry is the answer, whatever rights the caller loses."""
    if pending.call is not None:
        pending.call.in_entry = True


def _is_small(pending: Pending) -> bool:
    return pending.work <= LARGE


def _number(pending: Pending) -> int:
    return pending.number


def _entry_work(pending: Pending) -> int:
    """Return the work that a command adds to its entry."""
    command = pending.command
    if isinstance(command, JoinGroup):
        metadata = sum(len(one.metadata) for one in command.protocols)
        work = pending.work + metadata // JOIN_BYTES_PER_PARTITION
        replaces = command.group_instance_id and not command.member_id
        return max(work, REPLACEMENT_WORK) if replaces else work
    if isinstance(command, Reconcile):
        return RECONCILE_WORK
    if isinstance(command, SyncGroup):
        return pending.work + pending.size // SYNC_BYTES_PER_PARTITION
    return pending.work + pending.more
