"""Groups at their limits, over real gRPC: they form, and the group leader's vector is taken."""

import asyncio
from contextlib import AsyncExitStack
from itertools import cycle

import grpc.aio
import pytest

from muster.v1 import group_pb2 as pb
from muster.v1 import group_pb2_grpc
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.api.frame.bounds import COMMAND_MARGIN_BYTES
from musterd.coordinator.api.rpcs import translate
from musterd.coordinator.api.server import STREAMS_PER_CONNECTION_MAX
from musterd.coordinator.machine.commands import CreateTopic
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.state import MEMBER_OVERHEAD_BYTES, TOPIC_OVERHEAD_BYTES, Phase
from musterd.raft.contract import ENTRY_BYTES_MAX
from tests.coordinator.api.test_group_service import joining
from tests.coordinator.fakes import nonce
from tests.coordinator.local import local_node, until
from tests.limits.rows import limit
from tests.limits.test_wire import run

COUNT = LIMITS.group_max_members
TOPICS = [f"{number:05}" for number in range(9_900)]
NONCE = len("-") + len(nonce(""))
OFFERED_BYTES = 1_024
"""No command that a test offers to the log takes more."""
GENERATION_BYTES = 2_048
"""What a Join's answer takes for its generation: less than five ids and a number."""


def member(number, id_bytes, **more):
    """A Join under an id of so many bytes."""
    name = f"{number:04}"
    fields = {
        "join_nonce": nonce(name),
        "session_timeout_ms": 60_000,
        "protocols": [pb.JoinGroupRequest.Protocol(name="r")],
        "subscribed_topics": [],
    }
    return joining(name.ljust(id_bytes - NONCE, "c"), **(fields | more))


# ---- the group leader's answer


def test_an_answer_is_no_longer_than_its_group_weighs():
    """By arithmetic: ids, metadata and topics, and what protobuf adds at most, are in the weight.

    What is left, of the generation, fits between the weight and the message.
    """
    longest = "i" * LIMITS.id_max_bytes
    metadata = b"m" * LIMITS.member_metadata_max_bytes
    one = pb.JoinGroupResponse.Member(
        member_id=longest, group_instance_id=longest, metadata=metadata
    )
    texts = 2 * len(longest) + len(metadata)
    assert pb.JoinGroupResponse(members=[one]).ByteSize() <= texts + MEMBER_OVERHEAD_BYTES
    topic = pb.JoinGroupResponse(partition_counts={longest: LIMITS.topic_max_partitions})
    assert topic.ByteSize() <= len(longest) + TOPIC_OVERHEAD_BYTES
    # the protocol's name is in the weight of whoever lists it
    generation = pb.JoinGroupResponse(
        generation=2**63 - 1,
        protocol_type=longest,
        leader_id=longest,
        member_id=longest,
        skip_assignment=True,
    )
    name = pb.JoinGroupResponse(protocol_name=metadata.decode()).ByteSize() - len(metadata)
    assert generation.ByteSize() + name <= GENERATION_BYTES
    most = LIMITS.group_metadata_max_bytes + GENERATION_BYTES
    assert most <= LIMITS.client_message_max_bytes


async def with_topics(node):
    """The registry knows TOPICS, of the most partitions."""
    registry = node.shards[0]
    for name in TOPICS:
        command = CreateTopic(name, LIMITS.topic_max_partitions)
        while registry.leadership.proposer.offer(command, OFFERED_BYTES) is not None:
            await asyncio.sleep(0)  # the queue is full: a turn takes what waits
    await until(lambda: len(registry.state.topics) == len(TOPICS))


async def gathered(node, requests):
    """All have joined, by as many connections as they need; the group leader's answer."""
    at = f"127.0.0.1:{node.port}"
    own = ("grpc.use_local_subchannel_pool", 1)
    async with AsyncExitStack() as stack:
        stubs = []
        for _ in range(0, len(requests), STREAMS_PER_CONNECTION_MAX):
            size = ("grpc.max_receive_message_length", LIMITS.client_message_max_bytes)
            channel = grpc.aio.insecure_channel(at, options=[own, size])
            await stack.enter_async_context(channel)
            stubs.append(group_pb2_grpc.GroupCoordinatorStub(channel))
        joins = [stub.JoinGroup(one) for stub, one in zip(cycle(stubs), requests)]
        answers = await asyncio.gather(*joins)
    assert {answer.generation for answer in answers} == {1}
    (leader,) = (answer for answer in answers if answer.members)
    assert len(leader.members) == len(requests)
    return leader


@pytest.mark.parametrize("topics", [[], TOPICS], ids=["no topics", "one names 9,900 topics"])
def test_the_largest_group_fits_an_answer(topics):
    """All members, with the longest ids, and as much metadata as the group may have.

    The group leader's Join names them all, and gRPC carries it (client_message_max_bytes).
    """
    ids = 2 * LIMITS.id_max_bytes + MEMBER_OVERHEAD_BYTES
    named = sum(len(topic) + TOPIC_OVERHEAD_BYTES for topic in topics)
    room = LIMITS.group_metadata_max_bytes - COUNT * (ids + len("r")) - named
    sizes = [room // COUNT + (number < room % COUNT) for number in range(COUNT)]

    def longest(number):
        protocol = pb.JoinGroupRequest.Protocol(name="r", metadata=b"m" * sizes[number])
        return member(
            number,
            LIMITS.id_max_bytes,
            group_instance_id=f"{number:04}".ljust(LIMITS.id_max_bytes, "i"),
            protocols=[protocol],
            subscribed_topics=topics if number == 7 else [],
        )

    async def test():
        async with local_node(active_calls=COUNT) as node:
            await with_topics(node)
            leader = await gathered(node, [longest(number) for number in range(COUNT)])
            assert {len(m.member_id) for m in leader.members} == {LIMITS.id_max_bytes}
            assert len(leader.partition_counts) == len(topics)
            tally = node.core.shard_for("g").state.groups["g"].tally
            weight = tally.metadata_bytes + tally.naming_bytes
            assert weight == LIMITS.group_metadata_max_bytes
            assert 0.95 * weight < leader.ByteSize() <= weight + GENERATION_BYTES

    run(test())


def test_who_says_too_much_has_no_seat():
    """gp-J6: the answer has no member id, the group no such member, and its round goes on."""
    most = LIMITS.member_metadata_max_bytes - 1
    full = LIMITS.group_metadata_max_bytes // LIMITS.member_metadata_max_bytes

    def saying(number, size, **more):
        protocol = pb.JoinGroupRequest.Protocol(name="r", metadata=b"m" * size)
        return member(number, 64, protocols=[protocol], **more)

    async def test():
        async with local_node() as node:
            requests = [saying(number, most if number else 1) for number in range(full)]
            leader = await gathered(node, requests)
            (small,) = (m.member_id for m in leader.members if m.metadata == b"m")
            refused = await node.groups.JoinGroup(saying(0, most, member_id=small, join_nonce=""))
            assert refused.status.code == ErrorCode.GROUP_MAX_SIZE_REACHED
            assert refused.member_id == ""
            group = node.core.shard_for("g").state.groups["g"]
            assert small not in group.members
            back = [
                saying(number, most, member_id=own, join_nonce="")
                for number, own in enumerate(sorted(group.members), start=1)
            ]
            answers = await asyncio.gather(*map(node.groups.JoinGroup, back))
            assert {answer.generation for answer in answers} == {2}
            assert len(group.members) == full - 1

    run(test())


# ---- its vector


async def formed(node, id_bytes):
    """A group of COUNT members with ids of so many bytes, by its log; the group, as applied."""
    shard = node.core.shard_for("g")
    for number in range(COUNT):
        command = translate.join(member(number, id_bytes), "127.0.0.1", "")
        assert shard.leadership.proposer.offer(command, OFFERED_BYTES) is None
    await until(lambda: "g" in shard.state.groups and shard.state.groups["g"].generation == 1)
    group = shard.state.groups["g"]
    assert {len(member_id) for member_id in group.members} == {id_bytes}
    assert len(group.members) == COUNT
    return group


def vector(group, sizes):
    """The group leader's Sync, with assignments of these sizes."""
    return pb.SyncGroupRequest(
        group_id="g",
        member_id=group.leader_id,
        generation=group.generation,
        assignments=[
            pb.SyncGroupRequest.Assignment(member_id=member_id, assignment=b"a" * size)
            for member_id, size in zip(group.members, sizes, strict=True)
        ],
    )


async def hold_against(node, group, request, step, says):
    """Taken up to the limit; over it refused, and a smaller one is taken."""
    answer = await node.groups.SyncGroup(request)
    if step > 0:
        assert answer.status.code == ErrorCode.INVALID_REQUEST
        assert says in answer.status.message
        assert group.phase is Phase.COMPLETING_REBALANCE
        last = request.assignments[-1]
        last.assignment = last.assignment[:-step]
        answer = await node.groups.SyncGroup(request)
    assert answer.status.code == ErrorCode.NONE
    kept = {m.member_id: m.assignment for m in group.members.values()}
    assert kept == {a.member_id: a.assignment for a in request.assignments}
    entries = [entry for log in node.logs for entry in log.entries]
    assert max(map(len, entries)) < ENTRY_BYTES_MAX


@limit("assignments_max_bytes")
def test_assignments_of_the_largest_group(step):
    """2,000 members with ids of 64 bytes: the sum that is stated can be had."""
    size, rest = divmod(LIMITS.assignments_max_bytes, COUNT)
    sizes = [size] * (COUNT - 1) + [size + rest + step]

    async def test():
        async with local_node() as node:
            group = await formed(node, 64)
            says = f"An assignment vector is at most {LIMITS.assignments_max_bytes} bytes"
            await hold_against(node, group, vector(group, sizes), step, says)

    run(test())


@limit("sync_max_bytes")
def test_bytes_of_a_sync_in_the_log(step):
    """2,000 members with the longest ids: small assignments fit beside them."""
    most = LIMITS.sync_max_bytes - COMMAND_MARGIN_BYTES + step

    async def test():
        async with local_node() as node:
            group = await formed(node, LIMITS.id_max_bytes)
            request = vector(group, [80] * COUNT)
            last = request.assignments[-1]
            while request.ByteSize() != most:
                grown = len(last.assignment) + most - request.ByteSize()
                last.assignment = b"a" * grown
            assert len(last.assignment) <= LIMITS.member_assignment_max_bytes
            says = f"in the log; at most {LIMITS.sync_max_bytes} are taken"
            await hold_against(node, group, request, step, says)

    run(test())
