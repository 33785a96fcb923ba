"""Who may do what, asked of a node by real calls: rules, tokens, batches, lists, held calls."""

import asyncio
import functools
import inspect
import time
from dataclasses import replace

import grpc
import pytest
from structlog.testing import capture_logs

from muster.v1 import access_pb2 as pb
from muster.v1 import access_pb2_grpc, admin_pb2, group_pb2
from musterd.coordinator.api.frame import identity
from musterd.coordinator.api.frame.operator_access import (
    HEARD,
    METADATA_KEY,
    NOT_SHOWN,
    OperatorAccess,
)
from musterd.coordinator.machine.access import AclRule, Operation, Pattern, Resource, TokenScope
from musterd.coordinator.machine.commands import AlterAcls, CreateToken, RevokeToken
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import AclsAltered
from musterd.coordinator.machine.shard_state import evolve_shard_counted
from tests.coordinator.api.test_group_service import joining
from tests.coordinator.local import LocalNode

SECRET = b"0123456789abcdef"
GROUP, TOPIC, CLUSTER = Resource.GROUP, Resource.TOPIC, Resource.CLUSTER


def rule(who, operation, resource, name="", *, deny=False):
    """A rule; a name that ends in * is a prefix."""
    pattern = Pattern.PREFIX if name.endswith("*") else Pattern.LITERAL
    return AclRule(
        who, Operation[operation.upper()], resource, pattern, name.removesuffix("*"), deny
    )


def shown(text):
    """The metadata of a call with this token."""
    return (("authorization", f"Bearer {text}"),)


class GuardedNode(LocalNode):
    """A node with an operators' secret, and a superuser, `root`, unless there are others."""

    def __init__(self, superusers=("root",)):
        super().__init__(access=OperatorAccess(SECRET, on_loopback=True), superusers=superusers)
        self.tokens = {}

    async def start(self, lead=True):
        await super().start(lead)
        self.access_rpcs = access_pb2_grpc.AccessStub(self.channel)

    async def put(self, command):
        """Apply a command of shard 0."""
        future = asyncio.get_running_loop().create_future()
        self.shards[0].submit(command, 4_096, future.set_result)
        return await asyncio.wait_for(future, 5)

    async def token_of(self, who, scopes=(), expires_wall_ms=0):
        """The metadata of a new token of this principal."""
        token_id, text, secret_hash = identity.new_token()
        self.tokens[text] = token_id
        await self.put(CreateToken(token_id, who, secret_hash, expires_wall_ms, scopes))
        return shown(text)

    async def allow(self, *rules):
        await self.put(AlterAcls(rules))


def on_node(test):
    """Run a test with a node that leads all its shards, at level 6, without a rule."""

    @functools.wraps(test)
    def run(**given):
        async def within():
            node = GuardedNode()
            await node.start()
            for shard in node.shards:
                shard.state.level = 6
            try:
                await test(node, **given)
            finally:
                await node.stop()

        asyncio.run(within())

    own = inspect.signature(test)
    run.__signature__ = own.replace(parameters=list(own.parameters.values())[1:])
    return run


async def code_of(call):
    """The gRPC status with which a call ends, by name; OK."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


def commit(group, topic="t", offset=1):
    """A commit of a group without members."""
    one = group_pb2.OffsetCommitRequest.Partition(topic=topic, partition=0, offset=offset)
    return group_pb2.OffsetCommitRequest(group_id=group, generation=-1, partitions=[one])


async def made(node, *topics):
    for topic in topics:
        await node.topics.CreateTopic(admin_pb2.CreateTopicRequest(name=topic, partitions=1))


@on_node
async def test_a_node_without_rules_asks_nobody(node):
    """Whatever is shown, and whoever calls."""
    await made(node, "t")
    answer = await node.groups.OffsetCommit(commit("g"), metadata=shown("muster_x_y"))
    assert answer.status.code == 0
    assert node.core.access.unauthenticated_total == 0


@on_node
async def test_with_the_first_rule_nobody_is_unauthenticated_even_with_an_empty_batch(node):
    """An empty batch has no item to ask of; nobody gets the version of the topics either."""
    await node.allow(rule("ann", "join", GROUP, "g"))
    for call in (
        node.groups.FindCoordinator(group_pb2.FindCoordinatorRequest()),
        node.groups.Heartbeat(group_pb2.HeartbeatRequest(client_nonce="n")),
        node.topics.DescribeTopics(admin_pb2.DescribeTopicsRequest()),
        node.topics.ListTopics(admin_pb2.ListTopicsRequest()),
        node.admin.DescribeCluster(admin_pb2.DescribeClusterRequest()),
        node.groups.OffsetCommit(commit("g"), metadata=shown("muster_x_y")),
    ):
        assert await code_of(call) == "UNAUTHENTICATED"
    powerless = await node.token_of("bob")
    answer = await node.topics.DescribeTopics(
        admin_pb2.DescribeTopicsRequest(names=["t"]), metadata=powerless
    )
    assert answer.topics_version == 0


@on_node
async def test_a_denied_call_says_the_same_whether_the_thing_exists(node):
    """Of groups and of topics, in the status and in its sentence."""
    await made(node, "there")
    await node.groups.OffsetCommit(commit("there", "there"))
    await node.allow(rule("ann", "join", GROUP, "g"))
    ann = await node.token_of("ann")
    said = set()
    for name in ("there", "gone!"):
        described = await node.admin.DescribeGroups(
            admin_pb2.DescribeGroupsRequest(group_ids=[name]), metadata=ann
        )
        topic = await node.topics.DescribeTopics(
            admin_pb2.DescribeTopicsRequest(names=[name]), metadata=ann
        )
        one, other = described.groups[0].status, topic.results[0].status
        said.add((one.code, one.message.replace(name, ""), other.code, topic.results[0].deleting))
    ((group_code, _, topic_code, _),) = said
    assert (group_code, topic_code) == (30, 29)


@on_node
async def test_each_item_of_a_batch_is_asked_and_a_denial_wins(node):
    """FindCoordinator, Heartbeat, DescribeGroups, DeleteGroups and commits over several topics."""
    await made(node, "t", "u")
    await node.allow(
        rule("ann", "admin", GROUP, "g*"),
        rule("ann", "admin", GROUP, "g-secret", deny=True),
        rule("ann", "describe", TOPIC, "t"),
    )
    ann = await node.token_of("ann")
    ids = ["g1", "g-secret", "other"]
    keys = [group_pb2.FindCoordinatorRequest.Key(group_id=one) for one in ids]
    found = await node.groups.FindCoordinator(
        group_pb2.FindCoordinatorRequest(keys=keys), metadata=ann
    )
    assert [one.status.code for one in found.results] == [0, 30, 30]
    members = [group_pb2.HeartbeatRequest.Member(group_id=one, member_id="m") for one in ids]
    beat = await node.groups.Heartbeat(
        group_pb2.HeartbeatRequest(client_nonce="n", members=members), metadata=ann
    )
    assert [one.status.code for one in beat.results] == [25, 30, 30]
    deleted = await node.admin.DeleteGroups(
        admin_pb2.DeleteGroupsRequest(group_ids=ids), metadata=ann
    )
    assert [one.status.code for one in deleted.results] == [69, 30, 30]
    both = commit("g1")
    both.partitions.add(topic="u", partition=0, offset=1)
    both.partitions.add(topic="none", partition=0, offset=1)
    stored = await node.groups.OffsetCommit(both, metadata=ann)
    assert [one.status.code for one in stored.partitions] == [0, 29, 29]
    assert list(node.core.shard_for("g1").state.groups["g1"].offsets) == [("t", 0)]


@on_node
async def test_a_dry_run_of_a_deletion_counts_no_group_that_the_caller_may_not_see(node):
    """Neither its offsets nor that it reads the topic."""
    await made(node, "t")
    for group in ("mine", "other"):
        await node.groups.OffsetCommit(commit(group))
        await node.groups.JoinGroup(joining("m", group=f"{group}-reads", subscribed_topics=["t"]))
    await node.allow(rule("ann", "alter", TOPIC, "t"), rule("ann", "describe", GROUP, "mine*"))
    ann, root = await node.token_of("ann"), await node.token_of("root")
    request = admin_pb2.DeleteTopicRequest(name="t", validate_only=True)

    async def counted(who):
        found = await node.topics.DeleteTopic(request, metadata=who)
        return found.offsets, found.groups, found.reading_groups, list(found.reading_group_ids)

    assert await counted(ann) == (1, 1, 1, ["mine-reads"])
    of_all = await counted(root)
    assert of_all[:3] == (2, 2, 2)


@on_node
async def test_lists_leave_out_what_the_caller_may_not_see(node):
    """Groups and topics alike."""
    await made(node, "t", "u")
    for group in ("a1", "a2", "b1"):
        await node.groups.OffsetCommit(commit(group))
    await node.allow(
        rule("ann", "describe", GROUP, "a*"),
        rule("ann", "describe", GROUP, "a2", deny=True),
        rule("ann", "describe", TOPIC, "u"),
    )
    ann = await node.token_of("ann")
    groups = await node.admin.ListGroups(admin_pb2.ListGroupsRequest(), metadata=ann)
    assert [one.group_id for one in groups.groups] == ["a1"]
    topics = await node.topics.ListTopics(admin_pb2.ListTopicsRequest(), metadata=ann)
    assert [one.name for one in topics.topics] == ["u"]


@on_node
async def test_a_token_ends_with_its_time_and_with_its_revocation(node):
    """At once, also where its caller is known already."""
    await node.allow(rule("ann", "describe", CLUSTER))
    request = admin_pb2.DescribeClusterRequest()
    soon = int(time.time() * 1_000) + 60_000
    brief, ann = await node.token_of("ann", expires_wall_ms=soon), await node.token_of("ann")
    for metadata in (brief, ann):
        assert await code_of(node.admin.DescribeCluster(request, metadata=metadata)) == "OK"
    node.later_ms = 61_000
    assert await code_of(node.admin.DescribeCluster(request, metadata=brief)) == "UNAUTHENTICATED"
    text = ann[0][1].removeprefix("Bearer ")
    await node.put(RevokeToken(node.tokens[text]))
    assert await code_of(node.admin.DescribeCluster(request, metadata=ann)) == "UNAUTHENTICATED"


def first_join():
    """Of a newcomer of group g, which its coordinator parks for longer than a test lasts."""
    return group_pb2.JoinGroupRequest(
        group_id="g",
        client_id="c",
        join_nonce="0" * 32,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[group_pb2.JoinGroupRequest.Protocol(name="range")],
        subscribed_topics=["t"],
    )


@on_node
async def test_a_held_heartbeat_and_a_parked_join_end_when_the_right_is_gone(node):
    """They would last for seconds; the other groups' members are told nothing wrong."""
    await made(node, "t")
    await node.allow(rule("ann", "join", GROUP, "g*"), rule("ann", "describe", TOPIC, "*"))
    ann = await node.token_of("ann")
    join = first_join()
    parked = asyncio.ensure_future(node.groups.JoinGroup(join, metadata=ann))
    async with asyncio.timeout(10):
        while not node.core.access.waiting:
            await asyncio.sleep(0.01)
        await node.put(AlterAcls((), (rule("ann", "join", GROUP, "g*"),)))
        assert (await parked).status.code == Error.GROUP_AUTHORIZATION_FAILED
        await node.allow(rule("ann", "join", GROUP, "g*"))
        join.group_id = "gh"
        join.with_assignment = True
        joined = await node.groups.JoinGroup(join, metadata=ann)
        member = {"group_id": "gh", "member_id": joined.member_id}
        own = group_pb2.SyncGroupRequest.Assignment(member_id=joined.member_id)
        sync = group_pb2.SyncGroupRequest(**member, generation=joined.generation, assignments=[own])
        assert (await node.groups.SyncGroup(sync, metadata=ann)).status.code == 0
        one = group_pb2.HeartbeatRequest.Member(**member, generation=joined.generation)
        other = group_pb2.HeartbeatRequest.Member(group_id="gx", member_id="m")
        first = group_pb2.HeartbeatRequest(client_nonce="n", call_seq=1, members=[one, other])
        beat = await node.groups.Heartbeat(first, metadata=ann)  # it tells that gx has no such one
        assert [told.status.code for told in beat.results] == [0, 25]
        again = group_pb2.HeartbeatRequest(client_nonce="n", call_seq=2, members=[one, other])
        held = asyncio.ensure_future(node.groups.Heartbeat(again, metadata=ann))
        while not node.core.access.waiting:
            await asyncio.sleep(0.01)
        await node.put(AlterAcls((rule("ann", "join", GROUP, "gh", deny=True),)))
        assert [told.status.code for told in (await held).results] == [30, 25]
    assert node.core.access.waiting == 0


@on_node
async def test_a_parked_join_ends_with_the_time_of_its_token(node):
    """Nothing else wakes it: the rules stay, and it would last for seconds."""
    await made(node, "t")
    await node.allow(rule("ann", "join", GROUP, "g*"), rule("ann", "describe", TOPIC, "*"))
    soon = node.wall_ms() + 60_000
    brief = await node.token_of("ann", expires_wall_ms=soon)
    join = first_join()
    async with asyncio.timeout(10):
        await node.groups.JoinGroup(join, metadata=brief)  # for it the next one has to wait
        join.join_nonce = "1" * 32
        parked = asyncio.ensure_future(node.groups.JoinGroup(join, metadata=brief))
        while not node.core.access.waiting:
            await asyncio.sleep(0.01)
        node.later_ms = 61_000
        assert (await parked).status.code == Error.GROUP_AUTHORIZATION_FAILED
    assert await code_of(node.groups.JoinGroup(join, metadata=brief)) == "UNAUTHENTICATED"
    assert node.core.access.waiting == 0


@on_node
async def test_of_calls_that_wait_those_end_whose_token_has_ended(node):
    """The other goes on, and is looked at no more than before."""
    await node.allow(rule("ann", "join", GROUP, "g*"))
    access, loop = node.core.access, asyncio.get_running_loop()
    ended, lasting = loop.create_future(), loop.create_future()
    brief = await node.token_of("ann", expires_wall_ms=node.wall_ms() + 60_000)
    ann = await node.token_of("ann")
    for future, metadata in ((ended, brief), (lasting, ann)):
        caller = Caller("ipv4:127.0.0.1:1", *metadata)
        questions = ((Operation.JOIN, GROUP, "g"),)
        version, who = access.identities.version, access.identify(caller)
        recheck = access.recheck(caller, lambda asked=questions: asked, who, version)
        assert recheck() is None
        access.hold(future, recheck, lambda refused: refused)
    node.later_ms = 61_000
    async with asyncio.timeout(10):
        assert (await ended).error is Error.GROUP_AUTHORIZATION_FAILED
    assert not lasting.done()


@on_node
async def test_a_commit_that_waits_is_asked_again_before_the_log(node):
    """Its right goes away after it was let in and before its turn closes an entry over it."""
    await made(node, "t")
    right = rule("ann", "commit", GROUP, "g")
    await node.allow(right, rule("ann", "describe", TOPIC, "t"))
    ann = await node.token_of("ann")
    shard = node.core.shard_for("g")
    proposer = shard.leadership.proposer
    flush, proposer.flush = proposer.flush, lambda *_: False  # it waits in the queue
    waits = asyncio.ensure_future(node.groups.OffsetCommit(commit("g"), metadata=ann))
    async with asyncio.timeout(10):
        while not proposer.commands:
            await asyncio.sleep(0.01)
        node.core.access.changed = lambda: None  # it is not answered before
        state = node.shards[0].state
        assert shard is not node.shards[0]  # the queue of this one stands still
        await node.put(AlterAcls((), (right,)))
        assert state.access_version
        proposer.flush = flush
        shard.wake()
        assert (await waits).status.code == Error.GROUP_AUTHORIZATION_FAILED
    assert "g" not in shard.state.groups
    assert (proposer.commands, proposer.bytes, proposer.work) == (0, 0, 0)


@on_node
async def test_who_may_know_of_no_group_is_told_of_no_node(node):
    """Where to find the cluster is what a caller without a right would look for next."""
    await node.allow(rule("ann", "describe", GROUP, "g"), rule("eve", "describe", CLUSTER))
    node.endpoints.update({0: "127.0.0.1:1"})

    async def nodes(who, *groups):
        keys = [group_pb2.FindCoordinatorRequest.Key(group_id=group) for group in groups]
        request = group_pb2.FindCoordinatorRequest(keys=keys)
        return len((await node.groups.FindCoordinator(request, metadata=who)).nodes)

    guest, ann, eve = [await node.token_of(who) for who in ("guest", "ann", "eve")]
    assert await nodes(ann, "g") == await nodes(ann, "other", "g") == await nodes(eve) > 0
    assert await nodes(ann, "other") == await nodes(ann) == 0
    assert await nodes(guest, "g") == await nodes(guest) == 0


@pytest.mark.parametrize("goes", ["rule", "token"])
def test_a_right_that_goes_before_a_command_is_put_is_gone(goes):
    """The commit was let in and waits for its turn to be read: the rules of then count."""

    @on_node
    async def test(node):
        create = admin_pb2.CreateTopicRequest(name="many", partitions=60)
        await node.topics.CreateTopic(create)
        right = rule("ann", "commit", GROUP, "g")
        await node.allow(right, rule("ann", "describe", TOPIC, "many"))
        ann = await node.token_of("ann")
        many = group_pb2.OffsetCommitRequest(group_id="g", generation=-1)
        for partition in range(60):
            many.partitions.add(topic="many", partition=partition, offset=7)
        await node.core.one_long_read.acquire()
        waits = asyncio.ensure_future(node.groups.OffsetCommit(many, metadata=ann))
        async with asyncio.timeout(10):
            while not node.core.one_long_read._waiters:
                await asyncio.sleep(0.01)
            gone = AlterAcls((), (right,)) if goes == "rule" else RevokeToken(*node.tokens.values())
            await node.put(gone)
            node.core.one_long_read.release()
            assert (await waits).status.code == Error.GROUP_AUTHORIZATION_FAILED
        assert "g" not in node.core.shard_for("g").state.groups

    test()


@on_node
async def test_the_rest_of_a_batch_is_refused_when_its_callers_token_is_revoked(node):
    """Each part is put with what its caller may do by then."""
    await made(node, "t")
    await node.allow(rule("ann", "admin", GROUP, "*"), rule("ann", "describe", TOPIC, "t"))
    ann = await node.token_of("ann")
    names = [f"g{number}" for number in range(200)]
    for name in names:
        assert (await node.groups.OffsetCommit(commit(name), metadata=ann)).status.code == 0

    def there():
        return sum(name in node.core.shard_for(name).state.groups for name in names)

    async def revoke():
        while there() > 150:
            await asyncio.sleep(0)
        await node.put(RevokeToken(*node.tokens.values()))
        return there()

    revoked = asyncio.ensure_future(revoke())
    request = admin_pb2.DeleteGroupsRequest(group_ids=names)
    answer = await node.admin.DeleteGroups(request, metadata=ann)
    left = await revoked
    assert left > 0
    codes = [result.status.code for result in answer.results]
    assert codes.count(0) == 200 - there(), "what was done is said, and nothing else"
    assert set(codes) == {0, Error.GROUP_AUTHORIZATION_FAILED}
    assert there() >= left - 50, "what was in entries by then is done"


@on_node
async def test_what_an_entry_holds_is_answered_by_its_outcome_whatever_rights_go(node):
    """It can be taken back no more: a refusal would say that nothing was done."""
    await made(node, "t")
    await node.allow(rule("ann", "commit", GROUP, "g"), rule("ann", "describe", TOPIC, "t"))
    ann = await node.token_of("ann")
    shard = node.core.shard_for("g")
    assert shard is not node.shards[0]
    log = node.logs[shard.number]
    run, log.run = log.run, lambda: None  # proposed, and not committed
    waits = asyncio.ensure_future(node.groups.OffsetCommit(commit("g"), metadata=ann))
    async with asyncio.timeout(10):
        while not shard.leadership.proposer._in_flight:
            await asyncio.sleep(0.01)
        await node.put(RevokeToken(*node.tokens.values()))
        log.run = run
        assert (await waits).status.code == 0
    assert shard.state.groups["g"].offsets


@on_node
async def test_a_scoped_token_does_what_its_scopes_and_its_principal_may(node):
    """And never changes rules or tokens, by which it could give itself more."""
    await node.allow(rule("ann", "admin", CLUSTER), rule("ann", "describe", GROUP, "*"))
    scopes = (TokenScope(Operation.ADMIN, CLUSTER, Pattern.LITERAL, ""),)
    scoped = await node.token_of("ann", scopes)
    listed = await node.access_rpcs.DescribeAcls(pb.DescribeAclsRequest(), metadata=scoped)
    assert len(listed.rules) == 2
    groups = await node.admin.DescribeGroups(
        admin_pb2.DescribeGroupsRequest(group_ids=["g"]), metadata=scoped
    )
    assert groups.groups[0].status.code == 30
    more = pb.AclRule(
        principal="ann", operation=pb.ACL_JOIN, resource=pb.ACL_GROUP, pattern=1, name="g"
    )
    for answer in (
        await node.access_rpcs.AlterAcls(pb.AlterAclsRequest(added=[more]), metadata=scoped),
        await node.access_rpcs.CreateToken(pb.CreateTokenRequest(principal="ann"), metadata=scoped),
        await node.access_rpcs.RevokeToken(pb.RevokeTokenRequest(token_id="x"), metadata=scoped),
    ):
        assert answer.status.code == Error.CLUSTER_AUTHORIZATION_FAILED


@on_node
async def test_the_first_rule_needs_a_superuser_and_the_last_one_goes_only_by_opens(node):
    """By calls with the operators' secret, as every operator's call."""
    secret = ((METADATA_KEY, SECRET),)
    one = pb.AclRule(
        principal="ann", operation=pb.ACL_JOIN, resource=pb.ACL_GROUP, pattern=1, name="g"
    )
    alter = node.access_rpcs.AlterAcls
    assert await code_of(alter(pb.AlterAclsRequest(added=[one]))) == "UNAUTHENTICATED"
    known, node.core.access.identities.superusers = node.core.access.identities.superusers, ()
    refused = await alter(pb.AlterAclsRequest(added=[one]), metadata=secret)
    assert (refused.status.code, node.core.access.rules) == (Error.INVALID_REQUEST, 0)
    node.core.access.identities.superusers = known
    with capture_logs() as said:
        granted = await alter(pb.AlterAclsRequest(added=[one]), metadata=secret)
    (line,) = [line for line in said if line["event"] == "access changed"]
    assert (line["what"], line["principal"]) == ("AlterAcls", "operator")
    assert (granted.changed, node.core.access.rules) == (True, 1)
    last = await alter(pb.AlterAclsRequest(removed=[one]), metadata=secret)
    assert (last.status.code, node.core.access.rules) == (Error.INVALID_REQUEST, 1)
    opened = await alter(pb.AlterAclsRequest(removed=[one], opens=True), metadata=secret)
    assert (opened.changed, node.core.access.is_open) == (True, True)


def never_current(superusers=("root",)):
    """Run a test with a node whose copy of shard 0 is not current yet."""

    def of(test):
        def run():
            async def within():
                node = GuardedNode(superusers)
                await node.start(lead=False)
                node.logs[0].current = False
                try:
                    await test(node)
                finally:
                    await node.stop()

            asyncio.run(within())

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return of


@never_current()
async def test_an_empty_copy_that_was_never_current_is_not_taken_for_no_rules(node):
    """Until then, and in quarantine, superusers and operators pass; the rest may come again."""
    request, secret = admin_pb2.DescribeClusterRequest(), ((METADATA_KEY, SECRET),)
    assert await code_of(node.admin.DescribeCluster(request)) == "UNAVAILABLE"
    assert await code_of(node.admin.DescribeCluster(request, metadata=secret)) == "OK"
    node.logs[0].current = True
    assert await code_of(node.admin.DescribeCluster(request)) == "OK"
    node.logs[0].current = False  # it was once
    assert await code_of(node.admin.DescribeCluster(request)) == "OK"
    node.logs[0].trusted = (1, 2)
    assert await code_of(node.admin.DescribeCluster(request)) == "UNAVAILABLE"
    assert await code_of(node.admin.DescribeCluster(request, metadata=secret)) == "OK"
    node.logs[0].trusted = ()


@never_current(superusers=())
async def test_a_node_without_superusers_does_not_take_its_empty_copy_for_an_open_cluster(node):
    """The rules of the others count at this node, too, from its first call on."""
    calls = (
        lambda **more: node.admin.DescribeCluster(admin_pb2.DescribeClusterRequest(), **more),
        lambda **more: node.groups.OffsetCommit(commit("g"), **more),
        lambda **more: node.topics.ListTopics(admin_pb2.ListTopicsRequest(), **more),
    )
    for call in calls:
        assert await code_of(call()) == "UNAVAILABLE"
        assert await code_of(call(metadata=shown("muster_x_y"))) == "UNAVAILABLE"
        assert await code_of(call(metadata=((METADATA_KEY, SECRET),))) == "OK"
    first = AclsAltered((rule("ann", "join", GROUP, "g"),), (), 1)
    evolve_shard_counted(node.shards[0].state, first)
    node.logs[0].current = True
    for call in calls:
        assert await code_of(call()) == "UNAUTHENTICATED"


def test_on_loopback_a_node_without_a_secret_takes_everybody_for_the_operator():
    """Who else could tell a cluster without a majority what was lost? With superusers nobody is."""

    async def within(superusers, code):
        node = LocalNode(superusers=superusers)
        await node.start(lead=False)
        node.logs[0].current = False
        asked = node.admin.DescribeCluster(admin_pb2.DescribeClusterRequest())
        assert await code_of(asked) == code
        await node.stop()

    asyncio.run(within((), "OK"))
    asyncio.run(within(("root",), "UNAVAILABLE"))


@never_current(superusers=())
async def test_a_cluster_without_rules_is_open_once_a_node_s_copy_was_current(node):
    """It stays so though the copy falls behind afterwards."""
    request = admin_pb2.DescribeClusterRequest()
    for current, code in ((False, "UNAVAILABLE"), (True, "OK"), (False, "OK")):
        node.logs[0].current = current
        assert await code_of(node.admin.DescribeCluster(request)) == code


class Caller:
    """A call's context without a call."""

    def __init__(self, peer, *metadata):
        self._peer, self._metadata = peer, metadata

    def peer(self):
        return self._peer

    def invocation_metadata(self):
        return self._metadata


@pytest.mark.parametrize("peer", ["ipv4:10.0.0.7:4711", "ipv6:[2001:db8::1]:4711"])
@on_node
async def test_neither_a_token_nor_the_secret_is_taken_in_the_clear(node, peer):
    """But on loopback, and where all connections have TLS."""
    token = (await node.token_of("ann"))[0]
    identities = node.core.access.identities
    assert identities.of(Caller(peer, token)) == identity.IN_CLEAR
    assert identities.of(Caller(peer, (METADATA_KEY, SECRET))) == HEARD
    for local in ("ipv4:127.0.0.1:4711", "ipv6:[::1]:4711"):
        assert identities.of(Caller(local, token)).principal == "ann"
        assert identities.of(Caller(local, (METADATA_KEY, SECRET))).is_operator
    private = identity.Identities(
        lambda: node.shards[0].state, node.wall_ms, identity.Callers(has_tls=True)
    )
    assert private.of(Caller(peer, token)).principal == "ann"


@on_node
async def test_insecure_admin_secret_takes_the_secret_and_no_token_in_the_clear(node):
    """Where there are rules, too."""
    token = (await node.token_of("ann"))[0]
    operator = OperatorAccess(SECRET, on_loopback=False, in_the_clear=True)
    callers = identity.Callers(operator=operator)
    identities = identity.Identities(lambda: node.shards[0].state, node.wall_ms, callers)
    peer = "ipv4:10.0.0.7:4711"
    assert identities.of(Caller(peer, (METADATA_KEY, SECRET))).is_operator
    assert identities.of(Caller(peer, (METADATA_KEY, SECRET[::-1]))) == NOT_SHOWN
    assert identities.of(Caller(peer, token)) == identity.IN_CLEAR


@on_node
async def test_a_token_that_is_none_is_nobodys(node):
    """Of another secret, cut, without its prefix, of bytes that are no text, and far too long."""
    good = (await node.token_of("ann"))[0][1]
    identities = node.core.access.identities
    for text in (good[:-2] + "AA", good[:-1], good.replace("muster_", ""), "Bearer ", "Basic x"):
        assert identities.of(Caller("ipv4:127.0.0.1:1", ("authorization", text))) == (
            identity.NOT_VALID
        )
    long = ("authorization", "Bearer " + "x" * 100_000)
    assert identities.of(Caller("ipv4:127.0.0.1:1", long)) == identity.NOT_VALID


@on_node
async def test_a_token_whose_principal_has_become_muster_s_own_is_nobodys(node):
    """It was made before the name was reserved; a superuser may have the name of its JWT today."""
    bearer = (await node.token_of("ann"))[0]
    tokens = node.shards[0].state.tokens
    [token_id] = tokens
    callers = identity.Callers(superusers=("jwt:ann",))
    for name in ("anonymous", "operator", "node:0", "jwt:ann"):
        tokens[token_id] = replace(tokens[token_id], principal=name)
        identities = identity.Identities(lambda: node.shards[0].state, node.wall_ms, callers)
        assert identities.of(Caller("ipv4:127.0.0.1:1", bearer)) == identity.NOT_VALID


@on_node
async def test_credentials_end_by_the_machines_clock(node):
    """The one that stamps entries follows it slowly, so it is wrong for hours once that is set."""
    now = [node.wall_ms() + 3_600_000]
    token = (await node.token_of("ann", expires_wall_ms=node.wall_ms() + 60_000))[0]
    callers = identity.Callers(has_tls=True, machine_ms=lambda: now[0])
    identities = identity.Identities(lambda: node.shards[0].state, node.wall_ms, callers)
    assert identities.of(Caller("ipv4:10.0.0.7:1", token)) == identity.NOT_VALID
    now[0] = node.wall_ms()
    assert identities.of(Caller("ipv4:10.0.0.7:1", token)).principal == "ann"
