"""The fold: exported events through the machine's own `evolve`, group by group. Knows no Spark.

It does not decide again, so a later correction of `decide` does not change old history; `prove`
decides again beside it and compares. Every group keeps a state of its own, from which the machine
counts that group's share of its shard's digest. What no replica can have written (an event that
does not fit, bytes that are no event) ends that group's fold with a row in `integrity`; nothing is
guessed.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from musterd.coordinator.codec import decode_command, decode_events, encode_events
from musterd.coordinator.machine.commands import (
    AddPartitions,
    AlterAcls,
    AlterQuotas,
    BeginDrop,
    Checkpoint,
    Command,
    CreateToken,
    CreateTopic,
    DeleteTopic,
    DropOffsets,
    EndDrop,
    FinalizeLevel,
    ForgetDeletion,
    NoteBackup,
    NoteLevels,
    OffsetCommit,
    RecordAudit,
    ReplaceNode,
    RevokeToken,
    SetTopicZones,
    ShardLevel,
)
from musterd.coordinator.machine.decide.dispatch import decide
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.events import (
    AclsAltered,
    AuditRecorded,
    BackupNoted,
    CheckpointTaken,
    DeletionForgotten,
    DropBegun,
    DropEnded,
    Event,
    LevelRaised,
    LevelsNoted,
    NodeReplaced,
    PartitionsAdded,
    QuotasAltered,
    TokenCreated,
    TokensRemoved,
    TopicCreated,
    TopicDeleted,
    TopicZonesSet,
)
from musterd.coordinator.machine.limits import LIMITS_BY_VERSION
from musterd.coordinator.machine.records.group_records import GROUP_PREFIX, group_of_key
from musterd.coordinator.machine.replies import Parked, Refused, Reply
from musterd.coordinator.machine.shard_state import (
    DELETIONS_DIFFER,
    ShardState,
    decide_shard,
    evolve_counted,
    evolve_shard_counted,
    load_state,
)
from musterd.export.layout import NOOP, Row
from musterd.export.parquet_files import read_records
from musterd.levels import LEVEL
from musterd.replay.checks import finding
from musterd.replay.digests import to_delta
from musterd.replay.modern_trackers import ConversionTracker, GrantTracker, PlanTracker
from musterd.replay.moment import Moment
from musterd.replay.ownership_spans import Spans
from musterd.replay.plan import ShardPlan
from musterd.replay.rows import read_rows
from musterd.replay.tables import FAILED, MARKED, Emitted, Integrity, Tally
from musterd.replay.trackers import (
    OPEN,
    UNKNOWN,
    CommitTracker,
    OwnershipTracker,
    RebalanceTracker,
    SessionTracker,
    Tracker,
)

BASE_RECORD = "base"
"""`kind` of a base's record on its way to the fold: `command` is the key, `events` the value."""

SHARD_WIDE = ""
"""The group of what belongs to no group: topics, replaced nodes."""

Records = Iterable[tuple[bytes, bytes]]


class GroupFold:
    """One group of one shard (group "": the shard-wide rest), through all runs of its history."""

    def __init__(self, plan: ShardPlan, group_id: str, *, prove: bool) -> None:
        self._plan = plan
        self._group_id = group_id
        self._prove = prove
        self._stop = plan.stops.get(group_id)
        self._positions = [(mark.index, mark.sub) for mark in plan.marks]
        self._run = 0
        self._state = ShardState()
        self._trackers: list[Tracker] = []
        self._broken = False
        self._mark = 0
        self._share = 0
        self._events = 0
        self._proven = 0
        self._unproven = 0
        self.begin(0, ())

    @property
    def run(self) -> int:
        """The run that this fold is in."""
        return self._run

    def begin(self, run: int, records: Records) -> None:
        """Start a run with this group's records of the base, in key order.

        None = there is no such group.
        """
        self._run, self._broken = run, False
        self._state = load_state(records)
        self._trackers = []
        if self._group_id != SHARD_WIDE:
            shard, group_id = self._plan.shard, self._group_id
            spans = Spans(shard, group_id)
            self._trackers = [
                RebalanceTracker(shard, group_id),
                SessionTracker(shard, group_id),
                OwnershipTracker(spans),
                CommitTracker(shard, group_id),
                GrantTracker(spans),
                PlanTracker(shard, group_id),
                ConversionTracker(shard, group_id, spans),
            ]
        group = self._state.groups.get(self._group_id)
        if group is not None:
            for tracker in self._trackers:
                tracker.begin(group)

    def on(self, row: Row) -> Iterator[Emitted]:
        """Fold one row; rows come in order of (index, sub)."""
        if self._broken or row.kind == NOOP:
            return
        if self._stop is not None and (row.index, row.sub) >= self._stop:
            yield from self._break(row, "copies", "not folded from here on: copies of a row differ")
            return
        try:
            if self._prove:
                yield from self._check_decision(row)
            for event in decode_events(row.events or b""):
                yield from self._evolve(event, row)
        except Exception as error:  # noqa: BLE001  # whatever a forged row makes the machine raise
            detail = f"does not fold: {type(error).__name__}: {error}"
            yield from self._break(row, "fold", detail)

    def finish(self, how: str) -> Iterator[Emitted]:
        """End of the run: `open` at the end of the export, `unknown` where entries are missing."""
        how = UNKNOWN if self._broken else how
        for tracker in self._trackers:
            yield from tracker.finish(how)
        self._trackers = []
        if how == UNKNOWN and not self._broken and self._group_id != SHARD_WIDE:
            last = self._plan.runs[self._run].last
            yield self._finding(
                "gap", MARKED, last + 1, f"its history breaks off after entry {last}"
            )
        yield from self._flush()

    def _evolve(self, event: Event, row: Row) -> Iterator[Emitted]:
        state, digest = self._state, self._state.digest
        match event:
            case (
                TopicCreated()
                | PartitionsAdded()
                | TopicZonesSet()
                | TopicDeleted()
                | DropBegun()
                | DropEnded()
                | DeletionForgotten()
                | NodeReplaced()
                | LevelsNoted()
                | LevelRaised()
                | AuditRecorded()
                | CheckpointTaken()
                | AclsAltered()
                | TokenCreated()
                | TokensRemoved()
                | BackupNoted()
                | QuotasAltered()
            ):
                if self._group_id != SHARD_WIDE:
                    raise ValueError(f"{type(event).__name__} in a group's row")
                evolve_shard_counted(state, event)
            case _:
                if event.group_id != self._group_id:
                    raise ValueError(f"{type(event).__name__} of group {event.group_id!r}")
                group = state.groups.get(self._group_id)
                at = Moment(row.index, row.sub, row.time_ms, row.wall_ms, row.term)
                for tracker in self._trackers:
                    yield from tracker.on(event, group, at)
                evolve_counted(state, group, (event,))
        self._events += 1
        if state.digest != digest:
            mark = self._plan.mark_of(self._positions, row.index, row.sub)
            if mark != self._mark:
                yield from self._flush_share()
                self._mark = mark
            self._share += state.digest - digest

    def _check_decision(self, row: Row) -> Iterator[Integrity]:
        """`--prove`.

        Decide again from the same state and envelope; the events must be the same bytes.
        """
        limits = LIMITS_BY_VERSION.get(row.limits_version)
        if row.rules_version > LEVEL or limits is None or row.command is None:
            self._unproven += 1
            return
        command = decode_command(row.command)
        if _reads_the_shard(command, row):
            self._unproven += 1
            return
        events: tuple[Event, ...]
        reply: Reply | Parked
        match command:
            case Checkpoint():
                return  # reads the whole shard; the comparison of digests proves it
            case (
                CreateTopic()
                | AddPartitions()
                | SetTopicZones()
                | DeleteTopic()
                | BeginDrop()
                | EndDrop()
                | ForgetDeletion()
                | ReplaceNode()
                | FinalizeLevel()
                | NoteLevels()
                | ShardLevel()
                | AlterAcls()
                | CreateToken()
                | RevokeToken()
                | RecordAudit()
                | NoteBackup()
                | AlterQuotas()
            ):
                events, reply = decide_shard(
                    self._state, command, limits, row.rules_version, row.wall_ms
                )
            case _:
                env = Envelope(
                    row.time_ms,
                    row.wall_ms,
                    row.rules_version,
                    row.limits_version,
                    row.generation_floor,
                    limits,
                    row.topics_version,
                    fence_floor=row.fence_floor,
                )
                decided = decide(self._state.groups.get(self._group_id), command, env)
                events, reply = tuple(decided.events), decided.reply
        error = reply.error.name if isinstance(reply, Refused) else None
        if (encode_events(events), error) == ((row.events or b""), row.error):
            self._proven += 1
        else:
            detail = f"{row.kind} at {row.index}.{row.sub} decides otherwise now"
            yield self._finding("proof", FAILED, row.index, detail)

    def _break(self, row: Row, check: str, detail: str) -> Iterator[Emitted]:
        self._broken = True
        yield self._finding(check, FAILED, row.index, f"entry {row.index}.{row.sub} {detail}")

    def _finding(self, check: str, result: str, first: int, detail: str) -> Integrity:
        shard = self._plan.shard
        return finding(check, result, shard, None, detail, group=self._group_id, first=first)

    def _flush_share(self) -> Iterator[Emitted]:
        if self._share:
            yield to_delta(self._plan.shard, self._mark, self._share)
        self._share = 0

    def _flush(self) -> Iterator[Emitted]:
        yield from self._flush_share()
        counts = {"events": self._events, "proven": self._proven, "unproven": self._unproven}
        for what, count in counts.items():
            if count:
                yield Tally(self._plan.shard, what, count)
        self._events = self._proven = self._unproven = 0


def _reads_the_shard(command: Command, row: Row) -> bool:
    """True where the shard refused a group's command by what it knows of deleted topics."""
    return (
        isinstance(command, OffsetCommit | DropOffsets) and row.error == DELETIONS_DIFFER.error.name
    )


def fold_shard(plan: ShardPlan, *, prove: bool) -> Iterator[Emitted]:
    """Fold one shard in the log's own order, straight from its files.

    Holds all groups of the shard.
    """
    for number, run in enumerate(plan.runs):
        folds: dict[str, GroupFold] = {}
        if run.base is not None:
            for group_id, part in _by_group(read_records(Path(run.base.path))):
                folds[group_id] = _new_fold(plan, group_id, number, part, prove=prove)
        for piece in run.pieces:
            for row in read_rows(Path(piece.path), piece.first, piece.last):
                fold = folds.get(row.group)
                if fold is None:
                    fold = folds[row.group] = _new_fold(plan, row.group, number, (), prove=prove)
                yield from fold.on(row)
        for fold in folds.values():
            yield from fold.finish(_how(plan, number))


def _by_group(records: Records) -> Iterator[tuple[str, list[tuple[bytes, bytes]]]]:
    """A base's records per group.

    The shard-wide ones stand before and behind the groups' in key order.
    """
    shard_wide: list[tuple[bytes, bytes]] = []
    for group_id, part in groupby(records, key=lambda each: group_of(each[0])):
        if group_id == SHARD_WIDE:
            shard_wide += part
        else:
            yield group_id, list(part)
    if shard_wide:
        yield SHARD_WIDE, shard_wide


def fold_sorted(
    rows: Iterable[Row], plans: Mapping[int, ShardPlan], *, prove: bool
) -> Iterator[Emitted]:
    """Fold rows that come in order of (shard, group, index, sub), bases' records among them.

    Holds one group.
    """
    for (shard, group_id), mine in groupby(rows, key=lambda row: (row.shard, row.group)):
        plan = plans[shard]
        fold: GroupFold | None = None
        by_run = groupby(mine, key=lambda row: plan.run_of(row.index))
        for number, part in by_run:
            if fold is not None:
                yield from fold.finish(UNKNOWN)
            fold, rest = _begin_sorted(plan, group_id, number, part, prove=prove)
            for row in rest:
                yield from fold.on(row)
        if fold is not None:
            yield from fold.finish(_how(plan, fold.run))


def _begin_sorted(
    plan: ShardPlan, group_id: str, number: int, rows: Iterator[Row], *, prove: bool
) -> tuple[GroupFold, Iterator[Row]]:
    records: list[tuple[bytes, bytes]] = []
    first: list[Row] = []
    for row in rows:
        if row.kind != BASE_RECORD:
            first.append(row)
            break
        records.append((row.command or b"", row.events or b""))
    fold = _new_fold(plan, group_id, number, records, prove=prove)
    return fold, _chain(first, rows)


def _chain(first: list[Row], rest: Iterator[Row]) -> Iterator[Row]:
    yield from first
    yield from rest


def _new_fold(
    plan: ShardPlan, group_id: str, run: int, records: Records, *, prove: bool
) -> GroupFold:
    fold = GroupFold(plan, group_id, prove=prove)
    fold.begin(run, records)
    return fold


def _how(plan: ShardPlan, run: int) -> str:
    return OPEN if run == len(plan.runs) - 1 else UNKNOWN


def group_of(key: bytes) -> str:
    """The group that a state record belongs to; "" for the shard-wide ones."""
    return group_of_key(key) if key.startswith(GROUP_PREFIX) else SHARD_WIDE
