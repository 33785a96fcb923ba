"""TLS between nodes: who is let in, what strangers may send, and the way there without a pause."""

import asyncio
import ssl
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from muster.v1 import peer_pb2 as pb
from musterd.coordinator.node.authority import Authority
from musterd.raft import codec
from musterd.raft.peer_connection import MAGIC, framed
from musterd.raft.peer_levels import LevelError, Levels
from musterd.raft.tls import (
    TEXT_MAX,
    PeerTls,
    PeerTlsError,
    PeerTlsMode,
    node_uri,
    read_contexts,
    short,
)
from tests.certificates import files_in, key_pem, signed, stranger_context
from tests.raft.loopback import LoopbackCluster

REQUIRE, PREFER, OFF = PeerTlsMode.REQUIRE, PeerTlsMode.PREFER, PeerTlsMode.OFF
PATIENCE_S = 20
CLUSTER = "loopback"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """The authority of the cluster "loopback", with certificates of its three nodes."""
    made = Authority.create(tmp_path_factory.mktemp("ca") / "certs", CLUSTER)
    for node in range(3):
        made.node(node, ["localhost"])
    return made


def contexts_of(authority, node):
    return read_contexts(files_in(authority._folder / f"node-{node}"))


def tls_of(authority, modes=None):
    """The PeerTls of each node, all with `require` or by `modes`."""

    def make(node):
        mode = modes[node] if modes else REQUIRE
        return PeerTls(mode, CLUSTER, None if mode is OFF else contexts_of(authority, node))

    return make


async def said_to(address, context, said=b""):
    """Connect as a stranger, say something; what is answered until the other side hangs up."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            reader, writer = await asyncio.open_connection(*address, ssl=context)
            writer.write(said)
            answer = await reader.read()
            writer.close()
        except OSError:
            return b""
        return answer


def ways(cluster):
    """How many standing connections have TLS, over all nodes."""
    return Counter(
        connection.certified is not None
        for node in cluster.nodes
        for connection in node.hub._established.values()
    )


async def connected(cluster):
    await cluster.until(lambda: sum(ways(cluster).values()) == 12)


def test_nodes_that_require_tls_talk_by_it_alone(tmp_path, authority):
    """Every connection is of the node in its certificate, and commits are applied everywhere."""

    async def scenario():
        async with LoopbackCluster(tmp_path, tls=tls_of(authority)) as cluster:
            await cluster.commit(0, b"x")
            await connected(cluster)
            for node in cluster.nodes:
                for (peer, _), connection in node.hub._established.items():
                    assert connection.certified == peer

    asyncio.run(scenario())


def test_a_node_is_known_by_the_name_of_its_pod(tmp_path, authority):
    """Its id stands at the end, as a StatefulSet names pods."""

    def of_pod(node):
        uri = f"muster://{CLUSTER}/node/muster-eu.a-{node}".encode()
        return PeerTls(
            REQUIRE, CLUSTER, read_contexts(signed(authority, tmp_path / f"pod-{node}", [uri]))
        )

    async def scenario():
        async with LoopbackCluster(tmp_path, tls=of_pod) as cluster:
            await cluster.commit(0, b"x")
            await connected(cluster)
            for node in cluster.nodes:
                for (peer, _), connection in node.hub._established.items():
                    assert connection.certified == peer

    asyncio.run(scenario())


def test_a_refusal_speaks_for_the_node_of_its_certificate_where_that_was_dialled(
    tmp_path, authority
):
    """One node's certificate cannot say that a majority is at a level that another node lacks."""

    async def scenario():
        async with LoopbackCluster(tmp_path, tls=tls_of(authority)) as cluster:
            hub, reasons = cluster.nodes[0].hub, []
            levels = hub.driver.levels
            later = Levels(levels.own.known + 1, levels.own.known + 1)

            def arrives(dialled, certified, claimed):
                hello = pb.Hello(
                    cluster_id=hub.driver.identity.cluster_id,
                    node_id=claimed,
                    refused="no",
                    known=[later.encode()],
                )
                connection = SimpleNamespace(
                    dialled=(dialled, pb.LANE_CONTROL),
                    certified=certified,
                    refuse=lambda key, _: reasons.append(key),
                )
                hub.hello_arrived(connection, hello)

            arrives(1, 1, 1)
            for dialled, claimed in ((1, 2), (2, 2)):
                arrives(dialled, 1, claimed)
            arrives(1, 2, 2)  # certificate and claim agree, and another node was dialled
            assert reasons == ["refused_by_peer", "certificate", "certificate", "refused_by_peer"]
            with pytest.raises(LevelError):
                arrives(2, 2, 2)

    asyncio.run(scenario())


def test_a_frame_of_many_records_arrives_by_tls(tmp_path, authority):
    """What is read at a time begins and ends anywhere in them."""

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1, tls=tls_of(authority)) as cluster:
            entry = bytes(range(256)) * 2500
            await cluster.commit(0, entry)
            await cluster.until(
                lambda: all(cluster.applied(number, 0) == [entry] for number in range(3))
            )

    asyncio.run(scenario())


NOT_TAKEN = {
    "a client": ([f"muster://{CLUSTER}/client/billing".encode()], {}, "which is no node"),
    "another cluster": ([b"muster://other/node/1"], {}, "of cluster 'other'"),
    "no name": ([], {}, "0 names of the form"),
    "two names": (
        [node_uri(CLUSTER, 1).encode(), node_uri(CLUSTER, 2).encode()],
        {},
        "2 names of the form",
    ),
    "a number that is none": ([f"muster://{CLUSTER}/node/+1".encode()], {}, "which is no node"),
    "no name before the number": (
        [f"muster://{CLUSTER}/node/-1".encode()],
        {},
        "which is no node",
    ),
    "a pod of another cluster": ([b"muster://other/node/muster-1"], {}, "of cluster 'other'"),
    "a pod without a number": (
        [f"muster://{CLUSTER}/node/muster-1-a".encode()],
        {},
        "which is no node",
    ),
    "expired": (
        [node_uri(CLUSTER, 1).encode()],
        {"begins_days": -3, "ends_days": -1},
        "certificate has expired",
    ),
    "not yet valid": (
        [node_uri(CLUSTER, 1).encode()],
        {"begins_days": 1, "ends_days": 2},
        "certificate is not yet valid",
    ),
    "a byte that is no text": ([b"muster://loopback/node/\xff\xfe"], {}, "no text"),
    "a name of 60 KB": ([b"muster://" + b"a" * 60_000 + b"/node/1"], {}, "of cluster 'aaa"),
    "a terminal's orders": ([b"muster://other\x1b[2J\n/node/1"], {}, "of cluster"),
}


@pytest.mark.parametrize("name", list(NOT_TAKEN))
def test_a_certificate_of_the_authority_that_is_no_node_s_is_refused_in_a_short_line(
    tmp_path, authority, name
):
    """Nothing that it says is read, the reason is kept, and the cluster goes on."""
    uris, times, reason = NOT_TAKEN[name]
    files = signed(authority, tmp_path / "signed", uris, **times)

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1, tls=tls_of(authority)) as cluster:
            await cluster.commit(0, b"before")
            hub = cluster.nodes[0].hub
            assert await said_to(cluster.addresses[0], stranger_context(files), MAGIC) == b""
            await cluster.until(lambda: hub.counters["certificate"] == 1)
            (line,) = cluster.nodes[0].driver.book.refusals.values()
            assert reason in line
            assert len(line) <= TEXT_MAX
            assert line.isprintable()
            await cluster.commit(0, b"after")

    asyncio.run(scenario())


def test_a_certificate_of_another_authority_is_refused(tmp_path, authority):
    """Whatever it says."""
    other = Authority.create(tmp_path / "other", CLUSTER)
    files = files_in(other.node(1, ["localhost"]).folder)

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1, tls=tls_of(authority)) as cluster:
            hub = cluster.nodes[0].hub
            assert await said_to(cluster.addresses[0], stranger_context(files), MAGIC) == b""
            await cluster.until(lambda: hub.counters["certificate"] == 1)
            assert await said_to(cluster.addresses[0], None, MAGIC) == b""
            assert hub.counters["plain"] == 1
            await cluster.commit(0, b"after")

    asyncio.run(scenario())


def test_a_node_cannot_say_that_it_is_another_one(tmp_path, authority):
    """Its hello names node 1, its certificate node 2."""
    files = files_in(authority._folder / "node-2")

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1, tls=tls_of(authority)) as cluster:
            await cluster.commit(0, b"before")
            said = cluster.nodes[1].driver.hello(pb.LANE_CONTROL)
            said.run_id = b"another process."
            hello = MAGIC + framed(codec.encode_hello(said))
            assert await said_to(cluster.addresses[0], stranger_context(files), hello) == b""
            hub, book = cluster.nodes[0].hub, cluster.nodes[0].driver.book
            assert hub.counters["certificate"] == 1
            assert "node 1 shows the certificate of node 2" in book.refusals.values()
            await cluster.commit(0, b"after")

    asyncio.run(scenario())


def test_a_node_that_answers_where_another_was_dialled_hears_no_hello(tmp_path, authority):
    """Node 1's port leads to a server with node 2's certificate."""

    async def scenario():
        heard = []

        async def answer(reader, writer):
            heard.append(await reader.read())
            writer.close()

        context = contexts_of(authority, 2).server
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        cluster = LoopbackCluster(tmp_path, shards=1, tls=tls_of(authority), late=(1, 2))
        cluster.addresses[1] = server.sockets[0].getsockname()
        async with server, cluster:
            book = cluster.nodes[0].driver.book
            await cluster.until(lambda: "node 1" in book.refusals)
            assert "is of node 2: check the peers" in book.refusals["node 1"]
            await cluster.until(lambda: heard)
            assert not any(heard)

    asyncio.run(scenario())


@pytest.mark.parametrize("who", ["a node", "a client"])
def test_the_end_of_a_session_ends_the_connection(tmp_path, authority, who):
    """One close_notify once held the loop for ever: OpenSSL says the end again each time."""
    made = authority.client("ending")
    files = files_in(made.folder if who == "a client" else authority._folder / "node-1")

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1, tls=tls_of(authority)) as cluster:
            await cluster.commit(0, b"before")
            hub = cluster.nodes[0].hub
            tls, incoming, outgoing = session_of(files)
            reader, writer = await asyncio.open_connection(*cluster.addresses[0])
            async with asyncio.timeout(PATIENCE_S):
                while not shaken(tls):
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(65536))
                with pytest.raises(ssl.SSLWantReadError):
                    tls.unwrap()
                writer.write(outgoing.read())
                await reader.read()
                writer.close()
            reason = "certificate" if who == "a client" else "tls_ended"
            assert hub.counters[reason] == 1
            await cluster.commit(0, b"after")

    asyncio.run(scenario())


def session_of(files):
    """A stranger's session and its two ends."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return stranger_context(files).wrap_bio(incoming, outgoing), incoming, outgoing


def shaken(tls):
    """Whether its handshake is over."""
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def test_what_a_stranger_sends_behind_its_handshake_is_not_read(authority):
    """It is judged by its certificate first: key updates cost nothing."""
    files = files_in(authority.client("sending").folder)
    node = PeerTls(REQUIRE, CLUSTER, contexts_of(authority, 0)).session(dials=False)
    tls, incoming, outgoing = session_of(files)
    while not shaken(tls):
        assert node.receive(outgoing.read()) == b""
        incoming.write(node.outgoing())
    tls.write(MAGIC)
    behind = outgoing.read()
    with pytest.raises(PeerTlsError, match="which is no node"):
        node.receive(behind)
    assert node._in.pending > len(MAGIC), "its record is still there"
    assert node.node is None


def test_a_stranger_sends_64_kib_at_most(tmp_path, authority):
    """A first message that never ends is cut off, and nothing of it is kept."""
    size = 100_000
    message = b"\x01" + size.to_bytes(3, "big") + bytes(size)
    parts = [message[at : at + 16_000] for at in range(0, len(message), 16_000)]
    said = b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1, tls=tls_of(authority)) as cluster:
            hub = cluster.nodes[0].hub
            await said_to(cluster.addresses[0], None, said)
            assert hub.counters["too_long"] == 1
            await cluster.commit(0, b"after")

    asyncio.run(scenario())


def test_idle_connections_keep_no_node_from_its_peers(tmp_path, authority):
    """Those that it dials do not count, and of too many the oldest of that host is closed."""

    async def scenario():
        cluster = LoopbackCluster(tmp_path, shards=1, tls=tls_of(authority), late=(1, 2))
        async with cluster:
            hub = cluster.nodes[0].hub
            idle = [
                await asyncio.open_connection(*cluster.addresses[0])
                for _ in range(hub.settings.strangers_max + 1)
            ]
            await cluster.until(lambda: hub.counters["too_many_strangers"] == 1)
            assert await idle[0][0].read() == b"", "the oldest"
            for node in cluster.nodes[1:]:
                await node.start()
            await connected(cluster)
            for _, writer in idle:
                writer.close()

    asyncio.run(scenario())


def test_an_idle_connection_of_another_host_outlives_many_of_one(tmp_path, authority):
    """127.0.0.2 has one, which is the oldest of all."""

    async def scenario():
        cluster = LoopbackCluster(tmp_path, shards=1, tls=tls_of(authority), late=(1, 2))
        async with cluster:
            hub = cluster.nodes[0].hub
            other = await asyncio.open_connection(
                *cluster.addresses[0], local_addr=("127.0.0.2", 0)
            )
            idle = [
                await asyncio.open_connection(*cluster.addresses[0])
                for _ in range(hub.settings.strangers_max)
            ]
            await cluster.until(lambda: hub.counters["too_many_strangers"] == 1)
            hosts = [one.host for one in hub._strangers if one.dialled is None]
            assert "127.0.0.2" in hosts
            for _, writer in (other, *idle):
                writer.close()

    asyncio.run(scenario())


STEPS = [
    (OFF, OFF, OFF),
    (PREFER, OFF, OFF),
    (PREFER, PREFER, OFF),
    (PREFER, PREFER, PREFER),
    (REQUIRE, PREFER, PREFER),
    (REQUIRE, REQUIRE, PREFER),
    (REQUIRE, REQUIRE, REQUIRE),
]


@pytest.mark.parametrize("back", [False, True], ids=["to TLS", "back"])
def test_a_cluster_comes_to_tls_one_restart_at_a_time(tmp_path, authority, back):
    """After each restart all nodes are connected: by TLS where both speak it; nothing is lost."""
    steps = STEPS[::-1] if back else STEPS

    async def scenario():
        now = list(steps[0])
        async with LoopbackCluster(tmp_path, shards=1, tls=tls_of(authority, now)) as cluster:
            await cluster.commit(0, b"0")
            for number, modes in enumerate(steps[1:], 1):
                changed = next(node for node in range(3) if now[node] is not modes[node])
                now[:] = modes
                await cluster.nodes[changed].stop()
                await cluster.nodes[changed].start()
                await connected(cluster)
                plain = sum(OFF in {now[node], now[peer]} for node in range(3) for peer in range(3))
                own = sum(one is OFF for one in now)
                assert ways(cluster)[False] == 2 * (plain - own)
                await cluster.commit(0, b"%d" % number)
            entries = [b"%d" % number for number in range(len(steps))]
            await cluster.until(
                lambda: all(cluster.applied(node, 0) == entries for node in range(3))
            )

    asyncio.run(scenario())


def test_an_authority_is_changed_one_node_at_a_time_without_a_restart(tmp_path, authority):
    """Nodes trust both, then show the new one's, then trust it alone; no connection breaks."""
    later = Authority.create(tmp_path / "later", CLUSTER)
    for node in range(3):
        later.node(node, ["localhost"])
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join((one._folder / "ca.pem").read_bytes() for one in (authority, later)))

    def files(node, step):
        first, last = (files_in(one._folder / f"node-{node}") for one in (authority, later))
        shown = first if step == 0 else last
        return type(shown)(shown.cert, shown.key, last.ca if step == 2 else both)

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1, tls=tls_of(authority)) as cluster:
            await connected(cluster)
            for step in range(3):
                for node in cluster.nodes:
                    standing = set(node.hub._established.values())
                    node.hub.tls.contexts = read_contexts(files(node.number, step))
                    assert set(node.hub._established.values()) == standing
                    for peer in node.driver.identity.peers:  # and once more with these
                        node.hub.hang_up(peer)
                    await cluster.until(
                        lambda s=standing, n=node: not s & set(n.hub._established.values())
                    )
                    await connected(cluster)
            assert all(node.hub.counters["certificate"] == 0 for node in cluster.nodes)
            old = files_in(authority._folder / "node-1")
            await said_to(cluster.addresses[0], stranger_context(old), MAGIC)
            await cluster.until(lambda: cluster.nodes[0].hub.counters["certificate"] == 1)

    asyncio.run(scenario())


def test_a_handshake_ends_by_the_certificates_with_which_it_began(tmp_path, authority):
    """Those that are read while it runs are for the next one, which refuses the old authority's."""
    later = Authority.create(tmp_path / "later", CLUSTER)
    later.node(0, ["localhost"])
    node = PeerTls(REQUIRE, CLUSTER, contexts_of(authority, 0))
    called, dialling = node.session(dials=False), node.session(dials=True)
    node.contexts = contexts_of(later, 0)
    refusing = node.session(dials=False)
    for session in (called, refusing):
        tls, incoming, outgoing = session_of(files_in(authority._folder / "node-1"))
        error = None
        while error is None and session.node is None:
            shaken(tls)
            try:
                assert session.receive(outgoing.read()) == b""
            except PeerTlsError as one:
                error = one
            incoming.write(session.outgoing())
        assert session.node == (1 if session is called else None)
        assert (error is None) is (session is called)
    other = PeerTls(REQUIRE, CLUSTER, contexts_of(authority, 1)).session(dials=False)
    dialling.shake_hands()
    while other.node is None:
        other.receive(dialling.outgoing())
        dialling.receive(other.outgoing())
    assert (dialling.node, other.node) == (1, 0)


@pytest.mark.parametrize("whole", [False, True], ids=["half a handshake", "no hello behind it"])
def test_who_stops_within_its_handshake_is_hung_up_on(tmp_path, authority, whole):
    """Also with a node's certificate, and the other nodes are connected meanwhile."""
    files = files_in(authority._folder / "node-1")

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1, tls=tls_of(authority)) as cluster:
            hub = cluster.nodes[0].hub
            hub.settings = replace(hub.settings, hello_timeout_ms=200)
            tls, incoming, outgoing = session_of(files)
            reader, writer = await asyncio.open_connection(*cluster.addresses[0])
            async with asyncio.timeout(PATIENCE_S):
                shaken(tls)
                said = outgoing.read()
                writer.write(said if whole else said[: len(said) // 2])
                while whole and not shaken(tls):
                    incoming.write(await reader.read(65536))
                if whole:
                    writer.write(outgoing.read())
                while await reader.read(65536):
                    pass
                writer.close()
            assert hub.counters["no_hello"] == 1
            await connected(cluster)
            await cluster.commit(0, b"after")

    asyncio.run(scenario())


def test_a_silent_place_where_a_node_is_dialled_is_left_and_dialled_again(tmp_path, authority):
    """It takes the connection, and says nothing to the handshake."""

    async def scenario():
        async def answer(reader, writer):
            await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        cluster = LoopbackCluster(tmp_path, shards=1, tls=tls_of(authority), late=(0, 1, 2))
        cluster.addresses[1] = server.sockets[0].getsockname()
        async with server, cluster:
            await cluster.nodes[0].start()
            hub = cluster.nodes[0].hub
            hub.settings = replace(hub.settings, hello_timeout_ms=100)
            await cluster.until(lambda: hub.counters["no_hello"] >= 4)
            assert "did not say who it is" in cluster.nodes[0].driver.book.refusals["node 1"]

    asyncio.run(scenario())


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(tmp_path, authority):
    """OpenSSL would ask on the terminal, and the node would stand."""
    files = files_in(authority.client("locked").folder)
    files.key.write_bytes(key_pem(ec.generate_private_key(ec.SECP256R1()), b"secret"))
    with pytest.raises(ValueError, match="has a passphrase"):
        read_contexts(files)


def test_a_reason_is_one_line_of_300_characters():
    """Whatever a stranger sent."""
    assert short("a" * TEXT_MAX) == "a" * TEXT_MAX
    assert len(short("a" * 100_000)) == TEXT_MAX
    assert short("a\n\x1b[2Jb") == "a??[2Jb"


def test_a_node_without_tls_says_so_where_it_is_spoken_to(tmp_path, authority):
    """The reason names the setting."""
    files = files_in(authority._folder / "node-1")

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1) as cluster:
            await said_to(cluster.addresses[0], stranger_context(files), MAGIC)
            (line,) = cluster.nodes[0].driver.book.refusals.values()
            assert "it speaks TLS, and peer_tls is off here" in line

    asyncio.run(scenario())
