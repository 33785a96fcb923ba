"""Committed offsets behind a scripted node: fetched, and set by the rules that a reset leans on."""

from muster.v1 import group_pb2
from muster.v1.errors_pb2 import ErrorCode, Status
from muster.v1.group_pb2 import OffsetCommitRequest, OffsetCommitResponse

Entry = group_pb2.OffsetFetchResponse.Partition


class OffsetStore:
    """Group id -> (topic, partition) -> what is committed. `commits` are the requests, in order."""

    def __init__(self, entries: dict[str, list[Entry]], topics: dict[str, int]) -> None:
        self.stored = {
            group_id: {(one.topic, one.partition): one for one in listed}
            for group_id, listed in entries.items()
        }
        self.topics = topics
        self.members: dict[str, int] = {}
        self.generations: dict[str, int] = {}
        self.commits: list[OffsetCommitRequest] = []

    def offsets(self, group_id: str) -> dict[tuple[str, int], int]:
        """The offsets alone."""
        return {key: one.offset for key, one in self.stored.get(group_id, {}).items()}

    def fetch(self, request):
        """OffsetFetch of all."""
        kept = self.stored.get(request.group_id, {})
        return group_pb2.OffsetFetchResponse(partitions=[kept[key] for key in sorted(kept)])

    def commit(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        """OffsetCommit from outside of the group, all or nothing."""
        self.commits.append(request)
        if self.members.get(request.group_id):
            return _refuse(ErrorCode.UNKNOWN_MEMBER_ID, "No member '' in this group; join again.")
        generation = self.generations.get(request.group_id, 0)
        if request.HasField("expected_generation") and request.expected_generation != generation:
            text = f"The group's generation is {generation}, not {request.expected_generation}."
            return _refuse(ErrorCode.ILLEGAL_GENERATION, text)
        kept = self.stored.setdefault(request.group_id, {})
        statuses = [self._check(kept, one) for one in request.partitions]
        refused = any(status.code for status in statuses)
        response = OffsetCommitResponse()
        for one, status in zip(request.partitions, statuses, strict=True):
            if refused and not status.code:
                status = Status(code=ErrorCode.OPERATION_NOT_ATTEMPTED, message="atomic")  # noqa: PLW2901
            response.partitions.add(topic=one.topic, partition=one.partition, status=status)
        if not refused:
            for one in request.partitions:
                entry = Entry(
                    topic=one.topic,
                    partition=one.partition,
                    offset=one.offset,
                    metadata=one.metadata,
                    generation=-1,
                )
                for name in ("start_offset", "end_offset"):
                    if one.HasField(name):
                        setattr(entry, name, getattr(one, name))
                kept[one.topic, one.partition] = entry
        return response

    def _check(self, kept: dict[tuple[str, int], Entry], one) -> Status:
        if one.partition >= self.topics.get(one.topic, 0):
            return Status(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message="no such partition")
        now = kept[one.topic, one.partition].offset if (one.topic, one.partition) in kept else -1
        if one.HasField("expected_offset") and one.expected_offset != now:
            text = f"Offset {now} is stored, not offset {one.expected_offset}."
            return Status(code=ErrorCode.INVALID_UPDATE_VERSION, message=text)
        return Status()


def _refuse(code: ErrorCode.ValueType, message: str) -> OffsetCommitResponse:
    return OffsetCommitResponse(status=Status(code=code, message=message))
