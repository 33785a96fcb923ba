"""The peer port: strangers, garbage, other clusters; then the cluster goes on."""

import asyncio
import shutil

import pytest

from muster.v1 import peer_pb2 as pb
from musterd.coordinator.node.init import initialise
from musterd.levels import LEVEL
from musterd.raft import codec
from musterd.raft.peer_connection import MAGIC, PeerConnection, framed
from musterd.raft.peer_levels import Levels
from musterd.raft.peers import Replacement
from tests.raft.loopback import LoopbackCluster

HEAD = len(framed(b""))


def hello(cluster, **changes):
    """What node 1 would say, changed."""
    message = cluster.nodes[1].driver.hello(pb.LANE_CONTROL)
    for field, value in changes.items():
        setattr(message, field, value)
    return MAGIC + framed(codec.encode_hello(message))


INTRUSIONS = {
    "http": (lambda c: b"GET / HTTP/1.1\r\n\r\n", "garbage"),
    "noise": (lambda c: bytes(range(256)) * 4, "garbage"),
    "magic and noise": (lambda c: MAGIC + framed(b"\xff" * 40), "garbage"),
    "a length without its checksum": (lambda c: MAGIC + (12).to_bytes(8, "big"), "garbage"),
    "a huge hello": (lambda c: MAGIC + framed(bytes(5000))[:8], "too_long"),
    "another version": (lambda c: MAGIC[:-1] + b"\x01", "version"),
    "another cluster": (lambda c: hello(c, cluster_id="other"), "refused"),
    "another store": (lambda c: hello(c, store_uuid=b"0123456789abcdef"), "refused"),
    "a stranger": (lambda c: hello(c, node_id=9), "refused"),
}


@pytest.mark.parametrize("name", list(INTRUSIONS))
def test_an_intruder_is_hung_up_on_with_a_reason_and_the_cluster_goes_on(tmp_path, name):
    """The reason is counted and kept, and a commit succeeds afterwards."""
    make, reason = INTRUSIONS[name]

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1) as cluster:
            await cluster.propose(0, b"before")
            hub = cluster.nodes[0].hub
            reader, writer = await asyncio.open_connection(*cluster.addresses[0])
            writer.write(make(cluster))
            await reader.read()
            writer.close()
            assert hub.counters[reason] == 1
            assert cluster.nodes[0].driver.book.refusals
            await cluster.commit(0, b"after")

    asyncio.run(scenario())


def test_a_stranger_is_told_no_store_and_its_word_ends_no_node(tmp_path):
    """Whoever knows a node's store is taken for it; of levels only nodes' stores are believed."""

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1) as cluster:
            one, ended = cluster.nodes[0], []
            one.hub.fatal = ended.append
            await cluster.until(lambda: {1, 2} == set(one.driver.connected_nodes))
            stores = [node.driver.identity.store_uuid for node in cluster.nodes]
            later = Levels(LEVEL + 1, LEVEL + 1).encode()
            for changes in (
                {"cluster_id": "?"},
                {"node_id": 9},
                {"node_id": 1, "store_uuid": b"0123456789abcdef"},
                {"node_id": 2, "store_uuid": b"0123456789abcdef"},
            ):
                message = cluster.nodes[1].driver.hello(pb.LANE_CONTROL)
                del message.known[:]
                message.known.append(later)
                for field, value in changes.items():
                    setattr(message, field, value)
                reader, writer = await asyncio.open_connection(*cluster.addresses[0])
                writer.write(MAGIC + framed(codec.encode_hello(message)))
                answer = await reader.read()
                writer.close()
                assert codec.decode_hello(answer[len(MAGIC) + HEAD :]).refused
                for store in stores:
                    assert store not in answer
                    assert store.hex().encode() not in answer
            assert not ended
            await cluster.commit(0, b"after")

    asyncio.run(scenario())


def test_a_second_process_on_one_store_is_turned_away_while_the_first_is_connected(tmp_path):
    """A copy of node 1's directory presents its store: it must neither vote nor acknowledge."""

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1) as cluster:
            one = cluster.nodes[0]
            await cluster.until(lambda: {1, 2} == set(one.driver.connected_nodes))
            broken, endpoints = one.driver.stats.leaders_lost, dict(one.driver.book.endpoints)
            reader, writer = await asyncio.open_connection(*cluster.addresses[0])
            writer.write(hello(cluster, run_id=b"another process.", client_endpoint="copy:1"))
            answer = await reader.read()
            writer.close()
            assert "was copied" in codec.decode_hello(answer[len(MAGIC) + HEAD :]).refused
            assert "was copied" in one.driver.book.refusals["node 1"]
            assert one.driver.book.endpoints == endpoints
            assert one.driver.stats.leaders_lost == broken, "the first stays connected"
            await cluster.nodes[1].stop()
            await cluster.nodes[1].start()
            await cluster.until(lambda: 1 in one.driver.connected_nodes)
            assert "node 1" not in one.driver.book.refusals
            await cluster.commit(0, b"after")

    asyncio.run(scenario())


def test_a_store_that_is_replaced_while_it_connects_is_hung_up_on(tmp_path):
    """Its hello was taken before that; as a twin it would keep the new store out."""

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1) as cluster:
            one = cluster.nodes[0]
            await cluster.until(lambda: 1 in one.driver.connected_nodes)
            offer = hello(cluster)
            verdict = framed(codec.encode_hello(pb.Hello()))
            await cluster.nodes[1].stop()
            await cluster.until(lambda: 1 not in one.driver.connected_nodes)
            reader, writer = await asyncio.open_connection(*cluster.addresses[0])
            writer.write(offer)
            head = await reader.readexactly(len(MAGIC) + HEAD)
            length = int.from_bytes(head[len(MAGIC) :][:4], "big")
            answer = await reader.readexactly(length)
            assert codec.decode_hello(answer).refused == ""
            one.driver.allow_replacement(Replacement(1, b"another store...", 1))
            writer.write(verdict)
            async with asyncio.timeout(10):
                assert await reader.read() == b""
            writer.close()
            assert 1 not in one.driver.connected_nodes
            assert one.hub.counters["refused"] == 1
            assert "was replaced" in one.driver.book.refusals["node 1"]

    asyncio.run(scenario())


def test_the_refused_side_is_told_why(tmp_path):
    """The answer to a refused hello carries the reason, for the other node's status."""

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1) as cluster:
            reader, writer = await asyncio.open_connection(*cluster.addresses[0])
            writer.write(hello(cluster, cluster_id="other"))
            answer = await reader.read()
            writer.close()
            said = codec.decode_hello(answer[len(MAGIC) + HEAD :])
            assert "belongs to cluster 'other'" in said.refused

    asyncio.run(scenario())


def test_a_known_peer_that_sends_garbage_is_hung_up_on_and_comes_back(tmp_path):
    """The connection is closed with its reason and dialled again."""

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1) as cluster:
            await cluster.propose(0, b"before")
            one, two = cluster.nodes[0], cluster.nodes[1]
            await cluster.until(lambda: 1 in one.driver.connected_nodes)
            broken = one.driver.stats.leaders_lost
            one.hub._established[1, pb.LANE_CONTROL].write_frame(b"\xff" * 20)
            await cluster.until(lambda: two.hub.counters["garbage"] == 1)
            await cluster.until(lambda: one.driver.stats.leaders_lost > broken)
            await cluster.until(lambda: 1 in one.driver.connected_nodes)
            await cluster.commit(0, b"after")

    asyncio.run(scenario())


def test_both_sides_say_that_they_speak_other_versions(tmp_path):
    """Who is called answers with its own first bytes before it hangs up."""

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1) as cluster:
            reader, writer = await asyncio.open_connection(*cluster.addresses[0])
            writer.write(MAGIC[:-1] + b"\x07")
            assert await reader.read() == MAGIC
            writer.close()
            (reason,) = cluster.nodes[0].driver.book.refusals.values()
            assert "it speaks version 7 of the peer protocol, this node version 2" in reason
            caller = PeerConnection(cluster.nodes[1].hub, (2, pb.LANE_CONTROL))
            caller.arrived(MAGIC[:-1] + b"\x07")
            assert "version 7" in cluster.nodes[1].driver.book.refusals["node 2"]

    asyncio.run(scenario())


def test_no_flipped_bit_of_what_is_on_its_way_arrives_as_something_else(tmp_path):
    """In first bytes, hello, verdict and frames: the connection is closed, and nothing is taken.

    A length is found out at once, since who waits for what it says would be deaf until then.
    """

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1) as cluster:
            hub, driver = cluster.nodes[0].hub, cluster.nodes[1].driver
            frame = codec.encode_frame(driver.sender(), [(0, {"type": "term_reject", "term": 3})])
            said = hello(cluster) + framed(codec.encode_hello(pb.Hello())) + framed(frame)
            taken = []
            hub.frame_arrived = lambda node, data: taken.append(codec.decode_frame(data))
            hub.hello_arrived = lambda connection, offered: connection.await_verdict(offered)
            hub.verdict_arrived = lambda connection, *_: connection.establish(1, pb.LANE_CONTROL)
            for bit in range(8 * len(said)):
                damaged = bytearray(said)
                damaged[bit // 8] ^= 1 << bit % 8
                refused = hub.counters.total()
                connection = PeerConnection(hub, None)
                connection._transport = Open()
                connection.arrived(bytes(damaged))
                assert hub.counters.total() == refused + 1, f"bit {bit}"
                assert taken == []
            connection = PeerConnection(hub, None)
            connection._transport = Open()
            connection.arrived(said)
            assert taken == [codec.decode_frame(frame)]

    asyncio.run(scenario())


class Open:
    """A transport that stands until somebody closes it."""

    closed = False

    def is_closing(self):
        return self.closed

    def write(self, data):
        return

    def close(self):
        self.closed = True


def test_a_silent_stranger_is_hung_up_on(tmp_path, monkeypatch):
    """A connection that says nothing does not stay."""

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1) as cluster:
            hub = cluster.nodes[0].hub
            await cluster.until(lambda: len(hub._established) == 4 and not hub._strangers)
            object.__setattr__(hub.settings, "hello_timeout_ms", 50)
            reader, writer = await asyncio.open_connection(*cluster.addresses[0])
            assert await reader.read() == b""
            writer.close()
            assert hub.counters["no_hello"] == 1

    asyncio.run(scenario())


def test_a_replaced_node_is_admitted_over_real_sockets(tmp_path):
    """Wiped directory, refused; replace-node; learner; voter again, with every entry."""

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=2) as cluster:
            for shard in range(2):
                await cluster.propose(shard, b"x")
            lost = cluster.nodes[2]
            await lost.stop()
            shutil.rmtree(lost.path)
            fresh = initialise(lost.path, "loopback", 2, cluster.ids, 2)
            await lost.start()
            await cluster.until(lambda: "node 0" in lost.driver.book.refusals)
            assert "replace-node 2" in lost.driver.book.refusals["node 0"]
            for node in cluster.nodes[:2]:
                node.driver.allow_replacement(Replacement(2, fresh.store_uuid, 1))
            await cluster.until(
                lambda: all(
                    node.driver.book.counts(s, 2) for node in cluster.nodes for s in range(2)
                )
            )
            assert [cluster.applied(2, shard) for shard in range(2)] == [[b"x"], [b"x"]]

    asyncio.run(scenario())


def test_a_wiped_node_and_one_that_starts_late_are_silent_over_real_sockets(tmp_path):
    """Whatever node 0 holds, two empty stores wait for its word; then only the late one gets it."""

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=2, late=(2,)) as cluster:
            first, wiped, late = cluster.nodes
            await cluster.until(
                lambda: first.driver.book.awaited == wiped.driver.book.awaited == [2]
            )
            await wiped.stop()
            shutil.rmtree(wiped.path)
            initialise(wiped.path, "loopback", 1, cluster.ids, 2)
            await wiped.start()
            await cluster.until(lambda: "node 1" in first.driver.book.refusals)
            await first.stop()
            await late.start()
            await cluster.until(
                lambda: late.driver.book.awaited == wiped.driver.book.awaited == [0]
            )
            await first.start()
            await cluster.until(
                lambda: late.driver.book.introduced and first.driver.book.awaited == [1]
            )
            assert wiped.driver.book.awaited == [0]
            assert all(r.term == 0 for node in cluster.nodes for r in node.driver.replicas.values())

    asyncio.run(scenario())
