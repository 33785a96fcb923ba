"""Data directories that released builds left are opened, served and upgraded by today's."""

import asyncio
import json
import os
import subprocess
import sys
import tarfile

import pytest

from muster.v1 import admin_pb2 as admin
from musterd.levels import LAST_UNNAMED, LEVEL
from tests.e2e.bare import Router, read
from tests.upgrade import builds, kept

pytestmark = [pytest.mark.processes, pytest.mark.faults]


def muster(cluster, *args):
    """What today's command says."""
    environment = {**os.environ, "MUSTER_BOOTSTRAP": cluster.bootstrap}
    command = [sys.executable, "-P", "-m", "muster.cli", *args, "-o", "json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout)


async def held(cluster):
    """The topics, and what each group has committed."""
    endpoint = cluster.nodes[0].endpoint
    router = Router([endpoint])
    topics = (await router.topics[endpoint].ListTopics(admin.ListTopicsRequest())).topics
    offsets = {
        group: [await read(router, group, "t", partition) for partition in range(len(offsets))]
        for group, offsets in kept.COMMITTED.items()
    }
    await router.close()
    return {topic.name: topic.partitions for topic in topics}, offsets


def test_a_directory_of_the_last_release_without_levels_is_opened_and_upgraded(tmp_path):
    """It stays at level 5 until the level is finalised, and holds the same after it."""
    cluster = kept.node(tmp_path / "cluster", builds.ROOT)
    data_dir = cluster.nodes[0].data_dir
    with tarfile.open(kept.FILE) as archive:
        archive.extractall(data_dir.parent, filter="data")
    (data_dir.parent / "node-0").rename(data_dir)
    left = ({"t": kept.MEMBERS}, kept.COMMITTED)
    with cluster:
        cluster.wait_ready()
        assert asyncio.run(held(cluster)) == left
        assert muster(cluster, "cluster", "upgrade")["level_before"] == LAST_UNNAMED
        cluster.kill(0)
        cluster.start(0)
        cluster.wait_ready()
        assert asyncio.run(held(cluster)) == left
        muster(cluster, "cluster", "upgrade", "--finalize", "--yes")
        cluster.kill(0)
        cluster.start(0)
        cluster.wait_ready()
        assert muster(cluster, "cluster", "upgrade")["level_before"] == LEVEL
        assert asyncio.run(held(cluster)) == left
