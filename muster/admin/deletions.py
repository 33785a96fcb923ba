"""Deletes groups and offsets."""

import asyncio
from collections.abc import Collection, Container

from muster.errors import ErrorCode, InvalidRequest, MusterError, error_from_status
from muster.group.offsets import PARTITIONS_MAX
from muster.net.calls import DELETE_GROUPS, OFFSET_DELETE, Caller, raise_status
from muster.types import TopicPartition
from muster.v1 import admin_pb2, errors_pb2

AT_ONCE_MAX = 64
"""Groups that are deleted beside each other."""


def names(what: str, given: Collection[str]) -> list[str]:
    """Each once. A text is a collection of its letters, which nobody means.

    Raises:
        InvalidRequest: it is a text.
    """
    if isinstance(given, str):
        raise InvalidRequest(f"{what}: give a list of names, not the text {given!r}")
    return list(dict.fromkeys(given))


def removal_error(
    status: errors_pb2.Status, gone: Container[int], *, repeated: bool
) -> MusterError | None:
    """Why something was not removed; None where it was, by an attempt without an answer, too."""
    code = int(status.code)
    if code == ErrorCode.NONE or (repeated and code in gone):
        return None
    return error_from_status(status)


async def delete_groups(
    caller: Caller, group_ids: Collection[str], timeout_ms: float
) -> dict[str, MusterError | None]:
    gate = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(group_id: str) -> MusterError | None:
        request = admin_pb2.DeleteGroupsRequest(group_ids=[group_id]).SerializeToString()
        async with gate:
            try:
                answer, _, repeated = await caller.call_once_or_more(
                    group_id, DELETE_GROUPS, request, timeout_ms=timeout_ms
                )
            except MusterError as error:
                return error
        status = answer.results[0].status if answer.results else answer.status
        return removal_error(status, {ErrorCode.GROUP_ID_NOT_FOUND}, repeated=repeated)

    wanted = names("group_ids", group_ids)
    return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))


async def delete_offsets(
    caller: Caller, group_id: str, partitions: Collection[TopicPartition], timeout_ms: float
) -> dict[TopicPartition, MusterError | None]:
    wanted = sorted(set(partitions))
    if not 0 < len(wanted) <= PARTITIONS_MAX:
        raise InvalidRequest(f"1 to {PARTITIONS_MAX} partitions in one call, not {len(wanted)}")
    request = admin_pb2.OffsetDeleteRequest(group_id=group_id)
    for topic, partition in wanted:
        request.partitions.add(topic=topic, partition=partition)
    answer, _ = await caller.call(
        group_id, OFFSET_DELETE, request.SerializeToString(), timeout_ms=timeout_ms
    )
    raise_status(answer.status)
    told = {TopicPartition(one.topic, one.partition): one.status for one in answer.partitions}
    found: dict[TopicPartition, MusterError | None] = {}
    for key in wanted:
        if key not in told:
            found[key] = MusterError(f"no answer for {key}")
        else:
            refused = int(told[key].code) != ErrorCode.NONE
            found[key] = error_from_status(told[key]) if refused else None
    return found
