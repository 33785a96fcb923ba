"""Topics through any node."""

import asyncio
import os
from pathlib import Path

import grpc
import pytest

import muster
from muster import timeouts
from muster.errors import (
    CallFailed,
    CoordinatorNotAvailable,
    ErrorCode,
    GroupClosed,
    InvalidConfig,
    InvalidPartitions,
    InvalidRequest,
    InvalidTopic,
    RequestTimedOut,
    TlsHandshakeFailed,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from muster.net.bearer_token import BearerToken
from muster.net.nodes import parse_endpoints
from muster.net.tls import Tls
from muster.testing import Abort, Cluster, Hang, LoseAnswer, Refuse
from muster.v1 import admin_pb2, errors_pb2


async def test_zones_are_lists_for_programs(open_cluster):
    """Of new topics and of those that are there; text is none."""
    async with open_cluster(1, topics={}) as (_, client):
        made = await client.create_topic("a", 3, zones=[["y", "x"], []])
        assert made.zones == (("x", "y"), ())
        assert await client.create_topic("a", 3, exist_ok=True) == made
        with pytest.raises(InvalidRequest):
            await client.create_topic("a", 3, zones=[["x"]], exist_ok=True)
        assert (await client.set_topic_zones("a", [["z"]])).zones == (("z",),)
        assert (await client.describe_topics(["a"]))["a"].zones == (("z",),)
        assert (await client.set_topic_zones("a", [["z", "y", "z"]])).zones == (("y", "z"),)
        for none in ([], [[], []]):
            assert (await client.set_topic_zones("a", none)).zones == ()
        for wrong in (["x", "y"], "x;y", [["x,y"]], [[""]]):
            with pytest.raises(InvalidRequest):
                await client.set_topic_zones("a", wrong)
        with pytest.raises(UnknownTopicOrPartition):
            await client.set_topic_zones("b", [["x"]])


async def test_topics_are_created_listed_and_grow(open_cluster):
    """With exist_ok the same count is fine, and more; fewer never are; counts only grow."""
    async with open_cluster(1, topics={}) as (_, client):
        assert await client.create_topic("a", 3) == muster.Topic("a", 3)
        assert await client.create_topic("a", 3, exist_ok=True) == muster.Topic("a", 3)
        with pytest.raises(TopicAlreadyExists):
            await client.create_topic("a", 3)
        with pytest.raises(InvalidPartitions):
            await client.create_topic("a", 4, exist_ok=True)
        assert await client.add_partitions("a", 5) == muster.Topic("a", 5)
        assert await client.create_topic("a", 3, exist_ok=True) == muster.Topic("a", 5)
        with pytest.raises(InvalidPartitions):
            await client.create_topic("a", 3)
        with pytest.raises(InvalidPartitions):
            await client.add_partitions("a", 4)
        with pytest.raises(UnknownTopicOrPartition):
            await client.add_partitions("b", 4)
        await client.create_topic("b", 1)
        assert await client.topics() == [muster.Topic("a", 5), muster.Topic("b", 1)]
        assert (await client.describe_topics(["a"]))["a"].partitions == 5
        with pytest.raises(UnknownTopicOrPartition, match="zzz"):
            await client.describe_topics(["a", "zzz"])


async def test_who_may_only_describe_a_topic_makes_sure_that_it_exists(open_cluster):
    """So one worker runs with and without the right to create; what it may not see is refused."""
    denied = errors_pb2.Status(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    hidden = admin_pb2.DescribeTopicsResponse.Result(name="b", status=denied)
    async with open_cluster(1, topics={"a": 3}) as (cluster, client):
        for most in (2, 3):
            cluster.script("CreateTopic", admin_pb2.CreateTopicResponse(status=denied))
            assert await client.create_topic("a", most, exist_ok=True) == muster.Topic("a", 3)
        for count, exist_ok, name in ((3, False, "a"), (4, True, "a"), (1, True, "b")):
            cluster.script("CreateTopic", admin_pb2.CreateTopicResponse(status=denied))
            if name == "b":
                answer = admin_pb2.DescribeTopicsResponse(results=[hidden])
                cluster.script("DescribeTopics", answer)
            with pytest.raises(TopicAuthorizationFailed):
                await client.create_topic(name, count, exist_ok=exist_ok)


@pytest.mark.parametrize("name", ["", ".", "..", "größe", "a/b", "a" * 250])
async def test_a_name_that_is_not_kafkas_is_refused(open_cluster, name):
    """By the cluster, and so by the one for tests."""
    async with open_cluster(1) as (_, client):
        with pytest.raises(InvalidTopic):
            await client.create_topic(name, 1)
        assert (await client.create_topic("...", 1)).name == "..."


async def test_a_topic_is_deleted_with_its_offsets(open_cluster):
    """And made again, without any."""
    async with open_cluster(1, topics={"a": 2, "b": 1}) as (_, client):
        offsets = {muster.TopicPartition("a", 0): 5, muster.TopicPartition("b", 0): 6}
        await client.commit_offsets("g", offsets)
        await client.delete_topic("a")
        assert [topic.name for topic in await client.topics()] == ["b"]
        with pytest.raises(UnknownTopicOrPartition):
            await client.delete_topic("a")
        await client.create_topic("a", 2)
        stored = await client.committed("g")
        assert [(key.topic, one.offset) for key, one in stored.items()] == [("b", 6)]


async def test_the_topics_of_tasks_are_not_deleted(open_cluster):
    """With them went the tasks of every task group; nobody is asked."""
    kept = {"muster.tasks": 2, "muster.task-definitions": 3}
    async with open_cluster(1, topics=kept) as (cluster, client):
        for name in kept:
            with pytest.raises(InvalidRequest, match="keeps the tasks of every task group") as told:
                await client.delete_topic(name)
            assert "muster group delete" in told.value.hint
        assert cluster.topics == kept
        assert not cluster.seen("DeleteTopic")


async def test_delete_topic_returns_once_no_shard_has_offsets(open_cluster, monkeypatch):
    """A copy of the registry from before, and one that says that a shard is not done, do not do."""
    monkeypatch.setattr(timeouts, "DELETION_POLL_MS", 1)

    def seen(version, *, deleting):
        answer = admin_pb2.DescribeTopicsResponse(topics_version=version)
        gone = errors_pb2.Status(code=errors_pb2.UNKNOWN_TOPIC_OR_PARTITION)
        answer.results.add(name="a", deleting=deleting, status=gone)
        return answer

    there = admin_pb2.DescribeTopicsResponse(topics_version=5)
    there.results.add(name="a").topic.creation_version = 3

    async with open_cluster(1, topics={"a": 2}) as (cluster, client):
        cluster.script("DeleteTopic", admin_pb2.DeleteTopicResponse(topics_version=7))
        steps = [seen(6, deleting=False), seen(7, deleting=True), seen(7, deleting=False)]
        cluster.script("DescribeTopics", there, *steps)
        await client.delete_topic("a")
        assert len(cluster.seen("DescribeTopics")) == 4
        (deleted,) = cluster.seen("DeleteTopic")
        assert deleted.request.creation_version == 3


async def test_a_topic_that_is_gone_after_an_attempt_without_an_answer_is_deleted(
    open_cluster, monkeypatch
):
    """One that was made since is another one, and stays; without such an attempt there is none."""
    monkeypatch.setattr(timeouts, "ADMIN_ATTEMPT_MS", 300)
    async with open_cluster(1, topics={"a": 1, "b": 1}) as (cluster, client):
        cluster.script("DeleteTopic", LoseAnswer())
        await client.delete_topic("a")
        assert "a" not in cluster.topics
        cluster.script("DeleteTopic", LoseAnswer())
        deletion = asyncio.create_task(client.delete_topic("b"))
        while "b" in cluster.topics:
            await asyncio.sleep(0)
        await client.create_topic("b", 1)
        await deletion
        assert cluster.topics == {"b": 1}
        with pytest.raises(UnknownTopicOrPartition):
            await client.delete_topic("a")


async def test_offsets_that_do_not_go_in_time_are_told(open_cluster, monkeypatch):
    """The topic is deleted; what is left to wait for is said."""
    monkeypatch.setattr(timeouts, "DELETION_POLL_MS", 1)
    left = admin_pb2.DescribeTopicsResponse(topics_version=7)
    left.results.add(name="a", deleting=True)
    monkeypatch.setattr(Cluster, "_on_describe_topics", lambda *_: asyncio.sleep(0, left))
    async with open_cluster(1, client={"request_timeout_ms": 300}) as (_, client):
        with pytest.raises(RequestTimedOut, match="not yet all of its offsets"):
            await client.delete_topic("t")


async def test_silence_after_a_deletion_is_no_unknown_result(open_cluster):
    """The topic is deleted for sure: what is not known is whether its offsets are, too."""
    async with open_cluster(1, client={"request_timeout_ms": 300}) as (cluster, client):
        there = admin_pb2.DescribeTopicsResponse(results=[{"name": "t"}])
        cluster.script("DescribeTopics", there, *[Hang()] * 3)
        with pytest.raises(RequestTimedOut, match="not yet all of its offsets"):
            await client.delete_topic("t")


async def test_a_topic_says_when_it_was_created(open_cluster):
    """None where the cluster does not know; it is no part of what makes two topics equal."""
    async with open_cluster(1) as (cluster, client):
        topics = [admin_pb2.Topic(name="a", partitions=1, created_wall_ms=5)]
        topics.append(admin_pb2.Topic(name="b", partitions=1))
        cluster.script("ListTopics", admin_pb2.ListTopicsResponse(topics=topics))
        a, b = await client.topics()
        assert (a.created_wall_ms, b.created_wall_ms) == (5, None)
        assert a == muster.Topic("a", 1)


@pytest.mark.parametrize("count", [0, -1, 2**31])
async def test_an_impossible_count_is_not_sent(open_cluster, count):
    """Refused here, with the number."""
    async with open_cluster(1) as (cluster, client):
        with pytest.raises(InvalidPartitions, match=str(count)):
            await client.create_topic("a", count)
        assert not cluster.calls


@pytest.mark.parametrize(
    "step",
    [
        Refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE),
        Refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        Abort(grpc.StatusCode.RESOURCE_EXHAUSTED),
        Abort(grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_another_node_is_asked_where_one_cannot_answer(open_cluster, step):
    """Whatever passes: the call goes on elsewhere."""
    async with open_cluster(2) as (cluster, client):
        cluster.script("CreateTopic", step)
        assert (await client.create_topic("a", 1)).name == "a"
        assert len({call.node_id for call in cluster.seen("CreateTopic")}) == 2


async def test_a_hint_is_followed(open_cluster, monkeypatch):
    """NOT_COORDINATOR names who leads shard 0."""
    monkeypatch.setattr(timeouts, "SUSPECT_MS", 30_000)  # a slow machine is no quiet node
    async with open_cluster(3) as (cluster, client):
        status = errors_pb2.Status(code=ErrorCode.NOT_COORDINATOR)
        status.coordinator.endpoint = cluster.endpoint(3)
        cluster.script("CreateTopic", admin_pb2.CreateTopicResponse(status=status))
        await client.create_topic("a", 1)
        assert cluster.seen("CreateTopic")[-1].node_id == 3


@pytest.mark.parametrize("step", [Hang(), LoseAnswer()])
@pytest.mark.parametrize(
    ("method", "ask"),
    [
        ("DescribeTopics", lambda client: client.describe_topics(["t"])),
        ("ListTopics", lambda client: client.topics()),
        ("AddPartitions", lambda client: client.add_partitions("t", 5)),
        ("CreateTopic", lambda client: client.create_topic("a", 1, exist_ok=True)),
    ],
)
async def test_another_node_is_asked_beside_one_that_is_silent(open_cluster, method, ask, step):
    """One lost answer does not take the whole of the call's time; the loser is cancelled.

    Two nodes, so that a second answer that takes its time leaves nobody to ask beside it.
    """
    async with open_cluster(2, client={"request_timeout_ms": 4_000}) as (cluster, client):
        cluster.script(method, step)
        await ask(client)
        first, second = cluster.seen(method)
        assert first.node_id != second.node_id
        assert first.request == second.request
        assert client.counters.unanswered == 1
        await cluster.until(lambda: cluster.open_calls[method] == 0)


async def test_a_silent_node_that_another_one_names_is_not_asked_twice_at_once(open_cluster):
    """It may be the leader, which only takes its time; the others are asked until one answers."""
    async with open_cluster(2) as (cluster, client):
        cluster.script("CreateTopic", Hang())
        create = asyncio.create_task(client.create_topic("a", 1))
        await cluster.until(lambda: len(cluster.seen("CreateTopic")) == 1)
        silent = cluster.seen("CreateTopic")[0].node_id
        status = errors_pb2.Status(code=ErrorCode.NOT_COORDINATOR)
        status.coordinator.endpoint = cluster.endpoint(silent)
        cluster.script("CreateTopic", admin_pb2.CreateTopicResponse(status=status))
        assert (await create).name == "a"
        other = 3 - silent
        assert [call.node_id for call in cluster.seen("CreateTopic")] == [silent, other, other]


async def test_a_topic_that_this_call_made_is_not_taken_for_another_ones(open_cluster, monkeypatch):
    """One attempt makes it and is slow to say so, the next one finds it: the first one counts."""
    make = Cluster._on_create_topic
    found = asyncio.Event()

    async def slowly(cluster, node, request):
        answer = await make(cluster, node, request)
        if answer.created:
            await found.wait()
        return answer

    monkeypatch.setattr(Cluster, "_on_create_topic", slowly)
    async with open_cluster(2) as (cluster, client):
        create = asyncio.create_task(client.create_topic("a", 1))
        await cluster.until(
            lambda: len(cluster.seen("CreateTopic")) == 2 and cluster.open_calls["CreateTopic"] == 1
        )
        found.set()
        assert await create == muster.Topic("a", 1)
        with pytest.raises(TopicAlreadyExists):
            await client.create_topic("a", 1)


async def test_the_silence_of_all_nodes_is_said_with_their_addresses(open_cluster):
    """Each is asked once, and what became of a change is not known."""
    async with open_cluster(2, client={"request_timeout_ms": 3_000}) as (cluster, client):
        cluster.script("CreateTopic", Hang(), Hang())
        with pytest.raises(RequestTimedOut) as caught:
            await client.create_topic("a", 1)
        assert all(cluster.endpoint(node_id) in str(caught.value) for node_id in (1, 2))
        assert {call.node_id for call in cluster.seen("CreateTopic")} == {1, 2}
        assert len(cluster.seen("CreateTopic")) == 2


async def test_a_client_that_is_closed_during_a_call_says_so(open_cluster):
    """The call ends at once, with an error and not as if the caller had been cancelled."""
    async with open_cluster(1) as (cluster, client):
        cluster.script("ListTopics", Hang())
        asked = asyncio.create_task(client.topics())
        await cluster.until(lambda: len(cluster.seen("ListTopics")) == 1)
        await client.close()
        with pytest.raises(CallFailed, match="closed"):
            await asked


async def test_a_dead_node_among_the_addresses_does_not_matter(open_cluster):
    """One of two is gone before the first call."""
    async with open_cluster(2) as (cluster, client):
        await cluster.kill(1)
        assert (await client.create_topic("a", 1)).partitions == 1


async def test_no_node_at_all_is_said(open_cluster):
    """After the call's time, with what the last node said."""
    async with open_cluster(1, client={"request_timeout_ms": 300}) as (cluster, client):
        await cluster.kill(1)
        with pytest.raises((CoordinatorNotAvailable, RequestTimedOut), match=r"127\.0\.0\.1"):
            await client.topics()


async def test_a_server_without_this_call_is_said(open_cluster):
    """UNIMPLEMENTED is not tried again."""
    async with open_cluster(1) as (cluster, client):
        cluster.script("ListTopics", Abort(grpc.StatusCode.UNIMPLEMENTED, "no such method"))
        with pytest.raises(UnsupportedVersion, match="no such method"):
            await client.topics()


async def test_a_client_that_is_not_open_says_so():
    """Also after close."""
    client = muster.Client("127.0.0.1:1")
    with pytest.raises(GroupClosed, match="async with"):
        await client.topics()
    await client.close()


@pytest.mark.parametrize("given", ["", "host", "host:", ":1", "host:0", "host:65536", ["a:1", "b"]])
def test_an_address_that_is_none_is_refused(given):
    """With the text that was given."""
    with pytest.raises(InvalidConfig):
        parse_endpoints(given)


def test_addresses_come_as_text_or_list():
    """In order, each once; spaces do not matter; an IPv6 address keeps its brackets."""
    assert parse_endpoints("a:1, b:2,a:1") == ("a:1", "b:2")
    assert parse_endpoints(["[::1]:7070"]) == ("[::1]:7070",)


TLS = Path(__file__).parents[1] / "testdata" / "tls"


async def test_calls_go_over_tls(open_cluster):
    """A server that shows a certificate of the CA given is talked to."""
    pair = ((TLS / "server.key").read_bytes(), (TLS / "server.pem").read_bytes())
    options = {"tls": Tls(str(TLS / "ca.pem"))}
    credentials = grpc.ssl_server_credentials([pair])
    async with open_cluster(2, client=options, credentials=credentials) as (_, client):
        await client.create_topic("a", 1)
        async with client.group("g", ["a"]) as group:
            await group.next_assignment()


def test_a_token_that_would_go_over_the_network_in_the_clear_is_refused(tmp_path):
    """Over TLS and to loopback it is sent; one that is none, or cannot be read, is refused."""
    with pytest.raises(InvalidConfig, match="in the clear"):
        muster.Client("127.0.0.1:1,10.0.0.1:1", token="secret")
    muster.Client("127.0.0.1:1,[::1]:1,localhost:1", token="secret")
    for wrong in ("two words", "\n", "x" * 10_000):
        with pytest.raises(InvalidConfig, match="no token"):
            muster.Client("127.0.0.1:1", token=wrong)
    with pytest.raises(InvalidConfig, match="token_file"):
        muster.Client("127.0.0.1:1", token_file=str(tmp_path / "missing"))


def test_a_token_file_is_read_again_when_it_has_changed(tmp_path):
    """And counts as it was while it cannot be read."""
    file = tmp_path / "token"
    file.write_text("one\n")
    token = BearerToken(file=str(file))
    assert token.metadata() == (("authorization", "Bearer one"),)
    file.write_text("another")
    os.utime(file, ns=(1, 1))
    assert token.metadata() == (("authorization", "Bearer another"),)
    file.unlink()
    assert token.metadata() == (("authorization", "Bearer another"),)


async def test_a_server_of_an_unknown_authority_is_not_talked_to(open_cluster):
    """Its certificate is not of the system's authorities: no call arrives."""
    pair = ((TLS / "server.key").read_bytes(), (TLS / "server.pem").read_bytes())
    options = {"tls": Tls(), "request_timeout_ms": 1_000}
    credentials = grpc.ssl_server_credentials([pair])
    async with open_cluster(1, client=options, credentials=credentials) as (cluster, client):
        with pytest.raises(TlsHandshakeFailed, match="no authority that is trusted here"):
            await client.topics()
        assert not cluster.calls


def test_tls_files_are_read_when_asked_for(tmp_path):
    """What cannot be read is named; half a key pair is refused."""
    with pytest.raises(InvalidConfig, match=r"missing\.pem"):
        Tls(str(tmp_path / "missing.pem")).credentials()
    with pytest.raises(InvalidConfig, match="go together"):
        Tls("ca.pem", cert="c.pem").credentials()
