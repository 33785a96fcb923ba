"""Connections that carry calls of clients: who may have one, and what becomes of it."""

import asyncio

import pytest

from musterd.coordinator.node.authority import Authority
from musterd.raft import hello as hellos
from musterd.raft.codec import encode_hello
from musterd.raft.peer_connection import MAGIC, PeerConnection, TransportSettings, framed
from musterd.raft.transport import PeerHub
from tests.raft.loopback import LoopbackCluster
from tests.raft.test_tls import CLUSTER, PATIENCE_S, contexts_of, said_to, tls_of


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """An authority with certificates of the three nodes."""
    made = Authority.create(tmp_path_factory.mktemp("ca") / "certs", CLUSTER)
    for node in range(3):
        made.node(node, ["localhost"])
    return made


FAST = TransportSettings(forward_retry_ms=20)


class End:
    """One side's account of its connections."""

    def __init__(self):
        self.links, self.frames, self.refusals, self.writable_links = [], [], [], []
        self.closed_links, self.failures = [], []

    def opened(self, link):
        self.links.append(link)

    def arrived(self, link, frame):
        if bytes(frame) == b"nonsense":
            raise ValueError("it is nonsense")
        self.frames.append((link.node, bytes(frame)))

    def writable(self, link):
        self.writable_links.append(link)

    def closed(self, link):
        self.links.remove(link)
        self.closed_links.append(link)

    def refused(self, node, reason):
        self.refusals.append((node, reason))

    def failed(self, node, reason):
        self.failures.append((node, reason))


@pytest.fixture
def ends(monkeypatch):
    """All nodes take calls, and node 2 passes them on: (of node 2 as edge, by coordinator)."""
    edge, takers = End(), {number: End() for number in range(3)}

    class ForwardingHub(PeerHub):
        def attach(self, driver, tls=None):
            super().attach(driver, tls)
            number = driver.identity.node_id
            self.settings = FAST
            self.forward.coordinator = takers[number]
            self.forward.edge = edge if number == 2 else None

    monkeypatch.setattr("tests.raft.loopback.PeerHub", ForwardingHub)
    return edge, takers


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario(), 2 * PATIENCE_S))


@pytest.mark.parametrize("by_tls", [False, True])
def test_a_node_that_forwards_has_a_connection_to_each_other_node(
    tmp_path, certified, ends, by_tls
):
    """Whoever has the lower id; frames go both ways, and the peer is known by its certificate."""
    edge, takers = ends

    async def scenario():
        tls = tls_of(certified) if by_tls else None
        async with LoopbackCluster(tmp_path, tls=tls) as cluster:
            await cluster.until(lambda: len(edge.links) == 2)
            await cluster.until(lambda: takers[0].links and takers[1].links)
            assert sorted(link.node for link in edge.links) == [0, 1]
            assert [link.node for link in takers[0].links] == [2]
            assert not takers[2].links
            assert all(link.is_certified is by_tls for link in (*edge.links, *takers[0].links))
            to_zero = next(link for link in edge.links if link.node == 0)
            to_zero.send(b"a call")
            await cluster.until(lambda: takers[0].frames == [(2, b"a call")])
            takers[0].links[0].send(b"an answer")
            await cluster.until(lambda: edge.frames == [(0, b"an answer")])
            await cluster.commit(0, b"x")  # consensus goes on

    run(scenario)


def test_what_is_no_frame_of_calls_ends_the_connection_and_it_comes_back(tmp_path, ends):
    """Consensus' connections stand."""
    edge, takers = ends

    async def scenario():
        async with LoopbackCluster(tmp_path) as cluster:
            await cluster.until(lambda: len(edge.links) == 2)
            hub = cluster.nodes[0].hub
            await cluster.until(lambda: len(hub._established) == 4)
            before = dict(hub._established)
            next(link for link in edge.links if link.node == 0).send(b"nonsense")
            await cluster.until(lambda: takers[0].closed_links and edge.closed_links)
            await cluster.until(lambda: len(edge.links) == 2 and takers[0].links)
            assert before == dict(hub._established)
            assert hub.counters["garbage"] == 1

    run(scenario)


def test_a_node_that_dies_closes_its_connections_at_the_others(tmp_path, ends):
    """Both those that it dialled and those that were dialled to it."""
    edge, takers = ends

    async def scenario():
        async with LoopbackCluster(tmp_path) as cluster:
            await cluster.until(lambda: len(edge.links) == 2 and takers[0].links)
            await cluster.nodes[1].stop()
            await cluster.until(lambda: [link.node for link in edge.links] == [0])
            await cluster.nodes[2].stop()
            await cluster.until(lambda: not takers[0].links)

    run(scenario)


def test_a_node_whose_store_was_replaced_loses_its_connection(tmp_path, ends):
    """What hangs up on a node hangs up on its calls, too."""
    edge, takers = ends

    async def scenario():
        async with LoopbackCluster(tmp_path) as cluster:
            await cluster.until(lambda: len(edge.links) == 2 and takers[0].links)
            cluster.nodes[0].hub.hang_up(2)
            await cluster.until(lambda: takers[0].closed_links)

    run(scenario)


def test_an_earlier_build_refuses_it_and_is_asked_again_later(tmp_path, ends, monkeypatch):
    """It knows two lanes; consensus does not notice, and nothing is said of it elsewhere."""
    edge, _ = ends
    known = hellos._malformed

    def as_before(hello):
        return f"node {hello.node_id} names no lane" if hello.lane == 3 else known(hello)

    async def scenario():
        monkeypatch.setattr(hellos, "_malformed", as_before)
        async with LoopbackCluster(tmp_path) as cluster:
            await cluster.commit(0, b"x")
            await cluster.until(lambda: {node for node, _ in edge.refusals} == {0, 1})
            assert not edge.links
            assert "names no lane" in edge.refusals[0][1]
            assert cluster.nodes[2].driver.book.refusals == {}
            monkeypatch.setattr(hellos, "_malformed", known)
            await cluster.until(lambda: len(edge.links) == 2)

    run(scenario)


def test_beyond_loopback_calls_are_passed_by_tls_alone(tmp_path, ends, monkeypatch):
    """Plain connections of the peers' network are refused at both ends, whatever they carry."""
    edge, takers = ends
    monkeypatch.setattr(
        PeerConnection, "is_private", property(lambda self: self.certified is not None)
    )

    async def scenario():
        async with LoopbackCluster(tmp_path) as cluster:
            await cluster.commit(0, b"x")
            await cluster.until(lambda: len(edge.refusals) >= 2)
            assert "by TLS alone" in edge.refusals[0][1]
            assert not edge.links
            assert not any(one.links for one in takers.values())

    run(scenario)


def test_what_is_private_is_certified_or_on_loopback():
    """A host by another address is neither."""
    for host, certified, private in (
        ("127.0.0.1", None, True),
        ("::1", None, True),
        ("10.0.0.1", None, False),
        ("10.0.0.1", 2, True),
        ("nonsense", None, False),
    ):

        class Of(PeerConnection):
            certified = None

            def __init__(self, host, certified):
                self.host, type(self).certified = host, certified

        assert Of(host, certified).is_private is private


def test_a_node_that_takes_no_calls_says_so(tmp_path, ends):
    """Tools that join consensus alone have nothing that would serve them."""
    edge, takers = ends

    async def scenario():
        async with LoopbackCluster(tmp_path, late=(2,)) as cluster:
            cluster.nodes[0].hub.forward.coordinator = None
            await cluster.nodes[2].start()
            await cluster.until(lambda: edge.links and edge.refusals)
            assert [link.node for link in edge.links] == [1]
            assert "takes no calls" in edge.refusals[0][1]
            assert not takers[0].links

    run(scenario)


def test_a_connection_that_fails_otherwise_is_no_refusal_and_is_dialled_again_soon(
    tmp_path, ends, monkeypatch
):
    """A node that is busy, or whose former connection is not gone yet, takes calls all the same."""
    edge, _ = ends
    judged = hellos.refusal

    def busy(identity, book, hello, own):
        return "a copy must not run" if hello.lane == 3 else judged(identity, book, hello, own)

    async def scenario():
        monkeypatch.setattr(hellos, "refusal", busy)
        async with LoopbackCluster(tmp_path) as cluster:
            await cluster.until(lambda: {node for node, _ in edge.failures} == {0, 1})
            assert not edge.refusals
            assert "a copy must not run" in edge.failures[0][1]
            monkeypatch.setattr(hellos, "refusal", judged)
            await cluster.until(lambda: len(edge.links) == 2)

    monkeypatch.setattr("tests.raft.test_forward_lane.FAST", TransportSettings())
    run(scenario)


def test_a_stranger_has_no_connection_for_calls(tmp_path, certified, ends):
    """Not with TLS and another authority's certificate, and not plainly where TLS is required."""
    _, takers = ends

    async def scenario():
        async with LoopbackCluster(tmp_path, tls=tls_of(certified)) as cluster:
            await cluster.until(lambda: takers[0].links)
            hub = cluster.nodes[0].hub
            links = list(takers[0].links)
            hello = cluster.nodes[2].driver.hello(3)
            plain = await asyncio.open_connection(*cluster.addresses[0])
            plain[1].write(MAGIC + framed(encode_hello(hello)))
            assert await plain[0].read() == b""
            plain[1].close()
            assert hub.counters["plain"] >= 1
            # A node cannot say that it is another one, either.
            context = contexts_of(certified, 1).client
            await said_to(cluster.addresses[0], context, MAGIC + framed(encode_hello(hello)))
            assert hub.counters["certificate"] >= 1
            assert takers[0].links == links

    run(scenario)
