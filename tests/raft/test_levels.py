"""Which levels hellos name, and which builds are turned away."""

import asyncio
from types import SimpleNamespace

import pytest

from muster.v1 import peer_pb2 as pb
from musterd.levels import LAST_UNNAMED, LEVEL
from musterd.raft import codec
from musterd.raft.identity import Identity
from musterd.raft.peer_levels import LEVELS_END, LevelError, Levels, PeerLevels, levels_of
from tests.raft.loopback import LoopbackCluster

IDENTITY = Identity("c", 1, b"1" * 16, 4, (1, 2, 3))


def hello(node, *levels):
    """One of a build of these levels; of the former build without."""
    known = [pb.StoreOf(node_id=1, store_uuid=b"1" * 16)]
    if levels:
        known.append(Levels(*levels).encode())
    return pb.Hello(cluster_id="c", node_id=node, known=known)


def test_a_hello_names_levels_in_no_field_that_the_former_build_lacks():
    """It hung up on unknown fields, and skipped stores of nodes that it does not have."""
    said = codec.decode_hello(codec.encode_hello(hello(2, 7, 6)))
    assert levels_of(said) == (7, 6)
    assert {field.name for field, _ in said.ListFields()} <= {"cluster_id", "node_id", "known"}
    assert all(len(one.store_uuid) == 16 for one in said.known)
    assert said.known[-1].node_id not in IDENTITY.nodes


def test_a_build_that_names_no_level_is_the_former_one():
    """So it is welcome until level 6 is finalised."""
    assert levels_of(hello(2)) == (LAST_UNNAMED, 0)
    assert Levels(LEVEL, 0).refusal(hello(2)) is None


def test_a_node_that_knows_less_than_the_cluster_is_turned_away_with_what_to_do():
    """The line names the node, both levels and the page."""
    assert Levels(6, 6).refusal(hello(2)) == (
        "node 2 knows levels up to 5, and the cluster is at level 6: install a release on it that "
        "knows this level (docs/levels.md)"
    )
    assert Levels(6, 6).refusal(hello(2, 6, 0)) is None


def test_a_node_turns_away_peers_whose_cluster_is_at_a_level_that_it_lacks():
    """It would read entries that it does not know."""
    assert Levels(6, 6).refusal(hello(2, 7, 7)) == (
        "node 2 says that the cluster is at level 7, and this node knows levels up to 6: install a "
        "release here that knows it (docs/levels.md)"
    )


def test_absurd_levels_are_refused_and_end_nobody():
    """One hello is not believed everything."""
    levels = PeerLevels(IDENTITY, 6)
    for node in (2, 3):
        said = hello(node, LEVELS_END, LEVELS_END)
        assert "which nobody has" in levels.own.refusal(said)
        levels.refused(said)


def test_a_build_ends_when_a_majority_is_beyond_it_and_not_at_one_word():
    """Two of three nodes; a node of another cluster does not count, nor one that says less now."""
    levels = PeerLevels(IDENTITY, 6)
    levels.refused(hello(2, 7, 7))
    levels.refused(hello(2, 7, 7))
    stranger = hello(3, 7, 7)
    stranger.cluster_id = "another"
    levels.refused(stranger)
    levels.refused(hello(2, 7, 6))
    levels.refused(hello(3, 7, 7))
    with pytest.raises(LevelError, match="the cluster is at level 7, and this build knows levels"):
        levels.refused(hello(2, 7, 7))


def test_peers_below_a_level_that_is_raised_are_named():
    """They are connected, or about to be, and have to go; others are judged by the next hello."""
    levels = PeerLevels(IDENTITY, 7)
    levels.meet(hello(2))
    assert levels.raise_active(6) == [2]
    assert levels.raise_active(6) == []
    assert levels.own == (7, 6)


def test_what_a_peer_said_counts_while_it_is_connected():
    """Else it may come back with the former build: nothing is finalised on its old word.

    Neither is it on that of a hello after which the connection never came to stand. A connection
    that another takes the place of ends after the hello of the new one.
    """
    levels = PeerLevels(IDENTITY, 6)
    levels.meet(hello(2, 6, 0))
    assert levels.nodes() == {1: 6, 2: 0, 3: 0}
    levels.connected(2)
    assert levels.nodes() == {1: 6, 2: 6, 3: 0}
    levels.meet(hello(2, 6, 0))
    levels.lost(2)
    assert levels.nodes() == {1: 6, 2: 0, 3: 0}
    levels.connected(2)
    assert levels.nodes() == {1: 6, 2: 6, 3: 0}


def test_nodes_that_are_connected_know_each_others_levels(tmp_path):
    """Also after a connection in place of another, whose end comes between hello and beginning."""

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1) as cluster:
            driver, other = cluster.nodes[0].driver, cluster.nodes[1].driver
            everybody = dict.fromkeys(range(3), LEVEL)
            await cluster.until(lambda: driver.levels.nodes() == everybody)
            assert driver.accept_hello(other.hello(pb.LANE_CONTROL)) is None
            driver.disconnected(1, control=True)
            assert driver.levels.nodes() == {**everybody, 1: 0}
            driver.connected(1)
            assert driver.levels.nodes() == everybody

    asyncio.run(scenario())


def test_a_level_that_is_raised_between_hello_and_verdict_turns_the_former_build_away(tmp_path):
    """Its hello was welcome, and there was no connection to hang up on yet."""

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1) as cluster:
            hub, refused = cluster.nodes[0].hub, []
            store = cluster.nodes[1].driver.identity.store_uuid
            await cluster.until(lambda: hub.driver.book.store_uuid(1) == store)
            offered = pb.Hello(node_id=1, store_uuid=store, lane=pb.LANE_CONTROL)
            hub.driver.raise_active_level(LEVEL)
            connection = SimpleNamespace(refuse=lambda key, why: refused.append((key, why)))
            hub.verdict_arrived(connection, offered, pb.Hello())
            [(key, why)] = refused
            assert key == "refused"
            assert why.startswith(f"node 1 knows levels up to {LAST_UNNAMED}, and the cluster is")

    asyncio.run(scenario())


def test_the_level_of_a_connection_is_that_of_its_own_hello(tmp_path):
    """The hello of a process that has ended may be read between the hello and the verdict."""

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1) as cluster:
            driver, other = cluster.nodes[0].driver, cluster.nodes[1].driver
            everybody = dict.fromkeys(range(3), LEVEL)
            await cluster.until(lambda: driver.levels.nodes() == everybody)
            offered, late = (other.hello(pb.LANE_CONTROL) for _ in range(2))
            late.known[-1].CopyFrom(Levels(LEVEL + 1, 0).encode())
            hub = cluster.nodes[0].hub
            [standing] = [
                connection
                for (node, lane), connection in hub._established.items()
                if (node, lane) == (1, pb.LANE_CONTROL)
            ]
            driver.disconnected(1, control=True)
            for hello_ in (offered, late):
                assert driver.accept_hello(hello_) is None
            hub._established.pop((1, pb.LANE_CONTROL))
            hub._establish(standing, offered)
            assert driver.levels.nodes() == everybody

    asyncio.run(scenario())
