"""Committing and reading offsets: messages in and out."""

from collections.abc import Collection, Mapping

from muster.calls import FETCH, Caller, raise_status
from muster.errors import ErrorCode, InvalidRequest, MusterError, error_from_status
from muster.types import (
    CommitResult,
    Committed,
    CommittedOffset,
    Coordinator,
    OffsetAndMetadata,
    TopicPartition,
)
from muster.v1 import errors_pb2, group_pb2

PARTITIONS_MAX = 1000
"""In one commit (architecture.md 5)."""

Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]
"""What to commit: the next offset to read, per partition."""


def commit_request(
    group_id: str, member_id: str, generation: int, commit_seq: int, offsets: Offsets
) -> group_pb2.OffsetCommitRequest:
    """The request. The same arguments give the same bytes.

    Raises:
        InvalidRequest: a negative offset, none at all, or too many partitions.
    """
    if not 0 < len(offsets) <= PARTITIONS_MAX:
        raise InvalidRequest(f"a commit has 1 to {PARTITIONS_MAX} partitions, not {len(offsets)}")
    request = group_pb2.OffsetCommitRequest(
        group_id=group_id, member_id=member_id, generation=generation, commit_seq=commit_seq
    )
    for (topic, partition), given in sorted(offsets.items()):
        what = OffsetAndMetadata(given) if isinstance(given, int) else given
        if what.offset < 0:
            raise InvalidRequest(f"{topic}-{partition}: offset {what.offset} is negative")
        request.partitions.add(
            topic=topic,
            partition=partition,
            offset=what.offset,
            metadata=what.metadata,
            end_offset=what.end_offset,
        )
    return request


def first_refusal(response: group_pb2.OffsetCommitResponse) -> errors_pb2.Status | None:
    """The status of the whole call if that is not NONE, else the first partition's that is not."""
    statuses = [response.status, *(p.status for p in response.partitions)]
    return next((s for s in statuses if int(s.code) != ErrorCode.NONE), None)


def partition_results(
    request: group_pb2.OffsetCommitRequest,
    response: group_pb2.OffsetCommitResponse,
    coordinator: Coordinator,
) -> CommitResult:
    """What became of each partition.

    Raises:
        MusterError: the call, or at least one partition, was refused. The message names the
            partitions; the others of the same commit are committed.
    """
    raise_status(response.status)
    by_partition = {TopicPartition(p.topic, p.partition): p for p in response.partitions}
    acknowledged: dict[TopicPartition, int] = {}
    superseded: dict[TopicPartition, int] = {}
    refused: list[tuple[TopicPartition, MusterError]] = []
    for asked in request.partitions:
        key = TopicPartition(asked.topic, asked.partition)
        answer = by_partition.get(key)
        if answer is None:
            refused.append((key, MusterError(f"no answer for {key}")))
        elif int(answer.status.code) != ErrorCode.NONE:
            refused.append((key, error_from_status(answer.status)))
        elif answer.superseded:
            superseded[key] = asked.offset
        else:
            acknowledged[key] = asked.offset
    if refused:
        _, first = refused[0]
        names = ", ".join(str(key) for key, _ in refused[:10])
        raise type(first)(
            f"{first.message} (refused: {names}; committed: {len(acknowledged)} of "
            f"{len(request.partitions)} partitions)",
            code=first.code,
            retriable=first.retriable,
        )
    return CommitResult(acknowledged, superseded, request.commit_seq, coordinator.term)


async def fetch(
    caller: Caller,
    group_id: str,
    partitions: Collection[TopicPartition] | None,
    timeout_ms: float,
) -> Committed:
    """Read offsets linearizably: every commit acknowledged before this call is seen.

    Raises:
        RequestTimedOut, CoordinatorNotAvailable: nobody could answer in time.
    """
    request = group_pb2.OffsetFetchRequest(group_id=group_id, all=partitions is None)
    for topic, partition in sorted(partitions or ()):
        request.partitions.add(topic=topic, partition=partition)
    response, coordinator = await caller.call(
        group_id, FETCH, request.SerializeToString(), timeout_ms=timeout_ms
    )
    raise_status(response.status)
    if response.term > coordinator.term:
        # The same node leads in a later term than it was found in.
        later = Coordinator(coordinator.node_id, coordinator.endpoint, response.term)
        caller.routes.learn(group_id, later)
    found: dict[TopicPartition, CommittedOffset | None] = dict.fromkeys(partitions or ())
    for one in response.partitions:
        found[TopicPartition(one.topic, one.partition)] = (
            None if one.offset < 0 else _committed_offset(one)
        )
    return Committed(found, response.term, response.applied_index)


def _committed_offset(one: group_pb2.OffsetFetchResponse.Partition) -> CommittedOffset:
    return CommittedOffset(
        offset=one.offset,
        metadata=one.metadata,
        end_offset=one.end_offset if one.HasField("end_offset") else None,
        generation=one.generation,
        wall_ms=one.wall_ms,
    )
