"""Bad requests of which it takes a crowd: one more than a group has room for."""

from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

from muster.v1 import admin_pb2, errors_pb2
from muster.v1 import group_pb2 as pb
from musterd.coordinator.machine.limits import LIMITS
from tests.bad_input.registry import case
from tests.bad_input.requests import fresh, refused
from tests.bad_input.world import PARKED_S, World, patiently, wait_for

THREADS = 16
CROWDS_MAX = 10
MOVED = (
    errors_pb2.NOT_COORDINATOR,
    errors_pb2.COORDINATOR_NOT_AVAILABLE,
    errors_pb2.COORDINATOR_LOAD_IN_PROGRESS,
)
"""On a busy machine the group's shard may change its leader meanwhile."""


GROUP_BYTES_MAX = 16 << 20
"""Of the state of one group, in these tests: the default takes long to fill."""


@case("group_at_its_limit")
def group_at_its_limit(world: World):
    """Offsets with as much metadata as there may be, until there is no room for more."""
    group, topic, each = fresh("large"), fresh("large"), 100
    made = admin_pb2.CreateTopicRequest(name=topic, partitions=LIMITS.topic_max_partitions)
    assert world.anywhere(lambda n: world.topics(n).CreateTopic(made)).status.code == 0
    metadata = "x" * LIMITS.offset_metadata_max_bytes
    one = pb.OffsetCommitRequest(group_id=group, generation=-1)
    one.partitions.add(topic=topic, partition=0, offset=1)
    wait_for(
        lambda: world.call("OffsetCommit", one).partitions[0].status.code == 0,
        "the group's coordinator knows the topic",
    )
    for first in range(0, GROUP_BYTES_MAX // len(metadata) + each, each):
        request = pb.OffsetCommitRequest(group_id=group, generation=-1)
        for partition in range(first, first + each):
            request.partitions.add(topic=topic, partition=partition, offset=1, metadata=metadata)
        answer = world.call("OffsetCommit", request)
        if answer.status.code:
            break
    again = pb.OffsetCommitRequest(group_id=group, generation=-1)
    again.partitions.add(topic=topic, partition=0, offset=2)
    assert world.call("OffsetCommit", again).partitions[0].status.code == 0, "what is there goes on"
    deleted = admin_pb2.DeleteGroupsRequest(group_ids=[group])
    node_id = world.coordinator(group).node_id
    assert world.admin(node_id).DeleteGroups(deleted).results[0].status.code == 0
    return refused(answer)


def joins(world: World, group, count, **changes):
    """So many first Joins."""
    return [pb.JoinGroupRequest(**world.join_fields(group, **changes)) for _ in range(count)]


@case("many_members")
def many_members(world: World):
    return one_too_many(world, LIMITS.group_max_members)


@case("full_group")
def full_group(world: World):
    """Members whose Joins are parked in the open round count too."""
    metadata = b"x" * 64_000
    protocol = pb.JoinGroupRequest.Protocol(name="r", metadata=metadata)
    room = LIMITS.group_metadata_max_bytes // len(metadata)
    return one_too_many(world, room, protocols=[protocol])


def one_too_many(world: World, room: int, **changes):
    """All at once, into a first round that stays open: which one is refused is nobody's choice."""
    for _ in range(CROWDS_MAX):
        turned_away = crowd(world, room, **changes)
        if turned_away is not None:
            return refused(turned_away)
    raise AssertionError(f"{CROWDS_MAX} crowds, and each lost its coordinator or took too long")


def crowd(world: World, room: int, **changes):
    """What the one too many is told; None where any other was told something before that."""
    group = fresh("crowd")
    node_id = world.coordinator(group).node_id
    with world.many_groups(node_id, room + 1) as stubs:
        return crowd_at(world, group, node_id, stubs, room, **changes)


def crowd_at(world: World, group, node_id, stubs, room: int, **changes):
    """The same, of a group, at its coordinator."""
    operator = world.admin(node_id)
    patience = {"classic.initial.rebalance.delay.ms": "60000"}
    altered = admin_pb2.AlterGroupConfigsRequest.Group(group_id=group)
    altered.settings.extend(
        admin_pb2.AlterGroupConfigsRequest.Setting(name=name, value=value)
        for name, value in patience.items()
    )
    alter = admin_pb2.AlterGroupConfigsRequest(groups=[altered])
    answer = patiently(lambda: operator.AlterGroupConfigs(alter, timeout=PARKED_S))
    if answer.results[0].status.code in MOVED:
        return None
    assert answer.results[0].status.code == 0
    asked = joins(world, group, room + 1, rebalance_timeout_ms=120_000, **changes)
    by_turns = zip(cycle(stubs), asked, strict=False)
    calls = [stub.JoinGroup.future(one, timeout=PARKED_S) for stub, one in by_turns]

    def members():
        wanted = admin_pb2.DescribeGroupsRequest(group_ids=[group])
        described = patiently(lambda: operator.DescribeGroups(wanted, timeout=PARKED_S))
        return len(described.groups[0].members)

    def disturbed():
        done = [call for call in calls if call.done()]
        if any(call.exception() is not None for call in done):
            return True
        told = [call.result() for call in done]
        return any(one.status.code in MOVED or one.park_again for one in told)

    try:
        wait_for(lambda: disturbed() or members() == room, "a full group")
        wait_for(lambda: any(call.done() for call in calls), "a refusal")
        # Before they are cancelled: a Join that breaks off leaves its member two seconds.
        count = members()
        if disturbed():
            return None
        (turned_away,) = (call for call in calls if call.done())
        assert count == room, "all others are in the group"
        return turned_away.result()
    finally:
        for call in calls:
            call.cancel()


@case("many_ids")
def many_ids(world: World):
    group = fresh("crowd")
    at, interrupted = world.coordinator(group).node_id, 0

    def attempt(one):
        return world.groups(at).JoinGroup(one, timeout=PARKED_S)

    def ask(one):
        nonlocal at, interrupted
        while (answer := patiently(lambda: attempt(one))).status.code in MOVED:
            interrupted += 1  # an id may have been kept for it
            at = world.coordinator(group).node_id
        return answer

    asked = joins(world, group, LIMITS.group_max_pending, join_nonce="")
    with ThreadPoolExecutor(THREADS) as pool:
        ids = {answer.member_id for answer in pool.map(ask, asked)} - {""}
    assert len(ids) >= LIMITS.group_max_pending - interrupted
    return refused(ask(asked[0]))
