"""Maps each of the server's errors to a command's exit code and a next step."""

from muster.cli.errors import CommandError, ExitCode
from muster.v1.errors_pb2 import ErrorCode

_NOT_FOUND = "check the name; `muster group list` and `muster topic list` show what there is"
_CONFLICT = (
    "look at the current state (`muster group describe`, `muster topic describe`), then decide"
)
_BAD_INPUT = "correct the argument; `muster COMMAND --help` shows what is accepted"
_NO_LEADER = "wait a moment and repeat; `muster cluster status` shows which shards have no leader"
DENIED = "ask who runs the cluster for it (`muster acl grant`), or use other credentials"
"""For who is known."""
UNKNOWN = "name a token in MUSTER_TOKEN_FILE, or a certificate's folder in MUSTER_TLS_DIR"
"""For who is nobody."""
_TIMED_OUT = "the outcome is not known; repeating is safe. --timeout gives it longer"
_REPEAT = "wait until the group's rebalance is over and repeat"
_FULL = "delete groups or offsets that are not needed, or raise the limit that is named"
_NO_SPACE = "make room on the nodes' disks (metric muster_disk_free_bytes) and repeat"
_REPORT = "this is a server error: look into the node's log"

BY_CODE: dict[int, tuple[ExitCode, str]] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: (ExitCode.ERROR, _REPORT),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (ExitCode.NOT_FOUND, _NOT_FOUND),
    ErrorCode.REQUEST_TIMED_OUT: (ExitCode.TIMED_OUT, _TIMED_OUT),
    ErrorCode.OFFSET_METADATA_TOO_LARGE: (ExitCode.USAGE, _BAD_INPUT),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: (ExitCode.UNREACHABLE, _NO_LEADER),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (ExitCode.UNREACHABLE, _NO_LEADER),
    ErrorCode.NOT_COORDINATOR: (ExitCode.UNREACHABLE, _NO_LEADER),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (ExitCode.USAGE, _BAD_INPUT),
    ErrorCode.ILLEGAL_GENERATION: (ExitCode.CONFLICT, _CONFLICT),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (ExitCode.CONFLICT, _CONFLICT),
    ErrorCode.INVALID_GROUP_ID: (ExitCode.USAGE, _BAD_INPUT),
    ErrorCode.UNKNOWN_MEMBER_ID: (ExitCode.NOT_FOUND, _NOT_FOUND),
    ErrorCode.INVALID_SESSION_TIMEOUT: (ExitCode.USAGE, _BAD_INPUT),
    ErrorCode.REBALANCE_IN_PROGRESS: (ExitCode.CONFLICT, _REPEAT),
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: (ExitCode.USAGE, _BAD_INPUT),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (ExitCode.NOT_PERMITTED, DENIED),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (ExitCode.NOT_PERMITTED, DENIED),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (ExitCode.NOT_PERMITTED, DENIED),
    ErrorCode.UNSUPPORTED_VERSION: (
        ExitCode.ERROR,
        "`muster cluster upgrade` shows levels; use the CLI of the server's version",
    ),
    ErrorCode.TOPIC_ALREADY_EXISTS: (ExitCode.CONFLICT, _CONFLICT),
    ErrorCode.INVALID_PARTITIONS: (ExitCode.CONFLICT, _CONFLICT),
    ErrorCode.INVALID_CONFIG: (ExitCode.USAGE, _BAD_INPUT),
    ErrorCode.INVALID_REQUEST: (ExitCode.USAGE, _BAD_INPUT),
    ErrorCode.POLICY_VIOLATION: (ExitCode.CONFLICT, _FULL),
    ErrorCode.OPERATION_NOT_ATTEMPTED: (ExitCode.CONFLICT, _CONFLICT),
    ErrorCode.KAFKA_STORAGE_ERROR: (ExitCode.CONFLICT, _NO_SPACE),
    ErrorCode.INVALID_UPDATE_VERSION: (ExitCode.CONFLICT, _CONFLICT),
    ErrorCode.NON_EMPTY_GROUP: (ExitCode.CONFLICT, _CONFLICT),
    ErrorCode.GROUP_ID_NOT_FOUND: (ExitCode.NOT_FOUND, _NOT_FOUND),
    ErrorCode.MEMBER_ID_REQUIRED: (ExitCode.CONFLICT, _CONFLICT),
    ErrorCode.GROUP_MAX_SIZE_REACHED: (ExitCode.CONFLICT, _CONFLICT),
    ErrorCode.FENCED_INSTANCE_ID: (ExitCode.CONFLICT, _CONFLICT),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (ExitCode.CONFLICT, _CONFLICT),
    ErrorCode.UNSTABLE_OFFSET_COMMIT: (ExitCode.CONFLICT, _CONFLICT),
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: (
        ExitCode.CONFLICT,
        "repeat later, or raise the quota: `muster quota list`",
    ),
    ErrorCode.FENCED_MEMBER_EPOCH: (ExitCode.CONFLICT, _CONFLICT),
    ErrorCode.UNRELEASED_INSTANCE_ID: (ExitCode.CONFLICT, _CONFLICT),
    ErrorCode.UNSUPPORTED_ASSIGNOR: (ExitCode.USAGE, _BAD_INPUT),
    ErrorCode.STALE_MEMBER_EPOCH: (ExitCode.CONFLICT, _CONFLICT),
    ErrorCode.INVALID_REGULAR_EXPRESSION: (ExitCode.USAGE, _BAD_INPUT),
}
"""Every error a server can answer (Kafka's numbers): how the command ends and what to do next."""


def refused(code: int, message: str) -> CommandError:
    """The error for a status that the server answered."""
    known = code in BY_CODE
    exit_code, next_step = BY_CODE.get(code, (ExitCode.ERROR, _REPORT))
    name = ErrorCode.Name(ErrorCode.ValueType(code)) if known else f"error {code}"
    return CommandError(
        f"{name}: {message}" if message else name, next_step=next_step, exit_code=exit_code
    )
