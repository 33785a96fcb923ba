"""Bad requests on raw stubs: what members and operators may get wrong."""

import itertools

import grpc

from muster.v1 import admin_pb2 as admin
from muster.v1 import admin_pb2_grpc
from muster.v1 import group_pb2 as pb
from muster.v1.quota_pb2 import QuotaChange
from musterd.coordinator.api.frame.operator_access import METADATA_KEY
from musterd.coordinator.node.launcher import Cluster
from tests.bad_input.registry import case
from tests.bad_input.world import (
    ATTEMPT_S,
    PARKED_S,
    PARTITIONS,
    SHARDS,
    TOPIC,
    Seen,
    World,
    patiently,
    status_seen,
    wait_for,
)

Partition = pb.OffsetCommitRequest.Partition
Protocol = pb.JoinGroupRequest.Protocol
MIB = 1024 * 1024
MOVES_MAX = 3
_numbers = itertools.count()


def fresh(prefix="bad"):
    """A group id that nobody has used."""
    return f"{prefix}-{next(_numbers)}"


def commit(world: World, group, *partitions, member_id="", generation=-1, commit_seq=0):
    """An OffsetCommit at the group's coordinator."""
    request = pb.OffsetCommitRequest(
        group_id=group,
        member_id=member_id,
        generation=generation,
        commit_seq=commit_seq,
        partitions=partitions,
    )
    return world.call("OffsetCommit", request)


def sync(world: World, group, member_id, generation, assignments=()):
    """A SyncGroup at the group's coordinator."""
    request = pb.SyncGroupRequest(
        group_id=group, member_id=member_id, generation=generation, assignments=assignments
    )
    return world.call("SyncGroup", request, timeout_s=PARKED_S)


def leave(world: World, group, *member_ids):
    """A LeaveGroup at the group's coordinator."""
    members = [pb.LeaveGroupRequest.Member(member_id=member_id) for member_id in member_ids]
    return world.call("LeaveGroup", pb.LeaveGroupRequest(group_id=group, members=members))


def beat(world: World, *members, nonce=None):
    """The status of the first member in a Heartbeat of (group, member id, generation)."""
    request = pb.HeartbeatRequest(
        client_nonce=fresh("nonce") if nonce is None else nonce,
        call_seq=1,
        members=[
            pb.HeartbeatRequest.Member(group_id=group, member_id=member_id, generation=generation)
            for group, member_id, generation in members
        ],
    )
    answer = world.call("Heartbeat", request, status_of=lambda answer: answer.results[0].status)
    return answer.results[0].status


def fetch(world: World, group, count=0, **more):
    """An OffsetFetch of `count` partitions."""
    wanted = [pb.OffsetFetchRequest.Partition(topic=TOPIC, partition=n) for n in range(count)]
    return world.call(
        "OffsetFetch", pb.OffsetFetchRequest(group_id=group, partitions=wanted, **more)
    )


def admin_call(world: World, service, method, request):
    """A call of Topics or Admin at whoever answers it."""
    return world.anywhere(
        lambda n: getattr(getattr(world, service)(n), method)(request, timeout=ATTEMPT_S)
    )


def refused(answer) -> Seen:
    """The call as a whole was refused."""
    return status_seen(answer.status)


def grpc_failure(call) -> Seen:
    """The gRPC status that a call ended with."""
    try:
        call()
    except grpc.RpcError as error:
        return Seen(f"gRPC {error.code().name}", error.details())
    raise AssertionError("the call succeeded")


# ---- ids


def everywhere(world: World, group) -> list[Seen]:
    """Every request that names a group, with this one."""
    one = Partition(topic=TOPIC, partition=0, offset=1)
    keys = pb.FindCoordinatorRequest(keys=[pb.FindCoordinatorRequest.Key(group_id=group)])
    found = patiently(lambda: world.groups().FindCoordinator(keys, timeout=ATTEMPT_S))
    ids = admin.DescribeGroupsRequest(group_ids=[group])
    described = patiently(lambda: world.admin().DescribeGroups(ids, timeout=ATTEMPT_S))
    statuses = [
        world.join(group).status,
        sync(world, group, "m", 1).status,
        beat(world, (group, "m", 1)),
        leave(world, group, "m").status,
        commit(world, group, one).status,
        fetch(world, group, 1).status,
        found.results[0].status,
        described.groups[0].status,
    ]
    return [status_seen(status) for status in statuses]


@case("empty_group_id")
def empty_group_id(world: World):
    return everywhere(world, "")


@case("long_group_id")
def long_group_id(world: World):
    return everywhere(world, "g" * 100_000)


@case("unknown_member")
def unknown_member(world: World):
    group = fresh()
    _, generation = world.member(group)
    one = Partition(topic=TOPIC, partition=0, offset=1)
    return [
        refused(world.join(group, member_id="nobody")),
        refused(sync(world, group, "nobody", generation)),
        refused(commit(world, group, one, member_id="nobody", generation=generation)),
    ]


@case("unknown_member_heartbeat")
def unknown_member_heartbeat(world: World):
    group = fresh()
    _, generation = world.member(group)
    left = leave(world, group, "nobody")
    assert left.status.code == 0
    return [
        status_seen(beat(world, (group, "nobody", generation))),
        status_seen(beat(world, (fresh("no-such-group"), "nobody", generation))),
        status_seen(left.results[0].status),
    ]


@case("wrong_generation")
def wrong_generation(world: World):
    group = fresh()
    member_id, generation = world.member(group)
    one = Partition(topic=TOPIC, partition=0, offset=1)
    seen = [
        refused(call)
        for wrong in (generation - 1, generation + 1)
        for call in (
            sync(world, group, member_id, wrong),
            commit(world, group, one, member_id=member_id, generation=wrong),
        )
    ]
    assert world.read(group) == -1, "nothing was stored"
    right = commit(world, group, one, member_id=member_id, generation=generation)
    assert right.status.code == 0
    return seen


@case("wrong_generation_heartbeat")
def wrong_generation_heartbeat(world: World):
    group = fresh()
    member_id, generation = world.member(group)
    return [
        status_seen(beat(world, (group, member_id, wrong)))
        for wrong in (generation - 1, generation + 1)
    ]


# ---- commits and fetches


@case("commit_without_group")
def commit_without_group(world: World):
    one = Partition(topic=TOPIC, partition=0, offset=1)
    return refused(commit(world, fresh(), one, member_id="m", generation=1))


@case("simple_commit_with_members")
def simple_commit_with_members(world: World):
    group = fresh()
    world.member(group)
    return refused(commit(world, group, Partition(topic=TOPIC, partition=0, offset=1)))


@case("commit_before_assignment")
def commit_before_assignment(world: World):
    group = fresh()
    joined = world.join(group)
    assert joined.status.code == 0
    one = Partition(topic=TOPIC, partition=0, offset=1)
    answer = commit(world, group, one, member_id=joined.member_id, generation=joined.generation)
    assert world.read(group) == -1
    return refused(answer)


def beside_a_good_one(world: World, bad: Partition) -> Seen:
    """The bad partition's status; the good one beside it is stored."""
    group = fresh()
    answer = commit(world, group, bad, Partition(topic=TOPIC, partition=0, offset=17))
    assert answer.status.code == 0
    assert answer.partitions[1].status.code == 0
    assert world.read(group) == 17
    return status_seen(answer.partitions[0].status)


@case("unknown_topic")
def unknown_topic(world: World):
    return beside_a_good_one(world, Partition(topic="nope", partition=0, offset=1))


@case("unknown_partition")
def unknown_partition(world: World):
    return beside_a_good_one(world, Partition(topic=TOPIC, partition=PARTITIONS, offset=1))


@case("large_metadata")
def large_metadata(world: World):
    bad = Partition(topic=TOPIC, partition=1, offset=1, metadata="x" * 4097)
    return beside_a_good_one(world, bad)


def beside_nothing(world: World, *bad: Partition) -> Seen:
    """The whole commit is refused, and a good partition in it is not stored either."""
    group = fresh()
    answer = commit(world, group, Partition(topic=TOPIC, partition=0, offset=17), *bad)
    assert world.read(group) == -1
    return refused(answer)


@case("negative_partition")
def negative_partition(world: World):
    return beside_a_good_one(world, Partition(topic=TOPIC, partition=-1, offset=1))


@case("negative_offset")
def negative_offset(world: World):
    return beside_a_good_one(world, Partition(topic=TOPIC, partition=1, offset=-1))


@case("unnamed_topic")
def unnamed_topic(world: World):
    return [
        beside_nothing(world, Partition(topic=name, partition=0, offset=1))
        for name in ("", "t" * 250)
    ]


@case("many_partitions")
def many_partitions(world: World):
    return beside_nothing(world, *[Partition(topic=TOPIC, partition=0, offset=1)] * 1_000)


@case("negative_commit_seq")
def negative_commit_seq(world: World):
    one = Partition(topic=TOPIC, partition=0, offset=1)
    return refused(commit(world, fresh(), one, commit_seq=-1))


@case("reused_commit_seq")
def reused_commit_seq(world: World):
    group = fresh()
    member_id, generation = world.member(group)

    def numbered(offset):
        one = Partition(topic=TOPIC, partition=0, offset=offset)
        return commit(world, group, one, member_id=member_id, generation=generation, commit_seq=1)

    assert numbered(5).partitions[0].status.code == 0
    assert numbered(5).partitions[0].status.code == 0, "a retry is harmless"
    answer = numbered(6)
    assert world.read(group) == 5
    return status_seen(answer.partitions[0].status)


@case("large_command")
def large_command(world: World):
    heavy = [Partition(topic=TOPIC, partition=0, offset=1, metadata="x" * 4_000)] * 150
    return beside_nothing(world, *heavy)


@case("tiny_entries")
def tiny_entries(world: World):
    """A repeated message field with two bytes per entry: 700,000 in one request."""
    calls = {
        "JoinGroup": (8, pb.JoinGroupResponse),
        "SyncGroup": (6, pb.SyncGroupResponse),
        "LeaveGroup": (2, pb.LeaveGroupResponse),
        "OffsetCommit": (5, pb.OffsetCommitResponse),
    }
    seen = []
    for method, (number, response) in calls.items():
        entries = bytes((number << 3 | 2, 0)) * 700_000
        call = world.channels[0].unary_unary(f"/muster.v1.GroupCoordinator/{method}")
        request = b"\x0a\x01g" + entries
        raw_answer = patiently(lambda c=call, r=request: c(r, timeout=PARKED_S))
        answer = response.FromString(raw_answer)
        seen.append(refused(answer))
    return seen


@case("fetch_many_partitions")
def fetch_many_partitions(world: World):
    return refused(fetch(world, fresh(), 1_001))


@case("fetch_all_and_some")
def fetch_all_and_some(world: World):
    return refused(fetch(world, fresh(), 1, all=True))


@case("fetch_after_without_all")
def fetch_after_without_all(world: World):
    after = pb.OffsetFetchRequest.Partition(topic=TOPIC, partition=0)
    return refused(fetch(world, fresh(), 1, after=after))


@case("fetch_a_group_twice")
def fetch_a_group_twice(world: World):
    groups = [pb.OffsetFetchRequest.Group(group_id="g", all=True)] * 2
    request = pb.OffsetFetchRequest(groups=groups)
    return refused(patiently(lambda: world.groups().OffsetFetch(request, timeout=ATTEMPT_S)))


@case("many_long_names")
def many_long_names(world: World):
    long = [f"{n}".ljust(4_000, "x") for n in range(300)]
    described = admin.DescribeGroupsRequest(group_ids=long)
    deleted = admin.DeleteGroupsRequest(group_ids=long)
    first = patiently(lambda: world.admin().DescribeGroups(described, timeout=ATTEMPT_S)).groups[0]
    return [
        status_seen(first.status),
        refused(patiently(lambda: world.admin().DeleteGroups(deleted, timeout=ATTEMPT_S))),
    ]


@case("list_many_filters")
def list_many_filters(world: World):
    request = admin.ListGroupsRequest(states=["Empty"] * 101)
    return refused(patiently(lambda: world.admin().ListGroups(request, timeout=ATTEMPT_S)))


@case("describe_below_the_first")
def describe_below_the_first(world: World):
    request = admin.DescribeGroupsRequest(group_ids=["g"], first_member=-1)
    answer = patiently(lambda: world.admin().DescribeGroups(request, timeout=ATTEMPT_S))
    return status_seen(answer.groups[0].status)


# ---- joins, syncs, leaves, heartbeats


@case("session_timeout")
def session_timeout(world: World):
    return [
        refused(world.join(fresh(), session_timeout_ms=wrong))
        for wrong in (-1, 0, 999, 1_800_001, 2**31 - 1)
    ]


@case("rebalance_timeout")
def rebalance_timeout(world: World):
    return [refused(world.join(fresh(), rebalance_timeout_ms=wrong)) for wrong in (0, -5)]


@case("no_join_nonce")
def no_join_nonce(world: World):
    return refused(world.join(fresh(), join_nonce=""))


def replaced(world: World, group):
    """A static member i whose place another process took: its (member id, generation)."""
    old = world.join(group, group_instance_id="i")
    assert old.status.code == 0, old
    new = world.join(group, group_instance_id="i")
    assert new.member_id not in ("", old.member_id), new
    return old.member_id, new.generation


@case("fenced_instance")
def fenced_instance(world: World):
    group = fresh()
    member_id, generation = replaced(world, group)
    fields = {"group_id": group, "member_id": member_id, "group_instance_id": "i"}
    synced = world.call(
        "SyncGroup", pb.SyncGroupRequest(generation=generation, **fields), timeout_s=PARKED_S
    )
    committed = world.call(
        "OffsetCommit",
        pb.OffsetCommitRequest(
            generation=generation,
            partitions=[Partition(topic=TOPIC, partition=0, offset=1)],
            **fields,
        ),
    )
    joined = world.join(group, member_id=member_id, group_instance_id="i")
    return [refused(answer) for answer in (joined, synced, committed)]


@case("fenced_instance_heartbeat")
def fenced_instance_heartbeat(world: World):
    group = fresh()
    member_id, generation = replaced(world, group)
    one = pb.LeaveGroupRequest.Member(member_id=member_id, group_instance_id="i")
    left = world.call("LeaveGroup", pb.LeaveGroupRequest(group_id=group, members=[one]))
    beating = pb.HeartbeatRequest(
        client_nonce=fresh("nonce"),
        call_seq=1,
        members=[
            pb.HeartbeatRequest.Member(
                group_id=group,
                member_id=member_id,
                generation=generation,
                group_instance_id="i",
            )
        ],
    )
    beaten = world.call("Heartbeat", beating, status_of=lambda answer: answer.results[0].status)
    return [status_seen(answer.results[0].status) for answer in (left, beaten)]


@case("long_instance_id")
def long_instance_id(world: World):
    return refused(world.join(fresh(), group_instance_id="i" * 250))


@case("handed_out_id_as_static")
def handed_out_id_as_static(world: World):
    group = fresh()
    given = world.join(group, join_nonce="")
    return refused(world.join(group, member_id=given.member_id, group_instance_id="i"))


@case("malformed_join_nonce")
def malformed_join_nonce(world: World):
    return [refused(world.join(fresh(), join_nonce=wrong)) for wrong in ("x", "A" * 32, "0" * 33)]


@case("no_protocol")
def no_protocol(world: World):
    return [
        refused(world.join(fresh(), protocols=[])),
        refused(world.join(fresh(), protocol_type="")),
    ]


@case("other_protocol")
def other_protocol(world: World):
    group = fresh()
    world.member(group)
    return [
        refused(world.join(group, protocol_type="connect")),
        refused(world.join(group, protocols=[Protocol(name="sticky")])),
    ]


@case("unnamed_protocol")
def unnamed_protocol(world: World):
    return refused(world.join(fresh(), protocols=[Protocol(name="", metadata=b"x")]))


@case("protocol_twice")
def protocol_twice(world: World):
    return refused(world.join(fresh(), protocols=[Protocol(name="range")] * 2))


@case("many_protocols")
def many_protocols(world: World):
    most = [Protocol(name=f"p{number}") for number in range(100)]
    assert world.join(fresh(), protocols=most).status.code == 0
    return refused(world.join(fresh(), protocols=[*most, Protocol(name="one more")]))


@case("many_topics_of_a_member")
def many_topics_of_a_member(world: World):
    most = [f"{number:04}" for number in range(10_000)]
    assert world.join(fresh(), subscribed_topics=most).status.code == 0
    return refused(world.join(fresh(), subscribed_topics=[*most, "more"]))


@case("unnamed_topic_of_a_member")
def unnamed_topic_of_a_member(world: World):
    return [
        refused(world.join(fresh(), subscribed_topics=[TOPIC, name])) for name in ("", "t" * 250)
    ]


@case("large_member_metadata")
def large_member_metadata(world: World):
    heavy = [Protocol(name="range", metadata=b"x" * 64 * 1024)]
    return refused(world.join(fresh(), protocols=heavy))


@case("long_client_id")
def long_client_id(world: World):
    longest = world.join(fresh(), client_id="c" * 216)
    assert longest.status.code == 0
    return refused(world.join(fresh(), client_id="c" * 217))


@case("large_assignment")
def large_assignment(world: World):
    group = fresh()
    member_id, generation = world.member(group)
    heavy = pb.SyncGroupRequest.Assignment(member_id=member_id, assignment=b"x" * 65_537)
    return refused(sync(world, group, member_id, generation, [heavy]))


@case("large_vector")
def large_vector(world: World):
    group = fresh()
    member_id, generation = world.member(group)
    heavy = pb.SyncGroupRequest.Assignment(member_id=member_id, assignment=b"x" * 60_000)
    return refused(sync(world, group, member_id, generation, [heavy] * 9))


@case("large_sync")
def large_sync(world: World):
    """No assignment is large, nor is their sum."""
    group = fresh()
    member_id, generation = world.member(group)
    other = pb.SyncGroupRequest.Assignment(member_id="m" * 249, assignment=b"x" * 110)
    return refused(sync(world, group, member_id, generation, [other] * 2_000))


@case("many_assignments")
def many_assignments(world: World):
    group = fresh()
    member_id, generation = world.member(group)
    empty = pb.SyncGroupRequest.Assignment(member_id=member_id)
    return refused(sync(world, group, member_id, generation, [empty] * 2_001))


@case("many_leaving")
def many_leaving(world: World):
    group = fresh()
    member_id, _ = world.member(group)
    return refused(leave(world, group, *[member_id] * 2_001))


@case("wrong_node")
def wrong_node(world: World):
    group = fresh()
    one = Partition(topic=TOPIC, partition=0, offset=1)
    request = pb.OffsetCommitRequest(group_id=group, generation=-1, partitions=[one])
    for _ in range(MOVES_MAX):
        right = world.coordinator(group)
        wrong = [world.groups(node_id) for node_id in set(world.running) - {right.node_id}]
        answers = [
            patiently(lambda s=stub: s.OffsetCommit(request, timeout=ATTEMPT_S)) for stub in wrong
        ]
        if world.coordinator(group) == right:  # else it moved meanwhile, and they are not wrong
            break
    for answer in answers:
        assert answer.status.coordinator.endpoint == right.endpoint
        assert right.endpoint in answer.status.message
    assert world.read(group) == -1
    return [refused(answer) for answer in answers]


@case("no_client_nonce")
def no_client_nonce(world: World):
    return [status_seen(beat(world, (fresh(), "m", 1), nonce=wrong)) for wrong in ("", "n" * 250)]


@case("many_beating")
def many_beating(world: World):
    return status_seen(beat(world, *[(fresh(), "m", 1)] * 2_001))


@case("many_keys")
def many_keys(world: World):
    key = pb.FindCoordinatorRequest.Key(group_id="g")
    request = pb.FindCoordinatorRequest(keys=[key] * 1_001)
    answer = patiently(lambda: world.groups().FindCoordinator(request, timeout=ATTEMPT_S))
    assert len(answer.results) == 1
    return status_seen(answer.results[0].status)


# ---- operators


def create(world: World, name, partitions):
    """CreateTopic."""
    request = admin.CreateTopicRequest(name=name, partitions=partitions)
    return refused(admin_call(world, "topics", "CreateTopic", request))


@case("topic_name")
def topic_name(world: World):
    return [create(world, "", 1), create(world, "t" * 250, 1)]


@case("topic_characters")
def topic_characters(world: World):
    return [create(world, name, 1) for name in ("größe", "a/b", "a b", ".", "..")]


@case("topic_size")
def topic_size(world: World):
    return [create(world, "never", wrong) for wrong in (0, -1, 10_001, 2**31 - 1)]


@case("topic_exists")
def topic_exists(world: World):
    return create(world, TOPIC, PARTITIONS + 1)


@case("fewer_partitions")
def fewer_partitions(world: World):
    request = admin.AddPartitionsRequest(name=TOPIC, partitions=PARTITIONS - 1)
    return refused(admin_call(world, "topics", "AddPartitions", request))


@case("partitions_of_nothing")
def partitions_of_nothing(world: World):
    request = admin.AddPartitionsRequest(name="nope", partitions=3)
    return refused(admin_call(world, "topics", "AddPartitions", request))


@case("topic_zones")
def topic_zones(world: World):
    requests = [admin.SetTopicZonesRequest(name=TOPIC, zones=zones) for zones in ("a,;b", "a b")]
    return [refused(admin_call(world, "topics", "SetTopicZones", one)) for one in requests]


@case("delete_unknown_topic")
def delete_unknown_topic(world: World):
    request = admin.DeleteTopicRequest(name="nope")
    return refused(admin_call(world, "topics", "DeleteTopic", request))


@case("describe_unknown_topic")
def describe_unknown_topic(world: World):
    request = admin.DescribeTopicsRequest(names=[TOPIC, "nope"])
    answer = admin_call(world, "topics", "DescribeTopics", request)
    assert answer.results[0].topic.partitions == PARTITIONS
    return status_seen(answer.results[1].status)


@case("describe_many_topics")
def describe_many_topics(world: World):
    request = admin.DescribeTopicsRequest(names=[""] * 700_000)
    return refused(patiently(lambda: world.topics().DescribeTopics(request, timeout=PARKED_S)))


@case("describe_unknown_group")
def describe_unknown_group(world: World):
    request = admin.DescribeGroupsRequest(group_ids=["nope"])
    answer = world.anywhere(
        lambda n: world.admin(n).DescribeGroups(request, timeout=ATTEMPT_S),
        lambda answer: answer.groups[0].status,
    )
    return [status_seen(answer.groups[0].status), rebalances(world, "nope")]


def rebalances(world: World, group, most=0):
    """What DescribeRebalances says of it."""
    request = admin.DescribeRebalancesRequest(group_id=group, max_rebalances=most)
    answer = world.anywhere(
        lambda n: world.admin(n).DescribeRebalances(request, timeout=ATTEMPT_S),
        lambda answer: answer.status,
    )
    return status_seen(answer.status)


@case("fewer_than_no_rebalances")
def fewer_than_no_rebalances(world: World):
    return rebalances(world, fresh(), -1)


@case("describe_many_groups")
def describe_many_groups(world: World):
    request = admin.DescribeGroupsRequest(group_ids=["g"] * 1_001)
    answer = patiently(lambda: world.admin().DescribeGroups(request, timeout=ATTEMPT_S))
    assert len(answer.groups) == 1
    return status_seen(answer.groups[0].status)


def of_shards(world: World, shards) -> list[Seen]:
    """What Verify and Checkpoints say to these shard numbers."""
    verify, held = admin.VerifyRequest(shards=shards), admin.CheckpointsRequest(shards=shards)
    return [
        refused(patiently(lambda: world.admin().Verify(verify, timeout=PARKED_S))),
        refused(patiently(lambda: world.admin().Checkpoints(held, timeout=PARKED_S))),
    ]


@case("verify_unknown_shard")
def verify_unknown_shard(world: World):
    return [*of_shards(world, [SHARDS]), *of_shards(world, [-1])]


@case("verify_many_shards")
def verify_many_shards(world: World):
    return [*of_shards(world, range(SHARDS + 1)), *of_shards(world, [0] * 1_500_000)]


def replace(world: World, **fields):
    """ReplaceNode."""
    return refused(admin_call(world, "admin", "ReplaceNode", admin.ReplaceNodeRequest(**fields)))


@case("replace_unknown_node")
def replace_unknown_node(world: World):
    return replace(world, node_id=7, store_uuid="0" * 32)


@case("replace_without_store")
def replace_without_store(world: World):
    return [
        replace(world, node_id=1),
        replace(world, node_id=1, store_uuid="x" * 32),
        replace(world, node_id=1, store_uuid="0" * 33),
    ]


@case("accept_loss_of_another")
def accept_loss_of_another(world: World):
    request = admin.AcceptLossRequest(node_id=7)
    return refused(admin_call(world, "admin", "AcceptLoss", request))


@case("accept_loss_without_one")
def accept_loss_without_one(world: World):
    request = admin.AcceptLossRequest(node_id=1)
    return refused(world.admin(1).AcceptLoss(request, timeout=ATTEMPT_S))


def alter_quotas(world: World, *changes):
    """AlterClientQuotas of changes to a group's Joins, given by what they differ in."""
    given = ({"entity": 2, "name": "bad", "key": 1, "value": 1} | change for change in changes)
    request = admin.AlterClientQuotasRequest(changes=[QuotaChange(**one) for one in given])
    return admin_call(world, "admin", "AlterClientQuotas", request)


@case("too_many_quotas")
def too_many_quotas(world: World):
    return refused(alter_quotas(world))


@case("quota_of_nothing")
def quota_of_nothing(world: World):
    return refused(alter_quotas(world, {"entity": 9}))


@case("quota_twice")
def quota_twice(world: World):
    return refused(alter_quotas(world, {}, {"value": 2}))


@case("quota_long_name")
def quota_long_name(world: World):
    return refused(alter_quotas(world, {"name": "x" * 250}))


@case("quota_below_nothing")
def quota_below_nothing(world: World):
    return refused(alter_quotas(world, {"value": -1}))


def wait_throttled(world: World, group):
    """Wait for the group's node to count by a quota of a byte a second; returns its refusal."""
    offset = itertools.count()

    def over():
        answer = commit(world, group, Partition(topic=TOPIC, partition=0, offset=next(offset)))
        return answer if answer.status.code == 89 else None

    return wait_for(over, "each node counts by the quota")


@case("over_the_quota")
def over_the_quota(world: World):
    group = fresh()
    assert not alter_quotas(world, {"name": group, "key": 3}).status.code  # a byte a second
    seen = wait_throttled(world, group)
    assert not alter_quotas(world, {"name": group, "key": 3, "value": 0}).status.code
    return refused(seen)


@case("members_quota")
def members_quota(world: World):
    group = fresh()
    world.member(group)
    both = {"name": group, "key": 5}, {"name": group, "key": 3}
    assert not alter_quotas(world, *both).status.code
    wait_throttled(world, group)
    seen = world.join(group)
    assert not alter_quotas(world, *({**one, "value": 0} for one in both)).status.code
    return refused(seen)


@case("finalize_unknown_level")
def finalize_unknown_level(world: World):
    request = admin.FinalizeLevelRequest(level=99)
    return refused(admin_call(world, "admin", "FinalizeLevel", request))


def transfer(world: World, **fields):
    """TransferLeader."""
    request = admin.TransferLeaderRequest(**fields)
    return refused(admin_call(world, "admin", "TransferLeader", request))


@case("transfer_unknown_shard")
def transfer_unknown_shard(world: World):
    return [transfer(world, shard=SHARDS), transfer(world, shard=-1)]


def read_backup(world: World, **fields):
    """ReadBackup."""
    return refused(admin_call(world, "admin", "ReadBackup", admin.ReadBackupRequest(**fields)))


@case("backup_before_1970")
def backup_before_1970(world: World):
    request = admin.NoteBackupRequest(wall_ms=-1)
    return [refused(admin_call(world, "admin", "NoteBackup", request))]


@case("backup_unknown_shard")
def backup_unknown_shard(world: World):
    return [read_backup(world, shard=SHARDS), read_backup(world, shard=-1)]


@case("backup_lost_cut")
def backup_lost_cut(world: World):
    cut = admin_call(world, "admin", "ReadBackup", admin.ReadBackupRequest(shard=1))
    return [
        read_backup(world, shard=1, cut_id=b"x" * 16),
        read_backup(world, shard=1, cut_id=b"x" * 100_000),
        read_backup(world, shard=2, cut_id=cut.cut_id),
        read_backup(world, shard=1, cut_id=cut.cut_id, slice=7),
        read_backup(world, shard=1, cut_id=cut.cut_id, slice=-1),
    ]


@case("transfer_unknown_node")
def transfer_unknown_node(world: World):
    return transfer(world, shard=0, to_node=7)


@case("replace_running_node")
def replace_running_node(world: World):
    return replace(world, node_id=1, store_uuid="0" * 32)


@case("operator_without_secret")
def operator_without_secret(world: World):
    """At a node of its own, as the others have no secret."""
    secret = world.scratch / "admin.secret"
    secret.write_text("s" * 16)
    flags = (f"--admin-secret-file={secret}",)
    with (
        Cluster(world.scratch / "guarded", nodes=1, shards=1, flags=flags) as guarded,
        grpc.insecure_channel(guarded.nodes[0].endpoint) as channel,
    ):
        guarded.wait_ready()
        asked = admin_pb2_grpc.AdminStub(channel)
        calls = (
            (asked.TransferLeader, admin.TransferLeaderRequest(shard=0)),
            (asked.ReplaceNode, admin.ReplaceNodeRequest(node_id=0)),
            (asked.AcceptLoss, admin.AcceptLossRequest(node_id=0)),
            (asked.FinalizeLevel, admin.FinalizeLevelRequest(level=99)),
            (asked.ReadBackup, admin.ReadBackupRequest(shard=0)),
            (asked.NoteBackup, admin.NoteBackupRequest(wall_ms=1)),
        )
        shown = ((), ((METADATA_KEY, b"t" * 16),))
        return [
            grpc_failure(
                lambda call=call, request=request, metadata=metadata: call(
                    request, timeout=PARKED_S, metadata=metadata
                )
            )
            for call, request in calls
            for metadata in shown
        ]


# ---- messages


@case("large_message")
def large_message(world: World):
    return grpc_failure(lambda: world.commit(fresh(), 1, "x" * 20 * MIB))


def raw(world: World, method):
    """A call of GroupCoordinator with bytes for a request, at node 0."""
    return world.channels[0].unary_unary(f"/muster.v1.GroupCoordinator/{method}")


@case("no_protobuf")
def no_protobuf(world: World):
    call = raw(world, "OffsetCommit")
    return [
        grpc_failure(lambda one=request: patiently(lambda: call(one, timeout=ATTEMPT_S)))
        for request in (b"\xff" * 64, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\xff\xfe")
    ]


@case("unknown_method")
def unknown_method(world: World):
    return grpc_failure(lambda: raw(world, "DoWhatIMean")(b"", timeout=ATTEMPT_S))


@case("unknown_field")
def unknown_field(world: World):
    group = fresh()
    one = Partition(topic=TOPIC, partition=0, offset=23)
    known = pb.OffsetCommitRequest(group_id=group, generation=-1, partitions=[one])
    request = known.SerializeToString() + b"\xfa\x7f\x03new"
    answer = world.anywhere(
        lambda n: pb.OffsetCommitResponse.FromString(
            world.channels[n].unary_unary("/muster.v1.GroupCoordinator/OffsetCommit")(
                request, timeout=ATTEMPT_S
            )
        )
    )
    assert world.read(group) == 23
    return refused(answer)


def offset(world: World, group, offset, **more):
    """A simple commit of partition 0, with more of its fields."""
    request = pb.OffsetCommitRequest(group_id=group, generation=-1, **more)
    request.partitions.add(topic=TOPIC, partition=0, offset=offset)
    return request


@case("unexpected_offset")
def unexpected_offset(world: World):
    group = fresh()
    commit(world, group, Partition(topic=TOPIC, partition=0, offset=5))
    answer = commit(world, group, Partition(topic=TOPIC, partition=0, offset=6, expected_offset=4))
    assert world.read(group) == 5
    return status_seen(answer.partitions[0].status)


@case("half_atomic")
def half_atomic(world: World):
    group = fresh()
    request = offset(world, group, 5, atomic=True)
    request.partitions.add(topic=TOPIC, partition=PARTITIONS, offset=5)
    answer = world.call("OffsetCommit", request)
    assert answer.partitions[1].status.code == 3
    return status_seen(answer.partitions[0].status)


@case("lonely_blob")
def lonely_blob(world: World):
    group = fresh()
    alone = pb.OffsetCommitRequest(group_id=group, generation=-1, atomic=True, blob=b"b")
    return [
        refused(world.call("OffsetCommit", offset(world, group, 5, blob=b"b"))),
        refused(world.call("OffsetCommit", alone)),
    ]


@case("large_blob")
def large_blob(world: World):
    group = fresh()
    request = offset(world, group, 5, atomic=True, blob=b"x" * 4_097)
    answer = world.call("OffsetCommit", request)
    assert world.read(group) == -1
    return refused(answer)


def delete_group(world: World, group):
    """What DeleteGroups says of it."""
    request = admin.DeleteGroupsRequest(group_ids=[group])
    answer = world.anywhere(
        lambda n: world.admin(n).DeleteGroups(request, timeout=ATTEMPT_S),
        lambda answer: answer.results[0].status,
    )
    return status_seen(answer.results[0].status)


def delete_offset(world: World, group):
    """What OffsetDelete answers for partition 0."""
    request = admin.OffsetDeleteRequest(group_id=group)
    request.partitions.add(topic=TOPIC, partition=0)
    return world.anywhere(
        lambda n: world.admin(n).OffsetDelete(request, timeout=ATTEMPT_S),
        lambda answer: answer.status,
    )


@case("delete_many_offsets")
def delete_many_offsets(world: World):
    group = fresh()
    commit(world, group, Partition(topic=TOPIC, partition=0, offset=5))
    request = admin.OffsetDeleteRequest(group_id=group)
    for _ in range(1_001):
        request.partitions.add(topic=TOPIC, partition=0)
    answer = world.anywhere(lambda n: world.admin(n).OffsetDelete(request, timeout=ATTEMPT_S))
    assert world.read(group) == 5
    return refused(answer)


@case("delete_with_members")
def delete_with_members(world: World):
    group = fresh()
    world.member(group)
    return delete_group(world, group)


@case("delete_unknown_group")
def delete_unknown_group(world: World):
    return [delete_group(world, "nope"), status_seen(delete_offset(world, "nope").status)]


def kick(world: World, group, **who):
    """KickMembers of one."""
    request = admin.KickMembersRequest(group_id=group)
    request.members.add(**who)
    return world.anywhere(
        lambda n: world.admin(n).KickMembers(request, timeout=ATTEMPT_S),
        lambda answer: answer.status,
    )


@case("kick_nobody")
def kick_nobody(world: World):
    group = fresh()
    world.member(group)
    answers = [kick(world, group, member_id="z"), kick(world, group, group_instance_id="z")]
    return [status_seen(answer.results[0].status) for answer in answers]


@case("kick_unknown_group")
def kick_unknown_group(world: World):
    return status_seen(kick(world, "nope", member_id="z").status)


def alter(world: World, group, removed=(), **settings):
    """What AlterGroupConfigs says of a group; `_` stands for `.`."""
    request = admin.AlterGroupConfigsRequest()
    one = request.groups.add(group_id=group, removed=removed)
    for name, value in settings.items():
        one.settings.add(name=name.replace("_", "."), value=str(value))
    answer = world.anywhere(
        lambda n: world.admin(n).AlterGroupConfigs(request, timeout=ATTEMPT_S),
        lambda answer: answer.results[0].status,
    )
    return status_seen(answer.results[0].status)


@case("group_setting_unknown")
def group_setting_unknown(world: World):
    return alter(world, fresh(), max_size=5)


@case("group_setting_bounds")
def group_setting_bounds(world: World):
    return [alter(world, fresh(), classic_max_size=value) for value in (0, 2_001, "many", "-1", "")]


@case("group_setting_topics")
def group_setting_topics(world: World):
    many = ",".join(f"t{number}" for number in range(101))
    texts = ("", "a", "a,b;b,c", "a,b;", "a, b", "a,..", many, "a," + "b" * 4_100)
    return [alter(world, fresh(), consumer_colocate=text) for text in texts]


@case("group_setting_weights")
def group_setting_weights(world: World):
    many = ";".join(f"t[{number}]=2" for number in range(201))
    entries = ("", "t", "t=0", "t=1001", "t=0.0001", "t u=2", "t[x]=2", "t[3-1]=2", "t[10000]=2")
    twice = ("t=2;t=3", "t[1]=2;t[0-3]=2", "t=2;")
    texts = (*entries, *twice, many, "t=2;" + "u" * 4_100 + "=3")
    return [alter(world, fresh(), consumer_weights=text) for text in texts]


@case("group_setting_order")
def group_setting_order(world: World):
    bounds = {"classic_min_session_timeout_ms": 20_000, "classic_max_session_timeout_ms": 10_000}
    return alter(world, fresh(), **bounds)


@case("group_setting_twice")
def group_setting_twice(world: World):
    return alter(world, fresh(), ["classic.max.size"], classic_max_size=5)


@case("group_setting_of_nobody")
def group_setting_of_nobody(world: World):
    return alter(world, "", classic_max_size=5)


@case("group_setting_session")
def group_setting_session(world: World):
    group = fresh()
    assert alter(world, group, classic_min_session_timeout_ms=1_000_000).answer == "NONE (0)"
    return refused(world.join(group))


@case("delete_offset_in_use")
def delete_offset_in_use(world: World):
    group = fresh()
    world.member(group)
    return status_seen(delete_offset(world, group).partitions[0].status)
