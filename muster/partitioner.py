"""Maps a key to its partition, as Kafka's default partitioner does."""

from muster.errors import InvalidRequest

_SEED, _M, _R = 0x9747B28C, 0x5BD1E995, 24
_MASK = 0xFFFFFFFF


def partition_for(key: bytes | str, partitions: int) -> int:
    """The partition of a key: the same one as in Kafka, for the same count (murmur2).

    Args:
        key: bytes, or text that is taken as UTF-8.
        partitions: how many the topic has. Where a topic grows, keys move.

    Returns:
        0 to `partitions` - 1.

    Raises:
        InvalidRequest: `partitions` is below 1.
    """
    if partitions < 1:
        raise InvalidRequest(f"a topic has 1 partition at least, not {partitions}")
    data = key.encode() if isinstance(key, str) else key
    return (_murmur2(data) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    """32 bits, with the seed that Kafka's clients use."""
    value = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        word = (word ^ word >> _R) * _M & _MASK
        value = value * _M & _MASK ^ word
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    return value ^ value >> 15
