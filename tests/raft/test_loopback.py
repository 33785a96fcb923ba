"""Three real nodes on loopback: RocksDB, sockets, the sync thread."""

import asyncio

from tests.raft.loopback import LoopbackCluster


def test_three_real_nodes_elect_commit_and_survive_the_loss_of_one(tmp_path):
    """Every acknowledged entry of every shard is on all nodes, also on the one that was away."""

    async def scenario():
        async with LoopbackCluster(tmp_path) as cluster:
            sent = {shard: [b"%d-%d" % (shard, i) for i in range(20)] for shard in range(4)}
            for shard, entries in sent.items():
                for entry in entries:
                    await cluster.commit(shard, entry)
            lost = cluster.leader(1)
            await lost.stop()
            for shard, entries in sent.items():
                entry = b"%d-late" % shard
                await cluster.commit(shard, entry)
                entries.append(entry)
            await lost.start()
            await cluster.until(
                lambda: all(
                    cluster.applied(n, shard) == entries
                    for n in cluster.ids
                    for shard, entries in sent.items()
                )
            )
            assert lost.driver.book.endpoints != {}

    asyncio.run(scenario())


def test_draining_hands_all_leadership_over(tmp_path):
    """A node that is told to stop leads nothing soon, and proposals are redirected meanwhile."""

    async def scenario():
        async with LoopbackCluster(tmp_path) as cluster:
            for shard in range(4):
                await cluster.propose(shard, b"x")
            leaving = cluster.leader(0)
            leaving.driver.drain()
            await cluster.until(lambda: not leaving.driver.led())
            for shard in range(4):
                await cluster.commit(shard, b"y")
            assert not leaving.driver.led()

    asyncio.run(scenario())


def test_what_a_socket_brings_has_its_turn_in_the_same_pass_of_the_loop(tmp_path):
    """A follower writes an entry before it looks at its sockets again."""

    async def scenario():
        async with LoopbackCluster(tmp_path, shards=1) as cluster:
            await cluster.commit(0, b"first")
            leader = cluster.leader(0)
            followed = {node.number: 0 for node in cluster.nodes if node is not leader}

            def count(node):
                deliver, stats = node.hub.deliver, node.driver.stats

                def counted(arrived):
                    before = stats.turns
                    deliver(arrived)
                    followed[node.number] += stats.turns - before

                node.hub.deliver = counted

            for node in cluster.nodes:
                if node is not leader:
                    count(node)
            for number in range(10):
                await cluster.commit(0, b"%d" % number)
            await cluster.until(lambda: all(followed.values()))

    asyncio.run(scenario())
