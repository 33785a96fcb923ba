"""confluent-kafka's types, as far as they mean something here."""

from dataclasses import dataclass, field

from muster.errors import MusterError
from muster.types import OffsetAndMetadata
from muster.types import TopicPartition as Key

OFFSET_INVALID = -1001
"""No offset: nothing was committed, or none is given."""


@dataclass(order=True, unsafe_hash=True, slots=True)
class TopicPartition:
    """A partition, and where it matters an offset. Equal where topic and partition are."""

    topic: str
    partition: int = -1
    offset: int = field(default=OFFSET_INVALID, compare=False)
    metadata: str | None = field(default=None, compare=False)
    leader_epoch: int | None = field(default=None, compare=False)
    start_offset: int | None = field(default=None, compare=False, kw_only=True)
    """Where the partition begins, as the committer saw it: for `get_watermark_offsets`."""
    end_offset: int | None = field(default=None, compare=False, kw_only=True)
    """Where it ends; lag is known only where this is committed, too."""

    @property
    def key(self) -> Key:
        """As the rest of the SDK names it."""
        return Key(self.topic, self.partition)

    @property
    def progress(self) -> OffsetAndMetadata:
        return OffsetAndMetadata(
            self.offset,
            self.metadata or "",
            end_offset=self.end_offset,
            start_offset=self.start_offset,
            leader_epoch=self.leader_epoch,
        )


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """A partition of a topic. It has no leader and no replicas here: there is no data in muster."""

    id: int
    error: MusterError | None = None


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic of the registry; `error` says why it has no partitions."""

    topic: str
    partitions: dict[int, PartitionMetadata]
    error: MusterError | None = None


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The topics that `Consumer.list_topics` found, by name."""

    topics: dict[str, TopicMetadata]
