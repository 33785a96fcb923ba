"""Writes a reset: commits that compare and set, all of a slice or nothing.

A retry must not look like a conflict: where an attempt got no answer and the next one is refused,
what is stored decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc

from muster.cli.connection import Connection, Stubs
from muster.cli.errors import CommandError, ExitCode
from muster.cli.group.offset_plan import Step
from muster.cli.group.owners import Partition
from muster.cli.group.read import committed
from muster.cli.refusals import refused
from muster.v1.errors_pb2 import ErrorCode, Status
from muster.v1.group_pb2 import OffsetCommitRequest, OffsetCommitResponse

SLICE_PARTITIONS = 1_000
"""The most that one commit takes, so the most that is reset together or not at all."""
SLICE_BYTES = 384 * 1024
"""Below the 512 KiB that one command may have (arch-5)."""
NUMBERS_BYTES = 80
"""More than a partition takes beside its two texts."""

_AGAIN = "run it again: it starts from what is stored then"
_STOP = (
    "stop its members first (`muster group members` names them): they go on from where they are, "
    "and would commit over it"
)
_CHANGED = {ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.ILLEGAL_GENERATION}


@dataclass(slots=True)
class Outcome:
    """The result of a reset for each partition; `failure` ended the rest."""

    words: dict[Partition, str]
    failure: CommandError | None = None


def in_use(group_id: str, members: int) -> CommandError:
    """The refusal of a group that has members."""
    error = refused(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id!r} has members ({members}).")
    return CommandError(error.message, next_step=_STOP, exit_code=error.exit_code)


def slices(steps: Sequence[Step]) -> list[list[Step]]:
    """Return the steps of one commit each: so many partitions, and so many bytes."""
    parts: list[list[Step]] = []
    size = 0
    for step in steps:
        one = len(step.topic.encode()) + len(step.metadata.encode()) + NUMBERS_BYTES
        if not parts or len(parts[-1]) == SLICE_PARTITIONS or size + one > SLICE_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(step)
        size += one
    return parts


def execute(to: Connection, group_id: str, generation: int, steps: Sequence[Step]) -> Outcome:
    """Write the slices in order, up to the first that fails.

    `generation` is the group's when its offsets were read: a round since then is a conflict, too.
    """
    outcome = Outcome({(step.topic, step.partition): "kept" for step in steps})
    done = 0
    for part in slices(steps):
        attempt = _Attempt(group_id, generation, part)
        word = "reset"
        try:
            to.ask_coordinator(group_id, attempt)
        except CommandError as error:
            word, outcome.failure = _judge(to, attempt, error)
        for step in part:
            same = word == "reset" and step.new == step.prior
            outcome.words[step.topic, step.partition] = "unchanged" if same else word
        if outcome.failure is not None:
            outcome.failure = _with_count(outcome.failure, done, len(steps))
            return outcome
        done += len(part)
    return outcome


class _SliceOutcome:
    """One outcome for a slice."""

    def __init__(self, status: Status) -> None:
        self.status = status


class _Attempt:
    """The commit of one slice, as often as it is tried."""

    def __init__(self, group_id: str, generation: int, steps: Sequence[Step]) -> None:
        self.group_id = group_id
        self.steps = steps
        self.unanswered = 0
        self.code: int = ErrorCode.NONE
        self._request = _request(group_id, generation, steps)

    def __call__(self, at: Stubs, timeout_s: float) -> _SliceOutcome:
        self.code = ErrorCode.NONE
        try:
            response = at.groups.OffsetCommit(self._request, timeout=timeout_s)
        except grpc.RpcError:
            self.unanswered += 1
            raise
        status = _status(response)
        self.code = status.code
        return _SliceOutcome(status)


def _request(group_id: str, generation: int, steps: Sequence[Step]) -> OffsetCommitRequest:
    request = OffsetCommitRequest(
        group_id=group_id, generation=-1, atomic=True, expected_generation=generation
    )
    for step in steps:
        request.partitions.add(
            topic=step.topic,
            partition=step.partition,
            offset=step.new,
            metadata=step.metadata,
            end_offset=step.end_offset,
            start_offset=step.start_offset,
            expected_offset=-1 if step.prior is None else step.prior,
        )
    return request


def _status(response: OffsetCommitResponse) -> Status:
    """The refusal that made the others OPERATION_NOT_ATTEMPTED, if any."""
    if response.status.code != ErrorCode.NONE:
        return response.status
    for one in response.partitions:
        if one.status.code not in {ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED}:
            status = Status()
            status.CopyFrom(one.status)
            status.message = f"{one.topic}/{one.partition}: {one.status.message}"
            return status
    return Status()


def _judge(
    to: Connection, attempt: _Attempt, error: CommandError
) -> tuple[str, CommandError | None]:
    """Return what a slice's failure means for its partitions."""
    if attempt.code == ErrorCode.UNKNOWN_MEMBER_ID:  # Kafka's refusal of a commit from outside
        message = f"NON_EMPTY_GROUP: Group {attempt.group_id!r} has members by now."
        error = CommandError(message, next_step=_STOP, exit_code=ExitCode.CONFLICT)
    elif attempt.code in _CHANGED:
        error = CommandError(error.message, next_step=_AGAIN, exit_code=error.exit_code)
    if not attempt.unanswered:
        return "kept", error
    if error.exit_code is ExitCode.CONFLICT and _stands(to, attempt):
        return "reset", None
    return "unknown", error


def _stands(to: Connection, attempt: _Attempt) -> bool:
    """Whether an attempt without an answer was carried out."""
    now = committed(to, attempt.group_id)
    keys: Mapping[Partition, int] = {(s.topic, s.partition): s.new for s in attempt.steps}
    return all(key in now and now[key].offset == new for key, new in keys.items())


def _with_count(error: CommandError, done: int, total: int) -> CommandError:
    if not done:
        return error
    return CommandError(
        f"{error.message} {done} of {total} partitions were reset before that, and stay so.",
        next_step=error.next_step,
        exit_code=error.exit_code,
    )
