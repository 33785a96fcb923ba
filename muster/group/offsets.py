"""Committing and reading offsets: messages in and out."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from muster.errors import (
    ErrorCode,
    InvalidRequest,
    MusterError,
    OperationNotAttempted,
    UnknownTopicOrPartition,
    error_from_status,
)
from muster.net.calls import FETCH, Caller, raise_status
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
"""In one commit (arch-5)."""

NOTHING_STORED = -1
"""An expected offset on the wire."""

Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]
"""What to commit: the next offset to read, per partition."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which terms a commit is taken; by default each partition on its own."""

    atomic: bool = False
    expected: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    forward_only: bool = False
    blob: bytes | None = None
    awaits_topics: bool = True
    """Whether one that the coordinator does not know is looked for; else it is refused at once."""


NO_TOKENS: Mapping[TopicPartition, int] = MappingProxyType({})

PLAIN = Terms()
BUFFERED = Terms(awaits_topics=False)
"""Who waited for a topic that was deleted would hold up all other partitions."""


def commit_request(
    group_id: str,
    member_id: str,
    generation: int,
    commit_seq: int,
    offsets: Offsets,
    instance_id: str = "",
    terms: Terms = PLAIN,
    tokens: Mapping[TopicPartition, int] = NO_TOKENS,
) -> group_pb2.OffsetCommitRequest:
    """The request. The same arguments give the same bytes.

    `tokens` has one for each partition, in a group whose coordinator assigns; else it is empty.

    Raises:
        InvalidRequest: a negative offset, none at all, too many partitions, or an offset that is
            expected of a partition that is not committed.
    """
    if not 0 < len(offsets) <= PARTITIONS_MAX:
        raise InvalidRequest(f"a commit has 1 to {PARTITIONS_MAX} partitions, not {len(offsets)}")
    request = group_pb2.OffsetCommitRequest(
        group_id=group_id,
        member_id=member_id,
        generation=generation,
        commit_seq=commit_seq,
        group_instance_id=instance_id,
        atomic=terms.atomic or bool(terms.expected) or terms.blob is not None,
        forward_only=terms.forward_only,
        blob=terms.blob,
    )
    for key in terms.expected:
        if key not in offsets:
            raise InvalidRequest(f"{key}: an offset is expected and none is committed")
    for (topic, partition), given in sorted(offsets.items()):
        what = OffsetAndMetadata(given) if isinstance(given, int) else given
        if (lowest := min(what.offset, what.start_offset or 0)) < 0:
            raise InvalidRequest(f"{topic}-{partition}: offset {lowest} is negative")
        request.partitions.add(
            topic=topic,
            partition=partition,
            offset=what.offset,
            metadata=what.metadata,
            end_offset=what.end_offset,
            start_offset=what.start_offset,
            leader_epoch=what.leader_epoch,
            expected_offset=_expected(terms, TopicPartition(topic, partition)),
        )
        if tokens:
            request.fencing_tokens.append(tokens[TopicPartition(topic, partition)])
    return request


def _expected(terms: Terms, key: TopicPartition) -> int | None:
    """As the wire says it: -1 for nothing stored, None for no check."""
    if key not in terms.expected:
        return None
    offset = terms.expected[key]
    return NOTHING_STORED if offset is None else offset


def first_refusal(response: group_pb2.OffsetCommitResponse) -> errors_pb2.Status | None:
    """The status of the whole call if that is not NONE, else the first partition's that is not.

    Of an atomic commit the partition that was refused, not those that went with it.
    """
    statuses = [response.status, *(p.status for p in response.partitions)]
    refused = [s for s in statuses if int(s.code) != ErrorCode.NONE]
    return min(
        refused, key=lambda s: int(s.code) == ErrorCode.OPERATION_NOT_ATTEMPTED, default=None
    )


_LEAST_TELLING = {UnknownTopicOrPartition: 1, OperationNotAttempted: 2}
"""Refusals that are raised where there is no other: a deleted topic hides none."""


def partition_results(
    request: group_pb2.OffsetCommitRequest,
    response: group_pb2.OffsetCommitResponse,
    coordinator: Coordinator,
) -> CommitResult:
    """Return the result of each partition.

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
        _, first = min(refused, key=lambda one: _LEAST_TELLING.get(type(one[1]), 0))
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

    Many offsets come in several answers, each of them such a read; `timeout_ms` is for all.

    Raises:
        RequestTimedOut, CoordinatorNotAvailable: nobody could answer in time.
    """
    reading = _Reading(caller, group_id, timeout_ms)
    if partitions is None:
        await reading.read_all()
        return reading.committed()
    wanted = sorted(set(partitions))
    for start in range(0, max(1, len(wanted)), PARTITIONS_MAX):
        await reading.read_these(wanted[start : start + PARTITIONS_MAX])
    return reading.committed()


class _Reading:
    """One read, of as many answers as it takes."""

    def __init__(self, caller: Caller, group_id: str, timeout_ms: float) -> None:
        self._caller = caller
        self._group_id = group_id
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout_ms / 1000
        self._found: dict[TopicPartition, CommittedOffset | None] = {}
        self._read_at: list[tuple[int, int]] = []
        self._blob = b""

    def committed(self) -> Committed:
        """Return what was read. Its term and index are those of the earliest answer."""
        term, applied_index = min(self._read_at)
        return Committed(self._found, term, applied_index, self._blob)

    async def read_all(self) -> None:
        """Every offset of the group."""
        request = group_pb2.OffsetFetchRequest(group_id=self._group_id, all=True)
        while last := await self._read(request):
            request.after.topic, request.after.partition = last

    async def read_these(self, wanted: list[TopicPartition]) -> None:
        """These partitions, at most `PARTITIONS_MAX`, in order."""
        while True:
            request = group_pb2.OffsetFetchRequest(group_id=self._group_id)
            for topic, partition in wanted:
                request.partitions.add(topic=topic, partition=partition)
            more = await self._read(request)
            wanted = [key for key in wanted if key not in self._found]
            if more is None:
                break
        if wanted:  # no answer is not "nothing committed"
            raise MusterError(f"no answer for {wanted[0]} from the coordinator")

    async def _read(self, request: group_pb2.OffsetFetchRequest) -> TopicPartition | None:
        """Take one answer; its last partition where there is more to come."""
        response, coordinator = await self._caller.call(
            self._group_id,
            FETCH,
            request.SerializeToString(),
            timeout_ms=max(0.0, self._deadline - self._loop.time()) * 1000,
        )
        raise_status(response.status)
        if response.term > coordinator.term:
            # The same node leads in a later term than it was found in.
            later = replace(coordinator, term=response.term)
            self._caller.routes.learn(self._group_id, later)
        self._read_at.append((response.term, response.applied_index))
        self._blob = response.blob
        for one in response.partitions:
            self._found[TopicPartition(one.topic, one.partition)] = (
                None if one.offset < 0 else _committed_offset(one)
            )
        if not response.more:
            return None
        if not response.partitions:
            raise MusterError(f"{coordinator.endpoint} has more offsets and gives none")
        last = response.partitions[-1]
        return TopicPartition(last.topic, last.partition)


def _committed_offset(one: group_pb2.OffsetFetchResponse.Partition) -> CommittedOffset:
    return CommittedOffset(
        offset=one.offset,
        metadata=one.metadata,
        end_offset=one.end_offset if one.HasField("end_offset") else None,
        generation=one.generation,
        wall_ms=one.wall_ms,
        start_offset=one.start_offset if one.HasField("start_offset") else None,
        leader_epoch=one.leader_epoch if one.HasField("leader_epoch") else None,
    )
