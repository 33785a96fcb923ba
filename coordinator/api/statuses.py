"""Answers as the wire's Status: what happened, and what the caller should do next."""

from muster.v1.errors_pb2 import Coordinator, Status
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.runtime.answers import Loading, NotHere, ParkOver, Superseded
from musterd.coordinator.runtime.routing import Directory
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

ServerAnswer = Refused | NotHere | Loading | ParkOver | Superseded


class Statuses:
    """Makes Status messages; knows endpoints, so that NOT_COORDINATOR can name where to go."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

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

    def of(self, answer: ServerAnswer) -> Status:
        """The Status of an answer that is not a success."""
        match answer:
            case Refused():
                return self.error(answer.error, answer.message)
            case NotHere():
                return self.not_here(answer)
            case Loading():
                return self.loading()
            case ParkOver():
                return self.error(
                    Error.REBALANCE_IN_PROGRESS,
                    "The longest wait of one call is over: send the same request again.",
                )
            case Superseded():
                return self.error(
                    Error.REBALANCE_IN_PROGRESS, "A newer call of this member took over."
                )

    def loading(self) -> Status:
        """COORDINATOR_LOAD_IN_PROGRESS: held for as long as a call is held."""
        return self.error(
            Error.COORDINATOR_LOAD_IN_PROGRESS,
            "The group's new coordinator is still loading: repeat the request here.",
            LOADING_RETRY_MS,
        )

    def not_here(self, answer: NotHere) -> Status:
        """NOT_COORDINATOR, with the coordinator's endpoint where it is known."""
        endpoint = "" if answer.leader is None else self._directory.endpoint(answer.leader)
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
