"""Answers as the wire's Status: what happened, and what the caller should do next."""

from collections.abc import Callable, Mapping

from muster.v1.errors_pb2 import Coordinator, Status
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import IdGiven, Refused
from musterd.coordinator.runtime.answers import (
    Answer,
    Loading,
    NotHere,
    ParkOver,
    Shed,
    Superseded,
    Throttled,
)
from musterd.coordinator.runtime.routing import Directory
from musterd.invariant import InvariantError
from musterd.raft.contract import NodeId

LOADING_RETRY_MS = 50
"""When a caller may try the same node again: its coordinator has not applied its no-op yet."""

HEARTBEAT_MESSAGES = {
    Error.NONE: "",
    Error.REBALANCE_IN_PROGRESS: "A new round of this group has opened: join it.",
    Error.UNKNOWN_MEMBER_ID: "This member is not in the group: join as a new one.",
    Error.FENCED_INSTANCE_ID: "Another process has joined with the instance id of this member.",
    Error.ILLEGAL_GENERATION: "The group is in another generation: join with the same member id.",
    Error.COORDINATOR_NOT_AVAILABLE: "The group was deleted: find its coordinator and join again.",
}

SAID: Mapping[type, tuple[Error, str, int]] = {
    Loading: (
        Error.COORDINATOR_LOAD_IN_PROGRESS,
        "The group's new coordinator is still loading: repeat the request here.",
        LOADING_RETRY_MS,
    ),
    ParkOver: (
        Error.REBALANCE_IN_PROGRESS,
        "The longest wait of one call is over: send the same request again.",
        0,
    ),
    Superseded: (Error.REBALANCE_IN_PROGRESS, "A newer call of this member took over.", 0),
    IdGiven: (Error.MEMBER_ID_REQUIRED, "Join again with the member id of this answer.", 0),
}


class Statuses:
    """Makes Status messages; knows endpoints, so that NOT_COORDINATOR can name where to go."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.hides: Callable[[NodeId], bool] = _never
        """Whether callers are not told that a node leads: they stay at one that forwards."""

    def coordinator(self, leader: NodeId, term: int) -> Coordinator:
        """A coordinator as clients see it: node, endpoint ("" where not known yet), term."""
        return Coordinator(node_id=leader, endpoint=self._directory.endpoint(leader), term=term)

    def error(self, error: Error, message: str, retry_after_ms: int = 0) -> Status:
        """A failure with Kafka's name and number."""
        return Status(
            code=int(error),  # type: ignore[arg-type]
            message=message,
            retriable=error.retriable,
            retry_after_ms=retry_after_ms,
        )

    def of(self, answer: Answer) -> Status:
        """The Status of an answer that is not a success; a success here is a bug."""
        match answer:
            case Refused():
                return self.error(answer.error, answer.message)
            case NotHere():
                return self._not_here(answer)
            case Loading() | ParkOver() | Superseded() | IdGiven():
                return self.error(*SAID[type(answer)])
            case Throttled():
                return self.error(
                    Error.THROTTLING_QUOTA_EXCEEDED,
                    f"Over the quota; nothing was done: repeat after {answer.delay_ms} ms.",
                    answer.delay_ms,
                )
            case Shed():
                return self.error(
                    Error.COORDINATOR_NOT_AVAILABLE,
                    f"{answer.what}: the limit is reached, nothing was done; repeat later.",
                )
            case _:
                raise InvariantError(f"{type(answer).__name__} answers another request")

    def _not_here(self, answer: NotHere) -> Status:
        is_told = answer.leader is not None and not self.hides(answer.leader)
        endpoint = (
            self._directory.endpoint(answer.leader) if is_told and answer.leader is not None else ""
        )
        where = f"ask {endpoint}" if endpoint else "ask FindCoordinator"
        status = self.error(
            Error.NOT_COORDINATOR, f"This node does not coordinate the group: {where}."
        )
        if answer.leader is not None and endpoint:
            status.coordinator.CopyFrom(self.coordinator(answer.leader, answer.term))
        return status

    def heartbeat(self, status: Error | NotHere | Loading) -> Status:
        """The Status of one member of a heartbeat."""
        if isinstance(status, Error):
            return self.error(status, HEARTBEAT_MESSAGES.get(status, status.name))
        return self.of(status)


def _never(_node: NodeId) -> bool:
    return False
