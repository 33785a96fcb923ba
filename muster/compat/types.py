"""confluent-kafka's TopicPartition, as far as it means something here."""

from dataclasses import dataclass, field

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

    @property
    def key(self) -> Key:
        """As the rest of the SDK names it."""
        return Key(self.topic, self.partition)

    @property
    def progress(self) -> OffsetAndMetadata:
        """What to commit."""
        return OffsetAndMetadata(self.offset, self.metadata or "")
