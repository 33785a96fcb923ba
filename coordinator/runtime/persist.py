"""A shard's state on disk: records in the replica's batch, loaded back from a view.

The records themselves are the machine's (coordinator/machine/records/group_records.py).
Checkpoints are kept beside them, as meta of this replica: they are never part of a snapshot,
because each replica vouches for its own state.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from musterd.coordinator.machine.commands import Checkpoint
from musterd.coordinator.machine.commit_events import CommitEvents
from musterd.coordinator.machine.events import CheckpointTaken
from musterd.coordinator.machine.records.checkpoint_keys import (
    CHECKPOINT_PREFIX,
    checkpoint_index,
    checkpoint_key,
)
from musterd.coordinator.machine.records.digest import DIGEST_BYTES, DIGEST_MODULUS, record_digest
from musterd.coordinator.machine.records.encoding import RecordError
from musterd.coordinator.machine.records.group_records import GROUP_PREFIX, group_of_key
from musterd.coordinator.machine.records.shard_records import RecordExamination, load_in_slices
from musterd.coordinator.machine.shard_state import (
    EVERY_KEY,
    CommandResult,
    ShardState,
    load_state,
    time_record,
)
from musterd.invariant import invariant
from musterd.raft.contract import Examination, StateBatch, StateView

CHECKPOINTS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """The shard's digest (16 bytes) that this replica recorded at a log index."""

    index: int
    digest: bytes


def stored_checkpoints(view: StateView) -> tuple[CheckpointRecord, ...]:
    """Return this replica's checkpoints, oldest first. Raises RecordError on an unreadable key."""
    found = []
    for key, value in view.scan_meta(CHECKPOINT_PREFIX):
        try:
            found.append(CheckpointRecord(checkpoint_index(key), value))
        except RecordError as error:
            raise RecordError(f"{error}: {key!r}") from error
    return tuple(found)


class Persist:
    """Writes what entries change and knows the last 100 checkpoints. One per shard of a node."""

    def __init__(self) -> None:
        self._checkpoints: deque[CheckpointRecord] = deque()

    @property
    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        """The checkpoints that are kept, the oldest first."""
        return tuple(self._checkpoints)

    def load(self, view: StateView) -> ShardState:
        """Forget everything and read the shard. Raises RecordError on an unreadable record."""
        self._checkpoints = deque(stored_checkpoints(view))
        return load_state(view.scan())

    def load_in_slices(self, view: StateView) -> Generator[None, None, ShardState]:
        """`load` with pauses, for a node that serves other shards meanwhile."""
        self._checkpoints = deque(stored_checkpoints(view))
        return (yield from load_in_slices(view.scan()))

    def examine(self, refused: Callable[[str], None]) -> Examination:
        """Look at the records of a state that arrives; `refused` is told why one is unreadable."""
        records = RecordExamination()

        def readable(key: bytes, value: bytes) -> bool:
            try:
                records.take(key, value)
            except RecordError as error:
                refused(str(error))
                return False
            return True

        return readable

    def write(
        self, batch: StateBatch, index: int, state: ShardState, results: Iterable[CommandResult]
    ) -> None:
        """Put everything that the entry at `index` changed; `state` is as it left it."""
        if state.time_ms:
            batch.put(*time_record(state))
        for result in results:
            if isinstance(result.events, CommitEvents):  # nearly all, and they only put
                batch.put_all(cast("Sequence[tuple[bytes, bytes]]", result.writes))
                continue
            for key, value in result.writes:
                if value is None:
                    batch.delete(key)
                elif value is EVERY_KEY:
                    batch.delete_prefix(key)
                else:
                    batch.put(key, value)
            if isinstance(result.command, Checkpoint):
                for event in result.events:
                    if isinstance(event, CheckpointTaken):
                        self._keep(batch, CheckpointRecord(index, event.digest))

    def _keep(self, batch: StateBatch, checkpoint: CheckpointRecord) -> None:
        """The newest of two checkpoints in one entry stands, under the one index."""
        invariant(len(checkpoint.digest) == DIGEST_BYTES, "a checkpoint's digest has 16 bytes")
        if self._checkpoints and self._checkpoints[-1].index == checkpoint.index:
            self._checkpoints.pop()
        self._checkpoints.append(checkpoint)
        batch.put_meta(checkpoint_key(checkpoint.index), checkpoint.digest)
        while len(self._checkpoints) > CHECKPOINTS_MAX:
            batch.delete_meta(checkpoint_key(self._checkpoints.popleft().index))


@dataclass(slots=True)
class StoredDigests:
    """Digests recomputed from the keys on disk: of the shard, of each group, of the rest."""

    total: int = 0
    shard_wide: int = 0
    groups: dict[str, int] = field(default_factory=dict)

    def add(self, key: bytes, value: bytes) -> None:
        """Count one record. Raises RecordError where the key does not say whose it is."""
        digest = record_digest(key, value)
        self.total = (self.total + digest) % DIGEST_MODULUS
        if key.startswith(GROUP_PREFIX):
            group_id = group_of_key(key)
            self.groups[group_id] = (self.groups.get(group_id, 0) + digest) % DIGEST_MODULUS
        else:
            self.shard_wide = (self.shard_wide + digest) % DIGEST_MODULUS


def scrub(view: StateView, slice_records: int = 1_000) -> Iterator[StoredDigests]:
    """Recompute the digests from disk in slices: yields after each; the last is whole.

    `view` must stand still meanwhile (one applied index).
    """
    digests = StoredDigests()
    for count, (key, value) in enumerate(view.scan(), start=1):
        digests.add(key, value)
        if count % slice_records == 0:
            yield digests
    yield digests
