"""What people and scripts see: golden output of every command on a scripted cluster.

A file in tests/testdata/cli holds blocks: a command line, then its output, each line marked `out|`
or `err|`, then `exit CODE`. `pytest --rewrite` writes them anew: read the diff before you commit.
"""

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.v1 import admin_pb2, group_pb2
from muster.v1.errors_pb2 import Coordinator, ErrorCode
from tests.cli.access_store import AccessStore
from tests.cli.offset_store import Entry, OffsetStore
from tests.cli.operator_store import SettingsStore, kicking

SCENARIOS = sorted((Path(__file__).parents[1] / "testdata" / "cli").glob("*.txt"))
Described = admin_pb2.DescribeGroupsResponse
Rebalances = admin_pb2.DescribeRebalancesResponse
WALL_MS = 1_795_273_591_042


def _assignment(**topics: list[int]) -> bytes:
    return group_pb2.ConsumerAssignment(
        assigned=[
            group_pb2.TopicPartitions(topic=topic, partitions=numbers)
            for topic, numbers in topics.items()
        ]
    ).SerializeToString()


def _billing(cluster) -> Described.Group:
    return Described.Group(
        group_id="billing",
        type="classic",
        state="Stable",
        protocol_type="consumer",
        protocol_name="range",
        generation=12,
        leader_id="worker-1-aa",
        coordinator=_where(cluster.nodes[1]),
        applied_index=101,
        shard=1,
        members=[
            Described.Member(
                member_id="worker-1-aa",
                subscribed_topics=["orders", "payments"],
                client_id="worker-1",
                host="10.0.0.1",
                assignment=_assignment(orders=[0, 1]),
                session_timeout_ms=10000,
                rebalance_timeout_ms=60000,
                joined=True,
                synced=True,
                fencing_token=12,
            ),
            Described.Member(
                member_id="worker-2-bb",
                subscribed_topics=["orders", "payments"],
                group_instance_id="rack-2",
                client_id="worker-2",
                host="10.0.0.2",
                assignment=_assignment(orders=[2], payments=[0]),
                session_timeout_ms=10000,
                rebalance_timeout_ms=60000,
                joined=True,
                synced=True,
                fencing_token=13,
            ),
        ],
    )


def _audit(cluster) -> Described.Group:
    """A group of another protocol type: its assignments are opaque."""
    return Described.Group(
        group_id="audit",
        type="classic",
        state="CompletingRebalance",
        protocol_type="connect",
        protocol_name="sessioned",
        generation=3,
        leader_id="w-cc",
        coordinator=_where(cluster.nodes[1]),
        applied_index=101,
        shard=1,
        members=[
            Described.Member(
                member_id="w-cc", client_id="w", host="10.0.0.3", joined=True, awaited=True
            )
        ],
        wait=Described.Wait(
            kind="sync",
            since_wall_ms=WALL_MS,
            until_wall_ms=WALL_MS + 60_000,
            waited_ms=1_500,
            remaining_ms=58_500,
            awaited_members=1,
        ),
    )


def _fleet(cluster) -> Described.Group:
    """A modern group: worker-1 is to release orders(1), worker-3 is away, payments(1) waits.

    worker-4 is a classic member, which was told to join.
    """

    def member(number, *, instance="", topics=("orders", "payments"), epoch=8, **of):
        return Described.Member(
            type=of.pop("type", "consumer"),
            member_id=f"worker-{number}",
            group_instance_id=instance,
            client_id="worker",
            host=f"10.0.0.{number}",
            subscribed_topics=topics,
            member_epoch=epoch,
            session_timeout_ms=45000,
            rebalance_timeout_ms=60000,
            **of,
        )

    grants, target = Described.Grants, Described.Target
    return Described.Group(
        group_id="fleet",
        type="consumer",
        state="Reconciling",
        protocol_type="consumer",
        protocol_name="uniform",
        generation=9,
        target_epoch=9,
        coordinator=_where(cluster.nodes[1]),
        applied_index=101,
        shard=1,
        members=[
            member(
                1,
                joined=True,
                awaited=True,
                awaited_for="release",
                awaited_until_wall_ms=WALL_MS + 56_000,
                assignment=_assignment(orders=[0, 1]),
                grants=[
                    grants(topic="orders", partitions=[0], fencing_tokens=[11]),
                    grants(topic="orders", partitions=[1], fencing_tokens=[12], revoking=True),
                ],
                target=[
                    target(topic="orders", partitions=[0]),
                    target(topic="payments", partitions=[1]),
                ],
            ),
            member(
                2,
                joined=True,
                epoch=9,
                topics=(),
                subscribed_pattern="orders|pay.*",
                rack="eu-1",
                assignment=_assignment(payments=[0]),
                grants=[grants(topic="payments", partitions=[0], fencing_tokens=[17])],
                target=[
                    target(topic="orders", partitions=[1]),
                    target(topic="payments", partitions=[0]),
                ],
            ),
            member(
                3,
                instance="rack-3",
                synced=True,
                away_until_wall_ms=WALL_MS + 30_000,
                assignment=_assignment(orders=[2]),
                grants=[grants(topic="orders", partitions=[2], fencing_tokens=[14])],
                target=[target(topic="orders", partitions=[2])],
            ),
            member(
                4,
                type="classic",
                joined=True,
                synced=True,
                epoch=9,
                awaited=True,
                awaited_for="join",
                awaited_until_wall_ms=WALL_MS + 58_000,
                assignment=_assignment(payments=[2]),
                grants=[grants(topic="payments", partitions=[2], fencing_tokens=[18])],
                target=[target(topic="payments", partitions=[2])],
            ),
        ],
        unowned=[
            Described.Unowned(
                topic="payments",
                partitions=[1],
                reason="not_released",
                since_wall_ms=WALL_MS - 4_000,
                member_id="worker-1",
            )
        ],
        unowned_by_reason={"not_released": 1},
    )


def _where(node) -> Coordinator:
    return Coordinator(node_id=node.node_id, endpoint=node.endpoint, term=7)


def _offsets() -> group_pb2.OffsetFetchResponse:
    entry = group_pb2.OffsetFetchResponse.Partition
    return group_pb2.OffsetFetchResponse(
        applied_index=101,
        term=7,
        partitions=[
            entry(
                topic="orders",
                partition=0,
                offset=40,
                end_offset=52,
                wall_ms=WALL_MS,
                generation=12,
            ),
            entry(
                topic="orders", partition=1, offset=7, metadata="m", wall_ms=WALL_MS, generation=11
            ),
            entry(topic="old", partition=0, offset=2**62, wall_ms=WALL_MS, generation=-1),
        ],
    )


def _idle() -> list[Entry]:
    """Offsets of a group that nobody is in; some with the ends of their partitions."""
    return [
        Entry(topic="orders", partition=0, offset=40, start_offset=10, end_offset=52),
        Entry(topic="orders", partition=1, offset=7, metadata="m"),
        Entry(topic="orders", partition=2, offset=20, start_offset=18, end_offset=21),
        Entry(topic="payments", partition=0, offset=5, end_offset=9),
    ]


def _plans() -> list[Rebalances.Rebalance]:
    """What DescribeRebalances says of fleet: a plan that is open, and two before."""
    rebalance, delay, move = Rebalances.Rebalance, Rebalances.Delay, Rebalances.Move
    one, two = (Rebalances.Who(member_id=f"worker-{n}", client_id="worker") for n in (1, 2))
    four = Rebalances.Who(member_id="worker-4", client_id="worker")
    return [
        rebalance(
            round=6,
            started_wall_ms=WALL_MS - 4_500,
            from_generation=8,
            generation=9,
            trigger="topics_changed",
            reason="topics that the group reads changed: payments",
            members_before=3,
            members_after=3,
            joining_ms=500,
            syncing_ms=4_000,
            ended="open",
            planned=True,
            awaited_members=1,
            delays=[delay(how="awaited", who=one, after_ms=4_500)],
            moves=[
                move(owner="worker-1", why="new", partitions=1),
                move(former="worker-1", owner="worker-2", why="balance", partitions=1),
            ],
            moved_partitions={"new": 1, "balance": 1},
        ),
        rebalance(
            round=5,
            started_wall_ms=WALL_MS - 60_000,
            from_generation=7,
            generation=8,
            trigger="session_expiry",
            culprit=four,
            reason="no heartbeat for 45000 ms",
            members_before=4,
            members_after=3,
            joining_ms=12,
            syncing_ms=31,
            ended="stable",
            planned=True,
            missing_members=1,
            delays=[delay(how="session_expired", who=four, after_ms=0)],
            moves=[move(former="worker-4", owner="worker-2", why="owner left", partitions=1)],
            moved_partitions={"owner left": 1},
        ),
        rebalance(
            round=4,
            started_wall_ms=WALL_MS - 90_000,
            from_generation=5,
            generation=7,
            trigger="member_joined",
            culprit=two,
            members_before=3,
            members_after=4,
            joining_ms=9,
            syncing_ms=29_991,
            ended="superseded",
            planned=True,
            new_members=1,
            new_member_ids=["worker-2"],
            moves=[move(former="worker-1", owner="worker-2", why="balance", partitions=1)],
            moved_partitions={"balance": 1},
        ),
    ]


def _rounds(no):
    """DescribeRebalances as the coordinator of billing answers it."""
    rebalance, delay = Rebalances.Rebalance, Rebalances.Delay
    one = Rebalances.Who(member_id="worker-1-aa", client_id="worker-1")
    two = Rebalances.Who(member_id="worker-2-bb", client_id="worker-2", group_instance_id="rack-2")
    rounds = [
        rebalance(
            round=9,
            started_wall_ms=WALL_MS,
            from_generation=12,
            trigger="session_expiry",
            culprit=Rebalances.Who(member_id="worker-3-cc", client_id="worker-3"),
            reason="no heartbeat for 10000 ms",
            members_before=3,
            members_after=2,
            joining_ms=1_200,
            ended="open",
            awaited_members=1,
            delays=[delay(how="awaited", who=one, after_ms=1_200)],
        ),
        rebalance(
            round=8,
            started_wall_ms=WALL_MS - 60_000,
            from_generation=11,
            generation=12,
            trigger="member_joined",
            culprit=two,
            reason="deployed 4f2",
            members_before=2,
            members_after=3,
            joining_ms=240,
            syncing_ms=31,
            ended="stable",
            leader=one,
            new_members=1,
            new_member_ids=["worker-2-bb"],
            delays=[
                delay(how="last_to_join", who=one, after_ms=240),
                delay(how="assignment", who=one, after_ms=31),
            ],
        ),
    ]

    def describe(request):
        if request.group_id == "fleet":
            return Rebalances(rebalances=_plans()[: request.max_rebalances])
        if request.group_id != "billing":
            known = request.group_id.startswith("idle")
            missing = no(ErrorCode.GROUP_ID_NOT_FOUND, "there is no such group")
            return Rebalances(status=None if known else missing)
        return Rebalances(rebalances=rounds[: request.max_rebalances])

    return describe


def _deleting(groups, no):
    """DeleteGroups as a node answers it."""

    def delete_groups(request):
        response = admin_pb2.DeleteGroupsResponse()
        for group_id in request.group_ids:
            result = response.results.add(group_id=group_id)
            if group_id not in groups:
                text = f"There is no group {group_id!r}."
                result.status.CopyFrom(no(ErrorCode.GROUP_ID_NOT_FOUND, text))
            elif groups[group_id].members:
                text = f"Group {group_id!r} has members: stop them first."
                result.status.CopyFrom(no(ErrorCode.NON_EMPTY_GROUP, text))
            else:
                del groups[group_id]
        return response

    return delete_groups


def _topic(name, partitions):
    """Of orders the cluster knows when it was created, and where its partitions are."""
    created, zones = (1_790_000_000_000, "a,b;b,c") if name == "orders" else (0, "")
    return admin_pb2.Topic(name=name, partitions=partitions, created_wall_ms=created, zones=zones)


def _deleting_topic(topics, no):
    """DeleteTopic: two groups have offsets, one of them reads it."""

    def delete(request):
        if request.name not in topics:
            unknown = no(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic")
            return admin_pb2.DeleteTopicResponse(status=unknown)
        answer = admin_pb2.DeleteTopicResponse(topic=_topic(request.name, topics[request.name]))
        if request.validate_only:
            answer.offsets, answer.groups, answer.reading_groups = 5, 2, 1
            answer.reading_group_ids.append("billing")
        return answer

    return delete


def _deleting_offsets(no):
    """OffsetDelete of a group that reads `orders`."""

    def delete_offsets(request):
        response = admin_pb2.OffsetDeleteResponse()
        for one in request.partitions:
            answer = response.partitions.add(topic=one.topic, partition=one.partition)
            if one.topic == "orders":
                text = "The group subscribes to 'orders': stop the members that read it first."
                answer.status.CopyFrom(no(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, text))
        return response

    return delete_offsets


def _setting_zones(topics, no):
    """SetTopicZones, whose answer has them."""

    def set_zones(request):
        count = topics.get(request.name)
        if count is None:
            status = no(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic")
            return admin_pb2.SetTopicZonesResponse(status=status)
        topic = admin_pb2.Topic(name=request.name, partitions=count, zones=request.zones)
        return admin_pb2.SetTopicZonesResponse(topic=topic)

    return set_zones


def _adding(topics, no):
    """AddPartitions as a node answers it."""

    def add_partitions(request):
        count = topics.get(request.name)
        if count is None:
            text = f"There is no topic {request.name!r}; create it."
            unknown = no(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
            return admin_pb2.AddPartitionsResponse(status=unknown)
        if count > request.partitions:
            text = f"Topic {request.name!r} has {count} partitions and grows to 10000 at most."
            shrunk = no(ErrorCode.INVALID_PARTITIONS, text)
            return admin_pb2.AddPartitionsResponse(status=shrunk)
        topic = admin_pb2.Topic(name=request.name, partitions=request.partitions)
        return admin_pb2.AddPartitionsResponse(topic=topic)

    return add_partitions


@pytest.fixture
def scene(cluster, no):
    """Topics, groups of each kind, and a store that was refused."""
    topics = {"orders": 3, "payments": 2}
    groups = {"billing": _billing(cluster), "audit": _audit(cluster), "fleet": _fleet(cluster)}
    for idle in ("idle-1", "idle-2"):
        groups[idle] = Described.Group(group_id=idle, type="classic", state="Empty")

    def describe_topics(request):
        result = admin_pb2.DescribeTopicsResponse.Result
        unknown = no(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic")
        return admin_pb2.DescribeTopicsResponse(
            results=[
                result(name=n, topic=_topic(n, topics[n]))
                if n in topics
                else result(name=n, status=unknown)
                for n in request.names
            ]
        )

    def create(request):
        count = topics.get(request.name, request.partitions)
        if count != request.partitions:
            text = f"{request.name} has {count} partitions; ask for {count}, or use another name"
            return admin_pb2.CreateTopicResponse(status=no(ErrorCode.INVALID_PARTITIONS, text))
        return admin_pb2.CreateTopicResponse(
            topic=admin_pb2.Topic(name=request.name, partitions=count, zones=request.zones),
            created=request.name not in topics,
        )

    def describe_groups(request):
        missing = no(ErrorCode.GROUP_ID_NOT_FOUND, "there is no such group")
        return Described(
            groups=[
                groups.get(g, Described.Group(group_id=g, status=missing))
                for g in request.group_ids
            ]
        )

    def list_groups(request):
        rows = [
            admin_pb2.ListGroupsResponse.Group(
                group_id=group.group_id,
                state=group.state,
                protocol_type=group.protocol_type,
                members=len(group.members),
                generation=group.generation,
                type=group.type,
            )
            for group in groups.values()
            if (not request.states or group.state in request.states)
            and (not request.types or group.type in request.types)
            and (not request.protocol_types or group.protocol_type in request.protocol_types)
        ]
        return admin_pb2.ListGroupsResponse(groups=rows)

    delay = {"classic.initial.rebalance.delay.ms": 3_000}
    settings = SettingsStore({"billing": delay}, no)
    store = OffsetStore({"idle-1": _idle()}, topics)
    view = cluster.nodes[0].script["DescribeCluster"]

    def replace(request):
        del view.refused[:], view.refusals[:]
        return admin_pb2.ReplaceNodeResponse(store_uuid=request.store_uuid)

    checkpoint = admin_pb2.VerifyResponse.Checkpoint
    access = AccessStore(no)
    for node in cluster.nodes:
        node.script |= access.rpcs()
        node.script |= {
            "ListTopics": admin_pb2.ListTopicsResponse(
                topics=[_topic(n, p) for n, p in topics.items()]
            ),
            "DescribeTopics": describe_topics,
            "CreateTopic": create,
            "AddPartitions": _adding(topics, no),
            "SetTopicZones": _setting_zones(topics, no),
            "DeleteTopic": _deleting_topic(topics, no),
            "ListGroups": admin_pb2.ListGroupsResponse(),
            "Verify": admin_pb2.VerifyResponse(
                node_id=node.node_id,
                checkpoints=[
                    checkpoint(shard=s, index=90, node_id=n, digest=b"d" * 16, equal=True)
                    for s in range(4)
                    for n in (1, 2, 3)
                ],
            ),
            "DescribeClientQuotas": admin_pb2.DescribeClientQuotasResponse(),
            "ReplaceNode": replace,
            "AcceptLoss": admin_pb2.AcceptLossResponse(
                status=None if node.node_id == 2 else no("INVALID_REQUEST", "It forgot nothing.")
            ),
        }
    cluster.nodes[1].script |= {
        "ListGroups": list_groups,
        "DescribeGroups": describe_groups,
        "OffsetFetch": lambda r: _offsets() if r.group_id == "billing" else store.fetch(r),
        "OffsetCommit": store.commit,
        "DescribeRebalances": _rounds(no),
        "DeleteGroups": _deleting(groups, no),
        "OffsetDelete": _deleting_offsets(no),
        "DescribeGroupConfigs": settings.describe,
        "AlterGroupConfigs": settings.alter,
        "KickMembers": kicking(groups, no),
    }
    cluster.coordinate(cluster.nodes[1])
    refused = admin_pb2.Node(node_id=3, store_uuid="feedface-0000-4000-8000-000000000003")
    view.refused.append(refused)
    view.refusals.add(who="node 3", reason="its store is not the one known under this node id")
    return cluster


@pytest.fixture
def of_two_builds(scene, monkeypatch):
    """The cluster is at level 5; node 2's build knows no more. This machine has their version."""
    monkeypatch.setattr("muster.cli.doctor.installed", lambda _: "0.1.0")
    for node in scene.nodes:
        view = node.script["DescribeCluster"]
        view.level = 5
        for other in view.nodes:
            other.level = 5 if other.node_id == 2 else 6


def _transcript(command: str, ran, masked: Callable[[str], str]) -> str:
    lines = [command]
    lines += [f"out| {line}".rstrip() for line in masked(ran.out).splitlines()]
    lines += [f"err| {line}".rstrip() for line in masked(ran.err).splitlines()]
    return "\n".join([*lines, f"exit {ran.exit_code}"])


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_output_is_as_recorded(path, scene, muster, masked, request, monkeypatch):
    """Tables, JSON, messages and exit codes are an interface: they change on purpose only."""
    monkeypatch.setenv("COLUMNS", "200")
    if path.stem == "doctor":
        request.getfixturevalue("of_two_builds")
    comment, *blocks = path.read_text().rstrip("\n").split("\n\n")
    assert comment.startswith("#"), "the first paragraph says what the file is for"
    seen = [comment]
    for block in blocks:
        command = block.splitlines()[0]
        program, *args = shlex.split(command)
        assert program == "muster", command
        seen.append(_transcript(command, muster(*args), masked))
    text = "\n\n".join(seen) + "\n"
    if request.config.getoption("--rewrite", default=False):
        assert "CI" not in os.environ, "golden files are not rewritten in CI"
        path.write_text(text)
    assert text == path.read_text()


def test_scenarios_cover_every_command():
    """Each command of the client CLI has a golden run that succeeds and one that fails."""
    text = "\n".join(path.read_text() for path in SCENARIOS)
    blocks = [block for block in text.split("\n\n") if block.startswith("muster ")]
    commands = (
        *("topic create", "topic alter", "topic list", "topic describe", "topic delete"),
        *("group list", "group describe", "group offsets", "group delete", "group delete-offsets"),
        *("group reset-offsets", "group state", "group members"),
        *("member list", "member describe", "member kick", "group config"),
        "group why",
        *("cluster status", "cluster verify", "cluster replace-node"),
        "cluster accept-loss",
        *("acl list", "acl grant", "acl revoke", "acl test"),
        *("token create", "token list", "token revoke"),
    )
    for command in commands:
        ends = [b.splitlines()[-1] for b in blocks if b.startswith(f"muster {command}")]
        assert "exit 0" in ends, command
        assert any(end != "exit 0" for end in ends), command
