"""The topic registry, and what a group's coordinator says of it."""

import asyncio
import contextlib
from collections.abc import Collection, Sequence

from muster import timeouts
from muster.admin.rebalances import KEPT, Rebalance, rebalances_of
from muster.admin.zones import zones_of, zones_text
from muster.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidPartitions,
    InvalidRequest,
    MusterError,
    RequestTimedOut,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
    error_from_status,
)
from muster.net.any_node_call import call_any, remove_any
from muster.net.calls import DESCRIBE_REBALANCES, Caller, raise_status
from muster.tasks import task_topics
from muster.types import Topic
from muster.v1 import admin_pb2, errors_pb2

PARTITIONS_PER_TOPIC_MAX = 2**31 - 1


def _topic(message: admin_pb2.Topic) -> Topic:
    created_ms, zones = message.created_wall_ms or None, zones_of(message.zones)
    return Topic(message.name, message.partitions, created_ms, zones)


async def create_topic(
    caller: Caller,
    name: str,
    partitions: int,
    *,
    zones: Sequence[Collection[str]] = (),
    exist_ok: bool,
    timeout_ms: float,
) -> Topic:
    response = await call_any(
        caller,
        "/muster.v1.Topics/CreateTopic",
        admin_pb2.CreateTopicResponse.FromString,
        lambda r: r.status,
        admin_pb2.CreateTopicRequest(
            name=name, partitions=_checked_count(partitions), zones=zones_text(zones)
        ),
        timeout_ms,
        is_sure=lambda r: exist_ok or r.created or int(r.status.code) != ErrorCode.NONE,
    )
    if exist_ok and int(response.status.code) == ErrorCode.INVALID_PARTITIONS:
        grown = await _grown(caller, name, partitions, timeout_ms)
        if grown is not None:
            return grown
    if exist_ok and int(response.status.code) == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        there = await _grown(caller, name, partitions - 1, timeout_ms)
        if there is not None:
            return there
    raise_status(response.status)
    if not response.created and not exist_ok:
        raise TopicAlreadyExists(
            f"topic {name!r} exists with {response.topic.partitions} partitions"
        )
    return _topic(response.topic)


async def _grown(caller: Caller, name: str, least: int, timeout_ms: float) -> Topic | None:
    """The topic where it has more partitions than so many.

    None where it has not, is gone, or the caller may not know of it.
    """
    try:
        found = await describe_topics(caller, [name], timeout_ms)
    except (UnknownTopicOrPartition, TopicAuthorizationFailed):
        return None
    return found[name] if found[name].partitions > least else None


async def list_topics(caller: Caller, timeout_ms: float) -> list[Topic]:
    response = await call_any(
        caller,
        "/muster.v1.Topics/ListTopics",
        admin_pb2.ListTopicsResponse.FromString,
        lambda r: r.status,
        admin_pb2.ListTopicsRequest(),
        timeout_ms,
    )
    raise_status(response.status)
    return sorted((_topic(t) for t in response.topics), key=lambda t: t.name)


async def describe_topics(
    caller: Caller, names: Collection[str], timeout_ms: float
) -> dict[str, Topic]:
    response = await _described(caller, names, timeout_ms)
    for result in response.results:
        raise_status(result.status)
    found = {result.name: _topic(result.topic) for result in response.results}
    missing = sorted(set(names) - found.keys())
    if missing:
        raise UnknownTopicOrPartition(f"no topic {missing[0]!r}")
    return found


async def topic_errors(
    caller: Caller, names: Collection[str], timeout_ms: float
) -> dict[str, MusterError | None]:
    """Return what is wrong with each of these topics, or None where it exists."""
    response = await _described(caller, names, timeout_ms)
    said = {result.name: result.status for result in response.results}
    unknown = errors_pb2.Status(code=errors_pb2.UNKNOWN_TOPIC_OR_PARTITION)
    return {
        name: None if int(status.code) == ErrorCode.NONE else error_from_status(status)
        for name, status in ((name, said.get(name, unknown)) for name in names)
    }


async def _described(
    caller: Caller, names: Collection[str], timeout_ms: float
) -> admin_pb2.DescribeTopicsResponse:
    response = await call_any(
        caller,
        "/muster.v1.Topics/DescribeTopics",
        admin_pb2.DescribeTopicsResponse.FromString,
        lambda r: r.status,
        admin_pb2.DescribeTopicsRequest(names=sorted(names)),
        timeout_ms,
    )
    raise_status(response.status)
    return response


async def add_partitions(caller: Caller, name: str, partitions: int, timeout_ms: float) -> Topic:
    response = await call_any(
        caller,
        "/muster.v1.Topics/AddPartitions",
        admin_pb2.AddPartitionsResponse.FromString,
        lambda r: r.status,
        admin_pb2.AddPartitionsRequest(name=name, partitions=_checked_count(partitions)),
        timeout_ms,
    )
    raise_status(response.status)
    return _topic(response.topic)


async def set_topic_zones(
    caller: Caller, name: str, zones: Sequence[Collection[str]], timeout_ms: float
) -> Topic:
    response = await call_any(
        caller,
        "/muster.v1.Topics/SetTopicZones",
        admin_pb2.SetTopicZonesResponse.FromString,
        lambda r: r.status,
        admin_pb2.SetTopicZonesRequest(name=name, zones=zones_text(zones)),
        timeout_ms,
    )
    raise_status(response.status)
    return _topic(response.topic)


async def delete_topic(caller: Caller, name: str, timeout_ms: float) -> None:
    if why := task_topics.why_kept(name):
        raise InvalidRequest(why, hint=task_topics.INSTEAD)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    (before,) = (await _described(caller, [name], timeout_ms)).results
    exists = int(before.status.code) == ErrorCode.NONE
    meant = before.topic.creation_version if exists else None  # who answered may be behind
    response, in_doubt = await remove_any(
        caller,
        "/muster.v1.Topics/DeleteTopic",
        admin_pb2.DeleteTopicResponse.FromString,
        lambda r: r.status,
        admin_pb2.DeleteTopicRequest(name=name, creation_version=meant),
        (deadline - loop.time()) * 1000,
    )
    unknown = int(response.status.code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not (unknown and in_doubt):
        raise_status(response.status)
    while True:
        left_ms = (deadline - loop.time()) * 1000
        if left_ms <= 0:
            raise RequestTimedOut(
                f"topic {name!r} is deleted, not yet all of its offsets: a shard has no leader",
                hint="they go once it has one; until then the name cannot be used again",
            )
        with contextlib.suppress(RequestTimedOut, CoordinatorNotAvailable):  # said above, better
            seen = await _described(caller, [name], left_ms)
            (result,) = seen.results
            told = not unknown or int(result.status.code) != ErrorCode.NONE
            told = told or result.topic.creation_version != meant
            behind = seen.topics_version < response.topics_version
            if told and not behind and not result.deleting:
                return
        await asyncio.sleep(min(timeouts.DELETION_POLL_MS, left_ms) / 1000)


async def rebalances(
    caller: Caller, group_id: str, most: int, timeout_ms: float
) -> list[Rebalance]:
    if not 0 < most <= KEPT:
        raise InvalidRequest(f"1 to {KEPT} rebalances are there to be asked for, not {most}")
    request = admin_pb2.DescribeRebalancesRequest(group_id=group_id, max_rebalances=most)
    answer, _ = await caller.call(
        group_id, DESCRIBE_REBALANCES, request.SerializeToString(), timeout_ms=timeout_ms
    )
    raise_status(answer.status)
    return rebalances_of(answer)


def _checked_count(partitions: int) -> int:
    if not 0 < partitions <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitions(f"{partitions} partitions are not possible; at least 1")
    return partitions
