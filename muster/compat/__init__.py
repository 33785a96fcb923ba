"""A synchronous consumer with confluent-kafka's names, for code that has no event loop.

It is the whole of the synchronous SDK. Importing it starts nothing.
"""

from muster.compat.consumer import Consumer
from muster.compat.types import (
    OFFSET_INVALID,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)

__all__ = [
    "OFFSET_INVALID",
    "ClusterMetadata",
    "Consumer",
    "PartitionMetadata",
    "TopicMetadata",
    "TopicPartition",
]
