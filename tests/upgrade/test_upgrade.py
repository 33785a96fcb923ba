"""A cluster is upgraded while it runs: each order of its nodes, under load and kills, and back.

Two pairs of builds: the former release with today's, and today's with one of a level above it that
changes an outcome, an entry, a record and a frame. What was acknowledged is there, no group
rebalances, and all nodes hold the same. How long no commit was acknowledged is printed, and has a
bound: `--quiet-machine` has the one that is promised, and without it only an outage is refused.
"""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

import pytest

from muster.v1 import admin_pb2 as admin
from musterd.coordinator.node.launcher import Cluster
from musterd.levels import LAST_UNNAMED, LEVEL
from tests.e2e.bare import Member, Router, read
from tests.upgrade import builds
from tests.upgrade.conftest import FIGURES

pytestmark = [pytest.mark.upgrade, pytest.mark.processes, pytest.mark.timeout(600)]

SHARDS = 4
GROUPS = ("a", "b", "c")
MEMBERS = 2
WAIT_S = 60
ORDERS = ["".join(map(str, order)) for order in itertools.permutations(range(3))]
PAIRS = ("former", "next")
LEVELS = {"former": (LAST_UNNAMED, LEVEL), "next": (LEVEL, LEVEL + 1)}
PROMISED_S = 0.5
"""So long may no commit of a group be acknowledged while a node is upgraded, on a quiet machine."""
OUTAGE_S = 10.0
"""The members' session timeout: only where a shard is not served does a commit take so long.

On two cores with 26 processes that want them it was 3 s at most.
"""


class Silence:
    """How long the members of one group, or all, had no commit acknowledged."""

    def __init__(self, members):
        self._members = members
        self._seen, self._since_s = 0, time.monotonic()
        self.longest_s = 0.0

    def look(self):
        """Called often."""
        now_s = time.monotonic()
        self.longest_s = max(self.longest_s, now_s - self._since_s)
        acknowledged = sum(member.acknowledged for member in self._members)
        if acknowledged != self._seen:
            self._seen, self._since_s = acknowledged, now_s


class Load:
    """Members of some groups that commit 1, 2, 3, ..., and how long none was acknowledged."""

    def __init__(self, cluster):
        self.router = Router([node.endpoint for node in cluster.nodes.values()])
        self.generations = {group: {} for group in GROUPS}
        self.members = [
            Member(self.router, group, "t", number, self.generations[group])
            for group in GROUPS
            for number in range(MEMBERS)
        ]
        self._tasks = []
        self._silences = []
        self.upgrades = []
        """Of each change of a node's build: (what, longest s of all groups, of one group)."""

    async def start(self, cluster):
        """Make the topic and wait until each member commits."""
        await topic(self.router, cluster, "t")
        self._tasks = [asyncio.create_task(member.work()) for member in self.members]
        await self.progress()
        await asyncio.sleep(0)
        self.formed = {group: max(self.generations[group]) for group in GROUPS}
        self._tasks.append(asyncio.create_task(self._watch()))

    async def _watch(self):
        while True:
            for silence in self._silences:
                silence.look()
            await asyncio.sleep(0.005)

    @contextlib.contextmanager
    def measured(self, what):
        """Note how long no commit was acknowledged inside of the block."""
        of_groups = [[m for m in self.members if m.group == group] for group in GROUPS]
        self._silences = [Silence(members) for members in (self.members, *of_groups)]
        yield
        longest_s, *of_groups_s = (silence.longest_s for silence in self._silences)
        self.upgrades.append((what, round(longest_s, 3), round(max(of_groups_s), 3)))

    async def progress(self):
        """Wait until each member has had three more commits acknowledged."""
        goals = [member.acknowledged + 3 for member in self.members]
        async with asyncio.timeout(WAIT_S):
            while any(m.acknowledged < g for m, g in zip(self.members, goals, strict=True)):
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    async def end(self):
        """Return how many acknowledged commits are lost, and rebalances since the start."""
        for member in self.members:
            member.stopping = True
        *working, watch = self._tasks
        await asyncio.gather(*working)
        watch.cancel()
        lost = 0
        for member in self.members:
            value = await read(self.router, member.group, "t", member.number)
            assert value <= member.attempted
            lost += max(0, member.acknowledged - value)
        rebalances = sum(max(self.generations[g]) - self.formed[g] for g in GROUPS)
        await self.router.close()
        return lost, rebalances


async def topic(router, cluster, name):
    """Create a topic, at whoever leads shard 0."""
    async with asyncio.timeout(WAIT_S):
        for endpoint in itertools.cycle(node.endpoint for node in cluster.nodes.values()):
            request = admin.CreateTopicRequest(name=name, partitions=MEMBERS)
            answer = await router.topics[endpoint].CreateTopic(request, wait_for_ready=True)
            if answer.status.code == 0:
                break
        for stub in router.topics.values():
            while name not in {
                one.name for one in (await stub.ListTopics(admin.ListTopicsRequest())).topics
            }:
                await asyncio.sleep(0.02)


def muster(cluster, *args):
    """Run today's command."""
    environment = {**os.environ, "MUSTER_BOOTSTRAP": cluster.bootstrap}
    command = [sys.executable, "-P", "-m", "muster.cli", *args]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, timeout=WAIT_S
    )


def level(cluster):
    """(level of the cluster, level of each node)."""
    said = json.loads(muster(cluster, "cluster", "upgrade", "-o", "json").stdout)
    return said["level_before"], [node["level"] for node in said["nodes"]]


async def change(cluster, load, kit, node, build, *, kill):
    """Stop a node, give it another build, start it, and wait until all is well."""
    with load.measured(f"{node} killed" if kill else f"{node} stopped"):
        if kill:
            await asyncio.to_thread(cluster.kill, node)
        else:
            await asyncio.to_thread(cluster.stop, node)
        await load.progress()
        kit.of[node] = build
        cluster.start(node)
        async with asyncio.timeout(WAIT_S):
            await load.router.wait_ready()
        await load.progress()


def make(tmp_path, old):
    """A cluster of three whose nodes were made by the old build."""
    kit = builds.Builds(old)
    cluster = Cluster(
        tmp_path / "cluster", nodes=3, shards=SHARDS, equipment=(kit,), name="upgraded"
    )
    for node in cluster.nodes.values():
        builds.init(old, node.data_dir, node.node_id, [0, 1, 2], SHARDS)
    return cluster, kit


async def finalise(cluster, load, before, after):
    """Go to the new level, and wait until it is everywhere."""
    assert await asyncio.to_thread(level, cluster) == (before, [after] * 3)
    with load.measured("finalised"):
        ran = await asyncio.to_thread(muster, cluster, "cluster", "upgrade", "--finalize", "--yes")
        assert ran.returncode == 0, ran.stderr
        assert (await asyncio.to_thread(level, cluster))[0] == after
        await load.progress()
    await topic(load.router, cluster, "later")


@dataclass(frozen=True)
class Course:
    """An upgrade as it went."""

    upgrade: str
    lost: int
    rebalances: int
    upgrades: list[tuple[str, float, float]]
    """See Load."""

    @property
    def longest_s(self):
        """Of one group, which is never shorter than of all."""
        return max(longest_s for _, _, longest_s in self.upgrades)


@pytest.fixture
def judge(record_property, request):
    """Have an upgrade's figures printed, and refuse what must not be."""
    longest_s = PROMISED_S if request.config.getoption("--quiet-machine") else OUTAGE_S

    def say(course):
        said = {**asdict(course), "longest_s": course.longest_s}
        record_property(FIGURES, json.dumps(said))
        assert (course.lost, course.rebalances) == (0, 0)
        assert course.longest_s <= longest_s

    return say


@pytest.mark.parametrize("name", [f"{pair}-{order}" for pair in PAIRS for order in ORDERS])
def test_nodes_are_upgraded_in_any_order_under_load_and_kills(tmp_path, trees, name, judge):
    """One by one, the first put back and upgraded again, then finalised, and one killed again."""
    pair, order = name.split("-")
    old, new = trees[pair]
    before, after = LEVELS[pair]
    first, second, third = map(int, order)

    async def run(cluster, kit):
        load = Load(cluster)
        await load.start(cluster)
        await change(cluster, load, kit, first, new, kill=False)
        await change(cluster, load, kit, second, new, kill=True)
        await change(cluster, load, kit, first, old, kill=True)
        await change(cluster, load, kit, third, new, kill=False)
        await change(cluster, load, kit, first, new, kill=True)
        await finalise(cluster, load, before, after)
        await change(cluster, load, kit, third, new, kill=True)
        return Course(name, *await load.end(), load.upgrades)

    cluster, kit = make(tmp_path, old)
    with cluster:
        cluster.wait_ready()
        course = asyncio.run(run(cluster, kit))
        verified = muster(cluster, "cluster", "verify")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        cluster.stop(first)
        kit.of[first] = old
        cluster.start(first)
        assert cluster.nodes[first].started.wait(WAIT_S) != 0  # its data is of a later level
        cluster.reap(first)
    judge(course)


@pytest.mark.upgrade(weight=2)
@pytest.mark.parametrize("name", PAIRS)
def test_a_cluster_goes_back_before_it_is_finalised_and_an_old_copy_is_turned_away_after(
    tmp_path, trees, name, judge
):
    """All nodes new, all old again, all new; then an old copy of a node's data comes back."""
    old, new = trees[name]
    before, after = LEVELS[name]

    async def run(cluster, kit):
        load = Load(cluster)
        await load.start(cluster)
        for build in (new, old, new):
            for node in (2, 0, 1):
                await change(cluster, load, kit, node, build, kill=node == 0)
            if build is old:
                await asyncio.to_thread(cluster.stop, 1)
                shutil.copytree(cluster.nodes[1].data_dir, tmp_path / "copy")
                cluster.start(1)
                await load.router.wait_ready()
        await finalise(cluster, load, before, after)
        return Course(f"{name} back and forth", *await load.end(), load.upgrades)

    cluster, kit = make(tmp_path, old)
    with cluster:
        cluster.wait_ready()
        course = asyncio.run(run(cluster, kit))
        cluster.stop(1)
        shutil.rmtree(cluster.nodes[1].data_dir)
        shutil.copytree(tmp_path / "copy", cluster.nodes[1].data_dir)
        kit.of[1] = old
        at = len(cluster.nodes[1].log_path.read_text())
        cluster.start(1)
        asyncio.run(_turned_away(cluster, at, before, after, ends=name == "next"))
    judge(course)


async def _turned_away(cluster, at, before, after, *, ends):
    """The others say why, the node says it too, and ends where its build knows of levels."""
    node = cluster.nodes[1]
    sentence = f"node 1 knows levels up to {before}, and the cluster is at level {after}"
    async with asyncio.timeout(WAIT_S):
        if ends:
            while node.running:
                await asyncio.sleep(0.05)
            told = f"the cluster is at level {after}, and this build knows levels up to {before}"
            assert told in node.log_path.read_text()[at:]
            assert cluster.reap(1) != 0
            return
        while sentence not in node.log_path.read_text()[at:]:
            await asyncio.sleep(0.05)
        for other in (0, 2):
            while sentence not in cluster.nodes[other].log_path.read_text():
                await asyncio.sleep(0.05)
        assert node.running
