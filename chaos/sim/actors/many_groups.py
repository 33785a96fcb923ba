"""A read of several groups in one call: a form that no client of the SDK uses.

It goes to the first group's coordinator, and a refusal of that group is handled as the SDK handles
one of a whole call: so it costs the messages of a read of that group alone, whoever leads.
"""

from collections.abc import Collection, Sequence

from muster.errors import ErrorCode
from muster.net.calls import FETCH, Caller, Method, raise_status
from muster.types import Coordinator, TopicPartition
from muster.v1 import errors_pb2, group_pb2


def _status(response: group_pb2.OffsetFetchResponse) -> errors_pb2.Status:
    return response.groups[0].status if response.groups else response.status


_FETCH = Method(FETCH.path, FETCH.parse, _status)


async def read(
    caller: Caller, groups: Sequence[str], keys: Collection[TopicPartition], timeout_ms: float
) -> dict[str, dict[TopicPartition, int | None]]:
    """The groups' offsets, None for none; without those of a later group that was refused.

    Raises:
        RequestTimedOut, CoordinatorNotAvailable: nobody could answer in time.
        MusterError: the first group was refused.
    """
    request = group_pb2.OffsetFetchRequest()
    for group_id in groups:
        query = request.groups.add(group_id=group_id)
        for key in keys:
            query.partitions.add(topic=key.topic, partition=key.partition)
    response, coordinator = await caller.call(
        groups[0], _FETCH, request.SerializeToString(), timeout_ms=timeout_ms
    )
    raise_status(_status(response))
    first = response.groups[0]
    if first.term > coordinator.term:
        later = Coordinator(coordinator.node_id, coordinator.endpoint, first.term)
        caller.routes.learn(groups[0], later)
    return {
        one.group_id: {
            TopicPartition(p.topic, p.partition): None if p.offset < 0 else p.offset
            for p in one.partitions
        }
        for one in response.groups
        if int(one.status.code) == ErrorCode.NONE
    }
