"""Answers of calls as a script (call_scripts.py) prints them: what callers act on, no sentences."""

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from tests.machine.text import put_value


def say(answer) -> list[str]:
    """One line, and one more for each part of an answer that has parts."""
    return list(_SAY[type(answer)](answer))


EVENT_FIELDS = (
    *("group_id", "member_id", "replaced_id", "group_instance_id", "cause", "trigger", "reason"),
    *("timer", "deadline_ms", "generation", "protocol_name", "leader_id", "member_ids"),
    *("assignments", "topic", "partition", "offset", "commit_seq", "ending"),
)
"""Of events: what a reader of a scenario follows; the machine's own scenarios show all of them."""


def say_event(event) -> str:
    """An event on one line."""
    values = {name: getattr(event, name, None) for name in EVENT_FIELDS}
    said = [
        f"{name}={put_value(value)}"
        for name, value in values.items()
        if value not in ("", (), None) and (name, value) != ("group_id", "g")
    ]
    return " ".join([type(event).__name__, *said])


def status(told) -> str:
    """The error's name and where to go."""
    said = ErrorCode.Name(told.code)
    if told.HasField("coordinator"):
        at = told.coordinator
        said += f" node={at.node_id} {at.endpoint} term={at.term}"
    return said + " retriable" * told.retriable


def _joined(answer):
    if answer.status.code:
        told = f"{status(answer.status)} member={answer.member_id or '-'}"
        yield told + f" generation={answer.generation}" + " park-again" * answer.park_again
        return
    members = " ".join(f"{m.member_id}{_at(m)}:{m.metadata.decode()}" for m in answer.members)
    counts = ",".join(f"{t}:{n}" for t, n in sorted(answer.partition_counts.items()))
    yield (
        f"joined generation={answer.generation} {answer.protocol_type}/{answer.protocol_name}"
        f" leader={answer.leader_id} me={answer.member_id} members=[{members}]"
        + f" counts={counts}" * bool(counts)
        + " skip" * answer.skip_assignment
    )


def _synced(answer):
    if answer.status.code:
        yield status(answer.status) + " park-again" * answer.park_again
        return
    kind = f"{answer.protocol_type}/{answer.protocol_name}"
    yield f"synced generation={answer.generation} {kind} {answer.assignment.decode()!r}"


def _beat(answer):
    if answer.superseded:
        yield "superseded"
        return
    yield "beat " + " ".join(
        f"{r.group_id}/{r.member_id}:{status(r.status)}" for r in answer.results
    )


def _left(answer):
    if answer.status.code:
        yield status(answer.status)
        return
    yield "left " + " ".join(
        f"{r.member_id or '-'}{_at(r)}:{ErrorCode.Name(r.status.code)}" for r in answer.results
    )


def _committed(answer):
    if answer.status.code:
        yield status(answer.status)
        return
    said = (
        f"{p.topic}/{p.partition}:{status(p.status)}" + ":superseded" * p.superseded
        for p in answer.partitions
    )
    yield " ".join(["committed", *said])


def _fetched(answer):
    if answer.status.code or not answer.groups:
        yield _offsets(answer)
    for group in answer.groups:
        yield f"{group.group_id or '-'}: {_offsets(group)}"


def _offsets(answer) -> str:
    if answer.status.code:
        return status(answer.status)
    said = (
        f"{p.topic}/{p.partition}={p.offset}" + f":{len(p.metadata)}" * bool(p.metadata)
        for p in answer.partitions
    )
    return " ".join(["fetched", *said])


def _found(answer):
    for one in answer.results:
        at = one.coordinator
        where = f"node={at.node_id} {at.endpoint} term={at.term}"
        found = where if one.HasField("coordinator") else status(one.status)
        yield f"{one.group_id or '-'}: {found}" + " pending" * one.pending


def _listed(answer):
    if answer.status.code:
        yield status(answer.status)
        return
    yield f"{len(answer.groups)} groups"
    for one in answer.groups:
        kind = one.protocol_type or "-"
        yield f"{one.group_id} {one.state} {kind} members={one.members} generation={one.generation}"


def _described(answer):
    for group in answer.groups:
        told = f"{group.group_id or '-'}: {status(group.status)}"
        if group.state:
            kind = f"{group.protocol_type or '-'}/{group.protocol_name or '-'}"
            told += f" {group.state} {kind} generation={group.generation}"
        yield told
        for m in group.members:
            yield (
                f"  {m.member_id}{_at(m)} metadata={m.metadata.decode()!r}"
                f" assignment={m.assignment.decode()!r}"
                + " joined" * m.joined
                + " synced" * m.synced
            )


def _deleted(answer):
    if answer.status.code:
        yield status(answer.status)
        return
    yield "deleted " + " ".join(f"{r.group_id or '-'}:{status(r.status)}" for r in answer.results)


def _offsets_deleted(answer):
    if answer.status.code:
        yield status(answer.status)
        return
    yield "deleted " + " ".join(
        f"{p.topic}/{p.partition}:{status(p.status)}" for p in answer.partitions
    )


def _topic(answer):
    yield status(answer.status)


def _at(one) -> str:
    return f"@{one.group_instance_id}" if one.group_instance_id else ""


_SAY = {
    pb.JoinGroupResponse: _joined,
    pb.SyncGroupResponse: _synced,
    pb.HeartbeatResponse: _beat,
    pb.LeaveGroupResponse: _left,
    pb.OffsetCommitResponse: _committed,
    pb.OffsetFetchResponse: _fetched,
    pb.FindCoordinatorResponse: _found,
    admin.ListGroupsResponse: _listed,
    admin.DescribeGroupsResponse: _described,
    admin.DeleteGroupsResponse: _deleted,
    admin.OffsetDeleteResponse: _offsets_deleted,
    admin.CreateTopicResponse: _topic,
}
