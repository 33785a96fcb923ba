"""From an applied log record to rows: decide and evolve with the machine, encode what came out."""

from typing import NamedTuple

from musterd.coordinator import codec
from musterd.coordinator.machine.commands import Command
from musterd.coordinator.machine.events import CheckpointTaken
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.machine.shard_state import CommandResult, Entry, ShardState, apply_entry
from musterd.export.layout import NOOP, Row
from musterd.export.source import LogRecord
from musterd.levels import level_in_force

EMPTY = "empty"
"""`kind` of an entry of ours without a command: it only moved shard time."""

SHARD_WIDE = ""


class _OfShard(NamedTuple):
    """What the envelope of a group's command has of its shard."""

    generation_floor: int
    dropped_version: int
    fence_floor: int
    level: int


class EntryWriter:
    """Applies entries to a shard's state and says them as rows."""

    def __init__(self, cluster_id: str, shard: int, state: ShardState) -> None:
        self._cluster_id = cluster_id
        self._shard = shard
        self.state = state

    def apply(self, record: LogRecord) -> tuple[list[Row], bytes | None]:
        """The rows of one record, at least one, and the digest of the checkpoint in it, if any.

        Raises `codec.UnknownFormatError` for an entry of a later version.
        """
        if record.entry is None:
            return [self._row(record, None, 0, NOOP, None, self._of_shard())], None
        entry = codec.decode_entry(record.entry)
        read = [self._of_shard()]  # before each command, as `decide` reads it
        results = apply_entry(
            self.state,
            entry,
            record.position,
            lambda _: read.append(self._of_shard()),
        )
        if not results:
            return [self._row(record, entry, 0, EMPTY, None, read[0])], None
        rows: list[Row] = []
        digest: bytes | None = None
        for sub, result in enumerate(results):
            rows.append(self._row(record, entry, sub, kind_of(result.command), result, read[sub]))
            for event in result.events:
                if isinstance(event, CheckpointTaken):
                    digest = event.digest
        return rows, digest

    def _of_shard(self) -> _OfShard:
        state = self.state
        return _OfShard(
            state.generation_floor, state.dropped_version, state.fence_floor, state.level
        )

    def _row(
        self,
        record: LogRecord,
        entry: Entry | None,
        sub: int,
        kind: str,
        result: CommandResult | None,
        of_shard: _OfShard,
    ) -> Row:
        command = None if result is None else result.command
        reply = None if result is None else result.reply
        level = 0 if entry is None else level_in_force(of_shard.level, entry.level)
        return Row(
            cluster_id=self._cluster_id,
            shard=self._shard,
            index=record.position,
            sub=sub,
            term=record.term,
            time_ms=self.state.time_ms,
            wall_ms=0 if entry is None else entry.wall_ms,
            rules_version=level,
            limits_version=0 if entry is None else entry.limits_version,
            generation_floor=of_shard.generation_floor,
            group=getattr(command, "group_id", SHARD_WIDE),
            kind=kind,
            command=None if command is None else codec.encode_command(command),
            events=None if result is None else codec.encode_events(result.events),
            error=reply.error.name if isinstance(reply, Refused) else None,
            topics_version=(
                0 if entry is None else max(entry.topics_version, of_shard.dropped_version)
            ),
            fence_floor=of_shard.fence_floor,
        )


def kind_of(command: Command) -> str:
    """The command's name as `proto/muster/v1/log.proto` spells its field."""
    name = type(command).__name__
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
