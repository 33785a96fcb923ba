"""Real processes: nodes and a client come to another authority by changes of files alone."""

import asyncio
import shutil
import ssl

import grpc
import pytest

import muster
from muster.v1 import admin_pb2 as admin
from muster.v1.admin_pb2_grpc import TopicsStub
from musterd.coordinator.node.authority import CA_CERT, CERT, KEY, Authority
from musterd.coordinator.node.config import split_address
from musterd.coordinator.node.launcher import Cluster
from tests.e2e.guarded import TlsFolders

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(300)]

NAME = "another-authority"
NODES = (0, 1, 2)
WORKER = "client-worker"
OWNERS = (*(f"node-{node}" for node in NODES), WORKER)
"""Whose folders with files there are."""
WAIT_S = 90
CALL_S = 5


def authority_in(folder):
    """An authority with a certificate for each node and for the client."""
    made = Authority.create(folder, NAME)
    for node in NODES:
        made.node(node, ["localhost", "127.0.0.1"])
    made.client("worker")
    return made


def files_of(folder, ca):
    """What a client shows, and whom it trusts."""
    return muster.Tls(str(ca), str(folder / CERT), str(folder / KEY))


class FilesReady:
    """What the launcher asks the health service with."""

    def __init__(self, files):
        self.credentials = files.credentials


async def is_taken(endpoint, files):
    """Whether a client port takes a new connection with these files, and answers a call."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(endpoint, files.credentials(), options) as channel:
        try:
            await TopicsStub(channel).ListTopics(admin.ListTopicsRequest(), timeout=CALL_S)
        except grpc.aio.AioRpcError:
            return False
        return True


async def until(said):
    """Wait until a question, asked again and again, has the answer yes."""
    async with asyncio.timeout(WAIT_S):
        while not await said():
            await asyncio.sleep(0.1)


class World:
    """Nodes and a worker with files of one authority, which another one's take the place of."""

    def __init__(self, root):
        self.old, self.new, self.used = root / "old", root / "new", root / "used"
        for folder in (self.old, self.new):
            authority_in(folder)
        self.both = root / "both.pem"
        said = [(one / CA_CERT).read_bytes() for one in (self.old, self.new)]
        self.both.write_bytes(b"".join(said))
        for owner in OWNERS:
            shutil.copytree(self.old / owner, self.used / owner)
        self.cluster = Cluster(
            root / "cluster", shards=2, equipment=(TlsFolders(self.used),), name=NAME
        )
        self.of_old, self.of_new = (
            files_of(one / WORKER, self.both) for one in (self.old, self.new)
        )
        self.cluster.tls = FilesReady(self.of_old)

    def trust(self, source):
        """Have everybody trust the authorities in this file alone."""
        for owner in OWNERS:
            shutil.copy(source, self.used / owner / CA_CERT)

    def renew(self):
        """Give everybody a certificate of the new authority."""
        for owner in OWNERS:
            for one in (CERT, KEY):
                shutil.copy(self.new / owner / one, self.used / owner)

    async def are_taken(self, files, expected):
        """Whether all client ports do, or do not, take a client with these files."""
        return {await is_taken(one, files) for one in self.cluster.endpoints} == {expected}

    async def shows_new(self):
        """Whether all client ports show certificates of the new authority."""
        for node in NODES:
            at = split_address(self.cluster.nodes[node].endpoint)
            shown = await asyncio.to_thread(ssl.get_server_certificate, at)
            if shown.strip() != (self.new / f"node-{node}" / CERT).read_text().strip():
                return False
        return True


class Worker:
    """The member of a group, who commits 1, 2, 3, ..."""

    def __init__(self, group):
        self.group = group
        self.generations, self.acknowledged = set(), 0
        self.task = asyncio.create_task(self._work())

    async def _work(self):
        while True:
            self.generations.add(self.group.assignment.generation)
            await self.group.commit({("t", 0): self.acknowledged + 1})
            self.acknowledged += 1
            await asyncio.sleep(0.02)

    async def progress(self):
        """Wait until five more commits are acknowledged."""
        goal = self.acknowledged + 5

        async def is_there():
            assert not self.task.done(), self.task.result()
            return self.acknowledged >= goal

        await until(is_there)

    async def end(self):
        """All that was acknowledged is there, in the first generation."""
        self.task.cancel()
        committed = await self.group.committed()
        assert committed["t", 0].offset >= self.acknowledged
        assert len(self.generations) == 1


async def change(world, worker):
    """The three steps of the page."""
    await worker.progress()
    world.trust(world.both)
    await until(lambda: world.are_taken(world.of_new, True))
    await worker.progress()
    world.renew()
    await until(world.shows_new)
    await worker.progress()
    world.trust(world.new / CA_CERT)
    await until(lambda: world.are_taken(world.of_old, False))
    assert await world.are_taken(world.of_new, True)


async def restart_each(world, worker):
    """So no connection is left that began with the old authority's certificates."""
    world.cluster.tls = FilesReady(world.of_new)
    for node in NODES:
        await asyncio.to_thread(world.cluster.stop, node)
        world.cluster.start(node)
        await asyncio.to_thread(world.cluster.wait_ready)
        await worker.progress()


def test_nodes_and_clients_come_to_another_authority_by_files_alone(tmp_path):
    """As docs/secure.md says it, on both ports; no commit fails and no group rebalances."""
    world = World(tmp_path)
    mine = world.used / WORKER

    async def scene():
        files = files_of(mine, mine / CA_CERT)
        async with muster.Client(world.cluster.bootstrap, tls=files) as client:
            await client.create_topic("t", 1, exist_ok=True)
            async with client.group("g", ["t"]) as group:
                await group.next_assignment()
                worker = Worker(group)
                await change(world, worker)
                await restart_each(world, worker)
                await worker.end()

    with world.cluster:
        world.cluster.wait_ready()
        asyncio.run(scene())
