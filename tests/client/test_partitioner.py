"""Keys are shared out as Kafka's default partitioner does."""

import pytest

from muster import partition_for
from muster.errors import InvalidRequest

# The hashes that Apache Kafka's own test of its murmur2 expects (UtilsTest.testMurmur2).
KAFKA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


@pytest.mark.parametrize(("key", "hashed"), KAFKA.items())
@pytest.mark.parametrize("partitions", [1, 2, 7, 50_000, 2**31 - 1])
def test_a_key_goes_to_the_partition_that_kafka_chooses(key, hashed, partitions):
    """Text and its bytes alike."""
    assert partition_for(key, partitions) == (hashed & 0x7FFFFFFF) % partitions
    assert partition_for(key.encode(), partitions) == partition_for(key, partitions)


def test_a_topic_without_partitions_is_refused():
    """Nothing would be right."""
    with pytest.raises(InvalidRequest):
        partition_for("key", 0)
