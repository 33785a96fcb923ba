"""Kafka's error names and numbers: muster's only vocabulary of refusal (gp-2.0.1)."""

from enum import IntEnum


class Error(IntEnum):
    """An outcome a client can act on. Equal to `ErrorCode` in `proto/muster/v1/errors.proto`."""

    NONE = 0
    UNKNOWN_SERVER_ERROR = -1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    REQUEST_TIMED_OUT = 7
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    OPERATION_NOT_ATTEMPTED = 55
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    UNSTABLE_OFFSET_COMMIT = 88
    INVALID_UPDATE_VERSION = 95

    @property
    def retriable(self) -> bool:
        """True where the same request may succeed later, unchanged."""
        return self in _RETRIABLE


_RETRIABLE = frozenset(
    {
        Error.UNKNOWN_TOPIC_OR_PARTITION,
        Error.REQUEST_TIMED_OUT,
        Error.COORDINATOR_LOAD_IN_PROGRESS,
        Error.COORDINATOR_NOT_AVAILABLE,
        Error.NOT_COORDINATOR,
        Error.UNSTABLE_OFFSET_COMMIT,
    }
)
