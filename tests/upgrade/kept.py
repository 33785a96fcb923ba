"""`python -m tests.upgrade.kept`: makes the data directory of the former release that is kept.

One node of four shards on which a group of two committed and left, a topic was deleted, and a group
of no members has an offset; `tests/testdata/stores/level-5.tar.gz` holds it as a kill -9 left it.
"""

import asyncio
import itertools
import tarfile
import tempfile
from pathlib import Path

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from musterd.coordinator.node.launcher import Cluster
from tests.e2e.bare import Member, Router
from tests.upgrade import builds

FILE = builds.ROOT / "tests" / "testdata" / "stores" / "level-5.tar.gz"
NAME, SHARDS, MEMBERS = "kept", 4, 2
COMMITTED = {"members": [20, 20], "simple": [7]}
"""What each group has committed, by partition of `t`."""


def node(folder: Path, build: Path) -> Cluster:
    """A cluster of the one node, which runs that build; its data may be there already."""
    kit = builds.Builds(build)
    return Cluster(folder, nodes=1, shards=SHARDS, equipment=(kit,), name=NAME)


async def _fill(cluster: Cluster) -> None:
    endpoint = cluster.nodes[0].endpoint
    router = Router([endpoint])
    topics = router.topics[endpoint]
    for name in ("t", "gone"):
        made = await topics.CreateTopic(admin.CreateTopicRequest(name=name, partitions=MEMBERS))
        assert made.status.code == 0, made
    simple = pb.OffsetCommitRequest.Partition(topic="t", partition=0, offset=COMMITTED["simple"][0])
    request = pb.OffsetCommitRequest(group_id="simple", generation=-1, partitions=[simple])
    done = await router.call("OffsetCommit", "simple", request)
    assert done.status.code == 0, done
    assert (await topics.DeleteTopic(admin.DeleteTopicRequest(name="gone"))).status.code == 0
    generations: dict[int, set[frozenset[str]]] = {}
    members = [Member(router, "members", "t", number, generations) for number in range(MEMBERS)]
    await asyncio.gather(*(member.join() for member in members))
    for member, offset in itertools.product(members, range(1, COMMITTED["members"][0] + 1)):
        await member._commit(offset)
    for member in members:
        await member.leave()
    await router.close()


def _main() -> None:
    with tempfile.TemporaryDirectory() as name:
        former = builds.former(Path(name) / "former")
        cluster = node(Path(name) / "cluster", former)
        builds.init(former, cluster.nodes[0].data_dir, 0, [0], SHARDS, NAME)
        with cluster:
            cluster.wait_ready()
            asyncio.run(_fill(cluster))
            cluster.kill(0)
            FILE.parent.mkdir(exist_ok=True)
            with tarfile.open(FILE, "w:gz") as archive:
                archive.add(cluster.nodes[0].data_dir, "node-0")


if __name__ == "__main__":
    _main()
