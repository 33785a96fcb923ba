"""The events and results of a commit that is stored as a whole, in columns.

A commit of a thousand partitions has as many of both, and hardly anybody reads them: replicas do
not answer, and state, records and digest are made of the columns. So each is made when it is read.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple

from musterd.coordinator.machine.commands import OffsetCommit, PartitionCommit
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import BlobCommitted, OffsetCommitted
from musterd.coordinator.machine.lazy_sequence import LazySequence
from musterd.coordinator.machine.plain_partitions import PlainPartitions
from musterd.coordinator.machine.replies import PartitionResult


class CommitColumns(NamedTuple):
    """The partitions of a commit in columns: one value per partition, in the command's order."""

    offsets: Sequence[int]
    metadata: Sequence[str]
    end_offsets: Sequence[int | None]
    start_offsets: Sequence[int | None]
    leader_epochs: Sequence[int | None]


class CommitEvents(LazySequence[OffsetCommitted | BlobCommitted]):
    """An OffsetCommitted for each partition, each partition once; then the BlobCommitted, if any.

    `refs` are topic and partition of `partitions`, in their order. What is neither is the same in
    all events.
    """

    __slots__ = (
        "blob",
        "commit_seq",
        "generation",
        "group_id",
        "member_id",
        "partitions",
        "refs",
        "wall_ms",
    )

    def __init__(
        self,
        command: OffsetCommit,
        refs: Sequence[tuple[str, int]],
        writer: tuple[str, int],
        wall_ms: int,
        blob: BlobCommitted | None,
    ) -> None:
        """`refs` are those of `command`, `writer` is the member, and its number of the commit."""
        self.partitions: Sequence[PartitionCommit] = command.partitions
        self.group_id, self.generation = command.group_id, command.generation
        self.refs, self.wall_ms, self.blob = refs, wall_ms, blob
        self.member_id, self.commit_seq = writer

    def columns(self) -> CommitColumns:
        """The values of the partitions, put side by side anew with each call."""
        if isinstance(self.partitions, PlainPartitions):
            nothing = (None,) * len(self.refs)
            texts = ("",) * len(self.refs)
            return CommitColumns(self.partitions.offsets, texts, nothing, nothing, nothing)
        _, _, offsets, metadata, ends, _, starts, epochs = zip(*self.partitions, strict=True)
        return CommitColumns(offsets, metadata, ends, starts, epochs)

    def __len__(self) -> int:
        return len(self.refs) + (self.blob is not None)

    def __iter__(self) -> Iterator[OffsetCommitted | BlobCommitted]:
        topics, partitions = zip(*self.refs, strict=True)
        columns = self.columns()
        committed = map(
            OffsetCommitted,
            repeat(self.group_id),
            topics,
            partitions,
            columns.offsets,
            columns.metadata,
            columns.end_offsets,
            repeat(self.member_id),
            repeat(self.generation),
            repeat(self.commit_seq),
            repeat(self.wall_ms),
            columns.start_offsets,
            columns.leader_epochs,
        )
        return committed if self.blob is None else chain(committed, (self.blob,))


class StoredResults(LazySequence[PartitionResult]):
    """That every partition of a commit is stored."""

    __slots__ = ("refs",)

    def __init__(self, refs: Sequence[tuple[str, int]]) -> None:
        self.refs = refs

    def __len__(self) -> int:
        return len(self.refs)

    def __iter__(self) -> Iterator[PartitionResult]:
        return (
            PartitionResult(topic, partition, Error.NONE, "", False)
            for topic, partition in self.refs
        )
