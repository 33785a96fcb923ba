"""Errors by Kafka's names and numbers (errors.proto; gp-2.0.1).

Every exception carries `code` (Kafka's number), `retriable` (the same call may succeed later,
unchanged) and `hint` (what to do next). An outcome that the SDK can mend by itself (another
coordinator, a rebalance) never gets here unless the call's own time ran out.
"""

from enum import IntEnum
from typing import ClassVar, Protocol


class ErrorCode(IntEnum):
    """Kafka's error numbers, equal to `muster.v1.ErrorCode`."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
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
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    INVALID_UPDATE_VERSION = 95
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    INVALID_REGULAR_EXPRESSION = 128


class StatusLike(Protocol):
    """The fields of a `muster.v1.Status` that `error_from_status` reads."""

    @property
    def code(self) -> int: ...
    @property
    def message(self) -> str: ...
    @property
    def retriable(self) -> bool: ...


class MusterError(Exception):
    """Base of everything that the SDK raises on purpose."""

    error: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    default_hint: ClassVar[str] = "see the coordinator's log"
    default_retriable: ClassVar[bool] = False

    code: int
    """Kafka's number. A number that this SDK does not know is kept as it came."""
    retriable: bool
    """True where the same call may succeed later, unchanged."""
    hint: str
    """What to do next, in one plain sentence."""

    def __init__(
        self,
        message: str = "",
        *,
        code: int | None = None,
        retriable: bool | None = None,
        hint: str = "",
    ) -> None:
        self.code = int(self.error) if code is None else code
        self.retriable = self.default_retriable if retriable is None else retriable
        self.hint = hint or self.default_hint
        self.message = message or self.hint
        super().__init__(self.message)

    def __str__(self) -> str:
        hint = "" if self.hint == self.message else f" ({self.hint})"
        return f"{type(self).__name__} [{self.code}]: {self.message}{hint}"


class UnknownServerError(MusterError):
    """The coordinator failed in a way that it cannot name, or names with a number unknown here."""


class UnknownTopicOrPartition(MusterError):
    """No such topic, or no such partition of it."""

    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    default_hint = "create the topic first, or add partitions to it"
    default_retriable = True


class RequestTimedOut(MusterError):
    """No answer in time: the result is not known. A commit is safe to send again."""

    error = ErrorCode.REQUEST_TIMED_OUT
    default_hint = "the result is not known; the same call may be made again"
    default_retriable = True


class OffsetMetadataTooLarge(MusterError):
    """The metadata of a committed offset is longer than the cluster takes."""

    error = ErrorCode.OFFSET_METADATA_TOO_LARGE
    default_hint = "at most 4096 bytes of metadata per offset"


class CoordinatorLoadInProgress(MusterError):
    """The coordinator is new and has not applied its log yet."""

    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    default_hint = "try again in a moment"
    default_retriable = True


class CoordinatorNotAvailable(MusterError):
    """No node answered, or the group's shard has no leader."""

    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    default_hint = "check that a majority of the nodes runs and that the addresses are right"
    default_retriable = True


class NotCoordinator(MusterError):
    """The node asked does not lead the group's shard; mended by the SDK while there is time."""

    error = ErrorCode.NOT_COORDINATOR
    default_hint = "another node coordinates this group; try again"
    default_retriable = True


class InvalidTopic(MusterError):
    """The topic's name is empty, too long, or has characters that are not allowed."""

    error = ErrorCode.INVALID_TOPIC_EXCEPTION
    default_hint = "choose another topic name"


class IllegalGeneration(MusterError):
    """The generation is over: this work belongs to another member now."""

    error = ErrorCode.ILLEGAL_GENERATION
    default_hint = "stop working under this assignment and wait for the next one"


class InconsistentGroupProtocol(MusterError):
    """No assignor in common with the group's other members, or another protocol type."""

    error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    default_hint = "give all members at least one assignor in common"


class InvalidGroupId(MusterError):
    """The group id is empty or too long."""

    error = ErrorCode.INVALID_GROUP_ID
    default_hint = "a group id has 1 to 249 bytes of UTF-8"


class UnknownMemberId(MusterError):
    """The coordinator does not know this member: it left or its session ended."""

    error = ErrorCode.UNKNOWN_MEMBER_ID
    default_hint = "stop working under this assignment and wait for the next one"


class InvalidSessionTimeout(MusterError):
    """The session timeout is outside of what the cluster allows."""

    error = ErrorCode.INVALID_SESSION_TIMEOUT
    default_hint = "1 second to 30 minutes"


class RebalanceInProgress(MusterError):
    """The group is rebalancing: commit again under the next assignment."""

    error = ErrorCode.REBALANCE_IN_PROGRESS
    default_hint = "commit again under the next assignment, if it still holds the partition"
    default_retriable = True


class InvalidCommitOffsetSize(MusterError):
    """The group has offsets of as many partitions as a group may have."""

    error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    default_hint = "delete offsets that the group does not need, or use another group"


class TopicAuthorizationFailed(MusterError):
    """Not allowed on this topic."""

    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    default_hint = "ask for access to the topic"


class GroupAuthorizationFailed(MusterError):
    """Not allowed on this group, or not authenticated."""

    error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    default_hint = "ask for access to the group"


class ClusterAuthorizationFailed(MusterError):
    """Not allowed on the cluster."""

    error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    default_hint = "ask for access to the cluster"


class UnsupportedVersion(MusterError):
    """The cluster does not speak this call."""

    error = ErrorCode.UNSUPPORTED_VERSION
    default_hint = "upgrade the cluster or use an older client"


class TopicAlreadyExists(MusterError):
    """There is a topic of this name."""

    error = ErrorCode.TOPIC_ALREADY_EXISTS
    default_hint = "pass exist_ok=True where that is fine"


class InvalidPartitions(MusterError):
    """The number of partitions is not possible, or differs from that of the topic that exists."""

    error = ErrorCode.INVALID_PARTITIONS
    default_hint = "a topic's count only grows, by adding partitions"


class InvalidConfig(MusterError):
    """A setting is not possible."""

    error = ErrorCode.INVALID_CONFIG
    default_hint = "mend the setting that the message names"


class InvalidRequest(MusterError):
    """The request breaks a rule of the protocol or a limit."""

    error = ErrorCode.INVALID_REQUEST
    default_hint = "mend what the message names; the same call fails again"


class NonEmptyGroup(MusterError):
    """The group has members."""

    error = ErrorCode.NON_EMPTY_GROUP
    default_hint = "stop the group's members first"


class GroupIdNotFound(MusterError):
    """There is no such group."""

    error = ErrorCode.GROUP_ID_NOT_FOUND
    default_hint = "check the group id"


class MemberIdRequired(MusterError):
    """The coordinator wants a second Join with the id it gave; the SDK never meets this."""

    error = ErrorCode.MEMBER_ID_REQUIRED
    default_hint = "join again with the member id of the answer"
    default_retriable = True


class GroupMaxSizeReached(MusterError):
    """The group has as many members as the cluster allows."""

    error = ErrorCode.GROUP_MAX_SIZE_REACHED
    default_hint = "run fewer members, or split the group"


class FencedInstanceId(MusterError):
    """Another process took over this instance id."""

    error = ErrorCode.FENCED_INSTANCE_ID
    default_hint = "stop this process, or give it an instance id of its own"


class GroupSubscribedToTopic(MusterError):
    """The group still reads this topic."""

    error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    default_hint = "stop the members that subscribe to the topic first"


class UnstableOffsetCommit(MusterError):
    """A transaction is open over these offsets."""

    error = ErrorCode.UNSTABLE_OFFSET_COMMIT
    default_hint = "try again in a moment"
    default_retriable = True


class ThrottlingQuotaExceeded(MusterError):
    """Over a quota of the principal or the group, for longer than the call may take."""

    error = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    default_hint = "call less often, or have the quota raised: muster quota list"
    default_retriable = True


class OperationNotAttempted(MusterError):
    """Part of an atomic commit of which another part was refused or superseded."""

    error = ErrorCode.OPERATION_NOT_ATTEMPTED
    default_hint = "nothing of this commit is stored; see what was refused"


class PolicyViolation(MusterError):
    """The state would grow beyond a limit in bytes: of its group, its shard or the node."""

    error = ErrorCode.POLICY_VIOLATION
    default_hint = "delete what is not needed, or raise the limit that the message names"


class KafkaStorageError(MusterError):
    """The cluster's disks have too little room for what would grow the state."""

    error = ErrorCode.KAFKA_STORAGE_ERROR
    default_hint = "make room on the nodes' disks; then the same call succeeds"
    default_retriable = True


class InvalidUpdateVersion(MusterError):
    """Compare and set: another offset is stored than was expected."""

    error = ErrorCode.INVALID_UPDATE_VERSION
    default_hint = "read the committed offset, then decide anew"


class FencedMemberEpoch(MusterError):
    """The coordinator knows this member under another epoch; the SDK joins again by itself."""

    error = ErrorCode.FENCED_MEMBER_EPOCH
    default_hint = "stop working under this assignment and wait for the next one"


class UnreleasedInstanceId(MusterError):
    """Another process holds this instance id, and was heard of lately."""

    error = ErrorCode.UNRELEASED_INSTANCE_ID
    default_hint = "stop the other process, or wait until its session has ended"


class UnsupportedAssignor(MusterError):
    """The coordinator has no assignor of this name."""

    error = ErrorCode.UNSUPPORTED_ASSIGNOR
    default_hint = "uniform, range or weighted, or none for the group's choice"


class StaleMemberEpoch(IllegalGeneration):
    """The grant of this partition is over: this work belongs to another owner now."""

    error = ErrorCode.STALE_MEMBER_EPOCH


class InvalidRegularExpression(MusterError):
    """The pattern of a subscription is no regular expression as RE2 has them."""

    error = ErrorCode.INVALID_REGULAR_EXPRESSION
    default_hint = "mend the pattern: look-around and back-references are not possible"


class CallFailed(MusterError):
    """gRPC itself failed in a way that trying again does not mend; `grpc_code` names it."""

    default_hint = "check the address, TLS and the versions on both sides"

    def __init__(self, message: str, *, grpc_code: str) -> None:
        super().__init__(f"{grpc_code}: {message}")
        self.grpc_code = grpc_code


class TlsHandshakeFailed(MusterError):
    """No node can be connected to, because of TLS: the message says which and what is wrong.

    Raised before a first connection has stood; a client that was connected goes on trying.
    """

    default_hint = "compare Client(tls=...) with what the nodes show and demand"


class InvalidAssignment(MusterError):
    """An assignor of this process gave out a partition twice, never, or to a stranger."""

    error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    default_hint = "mend the assignor"


class GroupClosed(MusterError):
    """The group is closed: nothing more comes."""

    error = ErrorCode.UNKNOWN_MEMBER_ID
    default_hint = "make a new group with client.group()"


def _classes() -> list[type[MusterError]]:
    return [*MusterError.__subclasses__(), StaleMemberEpoch]


_BY_CODE: dict[int, type[MusterError]] = {
    int(cls.error): cls
    for cls in _classes()
    if cls not in (CallFailed, TlsHandshakeFailed, InvalidAssignment, GroupClosed)
}


def error_class(code: int) -> type[MusterError]:
    """The exception class of one of Kafka's numbers; UnknownServerError where there is none."""
    return _BY_CODE.get(code, UnknownServerError)


def error_from_status(status: StatusLike) -> MusterError:
    """The exception that a Status other than NONE stands for."""
    return error_class(status.code)(
        status.message, code=status.code, retriable=status.retriable or None
    )
