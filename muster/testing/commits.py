"""Commits to a group of the test cluster, decided as a real node's machine does (gp-O7 to O9)."""

from collections.abc import Mapping
from dataclasses import dataclass

from muster.errors import ErrorCode
from muster.testing.statuses import status
from muster.types import CommittedOffset, TopicPartition
from muster.v1 import errors_pb2, group_pb2

Code = ErrorCode

BLOB_BYTES_MAX = 4_096
METADATA_BYTES_MAX = 4_096

_Wanted = group_pb2.OffsetCommitRequest.Partition
_Answer = group_pb2.OffsetCommitResponse.Partition


@dataclass(eq=False, slots=True)
class Stored:
    """A committed offset and which commit wrote it."""

    value: CommittedOffset
    member_id: str
    commit_seq: int


@dataclass(frozen=True, slots=True)
class _Blob:
    content: bytes = b""
    member_id: str = ""
    commit_seq: int = 0


class CommittedOffsets:
    """A group's offsets and its blob."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        self.offsets: dict[TopicPartition, Stored] = {}
        self._blob = _Blob()
        self._topics = topics

    @property
    def blob(self) -> bytes:
        """The blob that was committed with the offsets last; b"" = none."""
        return self._blob.content

    def commit(self, request: group_pb2.OffsetCommitRequest) -> group_pb2.OffsetCommitResponse:
        """Take a commit whose caller may commit; the answer."""
        wrong = _wrong(request)
        if wrong:
            return group_pb2.OffsetCommitResponse(status=status(Code.INVALID_REQUEST, wrong))
        written: dict[TopicPartition, Stored] = {}
        response = group_pb2.OffsetCommitResponse(
            partitions=[self._decide(request, one, written) for one in request.partitions]
        )
        late = self._is_blob_late(request)
        failed = [one for one in response.partitions if one.status.code or one.superseded]
        if request.atomic and (failed or late):
            for one in response.partitions:
                if not one.status.code and not one.superseded:
                    message = "the commit is atomic, and not all of it can be taken"
                    one.status.CopyFrom(status(Code.OPERATION_NOT_ATTEMPTED, message))
            return response
        self.offsets.update(written)
        # A retry finds each partition as it wrote it, and changes nothing.
        if request.HasField("blob") and written:
            self._blob = _Blob(request.blob, *_writer(request))
        return response

    def _decide(
        self,
        request: group_pb2.OffsetCommitRequest,
        one: _Wanted,
        written: dict[TopicPartition, Stored],
    ) -> _Answer:
        """One partition, after those before it: it is refused, superseded, or goes to `written`."""
        key = TopicPartition(one.topic, one.partition)
        answer = _Answer(topic=one.topic, partition=one.partition)
        refused = self._refusal(one)
        if refused is not None:
            answer.status.CopyFrom(refused)
            return answer
        member_id, commit_seq = _writer(request)
        kept = written.get(key) or self.offsets.get(key)
        now = -1 if kept is None else kept.value.offset
        if kept is not None and commit_seq and kept.member_id == member_id:
            if commit_seq < kept.commit_seq:
                answer.superseded = True
                return answer
            if commit_seq == kept.commit_seq:
                if one.offset != now:
                    message = "this commit_seq had another offset"
                    answer.status.CopyFrom(status(Code.INVALID_REQUEST, message))
                return answer
        if one.HasField("expected_offset") and one.expected_offset != now:
            answer.status.CopyFrom(status(Code.INVALID_UPDATE_VERSION, f"{now} is stored"))
        elif request.forward_only and one.offset < now:
            answer.superseded = True
        else:
            written[key] = Stored(_value(request, one), member_id, commit_seq)
        return answer

    def _refusal(self, one: _Wanted) -> errors_pb2.Status | None:
        """Why a partition cannot be committed, whatever is stored."""
        if one.partition >= self._topics.get(one.topic, 0):
            return status(Code.UNKNOWN_TOPIC_OR_PARTITION, "no such partition", retriable=True)
        if min(one.partition, one.offset, one.start_offset) < 0:
            return status(Code.INVALID_REQUEST, "a number is below 0")
        if len(one.metadata.encode()) > METADATA_BYTES_MAX:
            message = f"metadata is at most {METADATA_BYTES_MAX} bytes"
            return status(Code.OFFSET_METADATA_TOO_LARGE, message)
        return None

    def _is_blob_late(self, request: group_pb2.OffsetCommitRequest) -> bool:
        member_id, commit_seq = _writer(request)
        is_late = self._blob.member_id == member_id and commit_seq < self._blob.commit_seq
        return request.HasField("blob") and bool(commit_seq) and is_late


def _writer(request: group_pb2.OffsetCommitRequest) -> tuple[str, int]:
    """Member and number of the commit; one from outside the group is nobody's."""
    return ("", 0) if request.generation < 0 else (request.member_id, request.commit_seq)


def _wrong(request: group_pb2.OffsetCommitRequest) -> str:
    """Return what is wrong with the whole request; "" = nothing."""
    if request.HasField("blob"):
        if not request.atomic or not request.partitions:
            return "a blob goes with an atomic commit of at least one partition"
        if len(request.blob) > BLOB_BYTES_MAX:
            return f"a blob has at most {BLOB_BYTES_MAX} bytes; this one has {len(request.blob)}"
    keys = {(one.topic, one.partition) for one in request.partitions}
    if request.atomic and len(keys) < len(request.partitions):
        return "an atomic commit names each partition once"
    return ""


def _value(request: group_pb2.OffsetCommitRequest, one: _Wanted) -> CommittedOffset:
    has_epoch = one.HasField("leader_epoch") and one.leader_epoch >= 0
    return CommittedOffset(
        offset=one.offset,
        metadata=one.metadata,
        end_offset=one.end_offset if one.HasField("end_offset") else None,
        generation=request.generation,
        wall_ms=0,
        start_offset=one.start_offset if one.HasField("start_offset") else None,
        leader_epoch=one.leader_epoch if has_epoch else None,
    )
