"""The partitions of a commit that has nothing but an offset for each, in columns.

Nearly every commit is such. A replica decides, stores and hashes it by columns, and hardly anybody
reads one of its partitions alone.
"""

from collections.abc import Iterator, Sequence

from musterd.coordinator.machine.commands import OffsetCommit, PartitionCommit
from musterd.coordinator.machine.lazy_sequence import LazySequence


class PlainPartitions(LazySequence[PartitionCommit]):
    """A topic, a number and an offset of each partition, and nothing else; at least one.

    `refs` are topics and numbers, `topics` each name once, all in the order of the commit.
    `encoded` are their bytes in the log where they are known, else b"".
    """

    __slots__ = ("encoded", "numbers", "offsets", "refs", "topics")

    def __init__(
        self,
        topics: Sequence[str],
        numbers: Sequence[int],
        offsets: Sequence[int],
    ) -> None:
        self.refs = tuple(zip(topics, numbers, strict=True))
        self.topics = tuple(dict.fromkeys(topics))
        self.numbers = numbers
        self.offsets = offsets
        self.encoded = b""

    def __len__(self) -> int:
        return len(self.refs)

    def __iter__(self) -> Iterator[PartitionCommit]:
        for (topic, number), offset in zip(self.refs, self.offsets, strict=True):
            yield PartitionCommit(topic, number, offset, "", None)


def topics_of(command: OffsetCommit) -> Sequence[str]:
    """The topics that a commit names, each once."""
    partitions = command.partitions
    if isinstance(partitions, PlainPartitions):
        return partitions.topics
    return tuple(dict.fromkeys(one.topic for one in partitions))
