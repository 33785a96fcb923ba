"""Calls that any node takes (the topic registry), and what a group's coordinator says of it."""

import asyncio
import random
from collections.abc import Callable, Collection
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from muster import backoff, timeouts
from muster.calls import DESCRIBE_REBALANCES, Caller, raise_status, rpc_failure
from muster.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidPartitions,
    InvalidRequest,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from muster.nodes import Answers
from muster.rebalances import KEPT, Rebalance, rebalances_of
from muster.types import Topic
from muster.v1 import admin_pb2, errors_pb2

R = TypeVar("R", bound=Message)

PARTITIONS_PER_TOPIC_MAX = 2**31 - 1

_TRY_AGAIN = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_TRY_AGAIN_RPC = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
    }
)


async def call_any(
    caller: Caller,
    name: str,
    parse: Answers[R],
    status: Callable[[R], errors_pb2.Status],
    request: Message,
    timeout_ms: float,
) -> R:
    """Ask one node after the other, and whomever they name, until one answers for good.

    Raises:
        CoordinatorNotAvailable: the time is up, nobody answered.
        RequestTimedOut: the time is up, and a change may have been made.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    caller.counters.calls += 1
    endpoint, failures, last, sent = "", 0, "", False
    while (now := loop.time()) < deadline:
        order = caller.nodes.order()
        endpoint = endpoint or order[failures % len(order)]
        left_ms = min(timeouts.ADMIN_ATTEMPT_MS, (deadline - now) * 1000)
        caller.counters.attempts += 1
        hint = ""
        call = caller.nodes.unary(endpoint, name, parse, request.SerializeToString(), left_ms)
        try:
            response = await call
        except grpc.aio.AioRpcError as error:
            if error.code() not in _TRY_AGAIN_RPC or "larger than max" in (error.details() or ""):
                raise rpc_failure(error) from error
            sent = sent or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            last = f"{endpoint}: {error.code().name} {error.details()}"
        else:
            answer = status(response)
            if int(answer.code) not in _TRY_AGAIN:
                return response
            hint = answer.coordinator.endpoint if answer.coordinator.endpoint != endpoint else ""
            last = f"{endpoint}: {answer.message or errors_pb2.ErrorCode.Name(answer.code)}"
        finally:
            if not call.done():
                call.cancel()
        failures += 1
        if not hint or failures > len(order):
            await asyncio.sleep(backoff.CALL.delay_ms(failures, random.random) / 1000)
        endpoint = hint
    raise (RequestTimedOut if sent else CoordinatorNotAvailable)(f"no answer in time; {last}")


def _topic(message: admin_pb2.Topic) -> Topic:
    return Topic(message.name, message.partitions)


async def create_topic(
    caller: Caller, name: str, partitions: int, *, exist_ok: bool, timeout_ms: float
) -> Topic:
    """See `Client.create_topic`."""
    response = await call_any(
        caller,
        "/muster.v1.Topics/CreateTopic",
        admin_pb2.CreateTopicResponse.FromString,
        lambda r: r.status,
        admin_pb2.CreateTopicRequest(name=name, partitions=_checked_count(partitions)),
        timeout_ms,
    )
    raise_status(response.status)
    if not response.created and not exist_ok:
        raise TopicAlreadyExists(
            f"topic {name!r} exists with {response.topic.partitions} partitions"
        )
    return _topic(response.topic)


async def list_topics(caller: Caller, timeout_ms: float) -> list[Topic]:
    """See `Client.topics`."""
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
    """See `Client.describe_topics`."""
    response = await call_any(
        caller,
        "/muster.v1.Topics/DescribeTopics",
        admin_pb2.DescribeTopicsResponse.FromString,
        lambda r: r.status,
        admin_pb2.DescribeTopicsRequest(names=sorted(names)),
        timeout_ms,
    )
    raise_status(response.status)
    for result in response.results:
        raise_status(result.status)
    found = {result.name: _topic(result.topic) for result in response.results}
    missing = sorted(set(names) - found.keys())
    if missing:
        raise UnknownTopicOrPartition(f"no topic {missing[0]!r}")
    return found


async def add_partitions(caller: Caller, name: str, partitions: int, timeout_ms: float) -> Topic:
    """See `Client.add_partitions`."""
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


async def rebalances(
    caller: Caller, group_id: str, most: int, timeout_ms: float
) -> list[Rebalance]:
    """See `Client.rebalances`."""
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
