"""Real processes: a cluster comes to TLS between its nodes, and to another authority, under load.

Each step is a rolling restart, or new files that the nodes read by themselves. No acknowledged
commit is lost and no group rebalances. The longest time without an acknowledged commit is printed,
beside that of a rolling restart that changes nothing.
"""

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
import time

import pytest

from muster.v1 import admin_pb2 as admin
from musterd.coordinator.node.authority import Authority
from musterd.coordinator.node.config import split_address
from musterd.coordinator.node.launcher import Cluster, Equipment
from musterd.raft.peer_connection import MAGIC
from tests.certificates import files_in
from tests.e2e.bare import Member, Router, read

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(300)]

CLUSTER = "to-tls"
SHARDS = 4
NODES = (0, 1, 2)
GROUPS = ("a", "b", "c")
WAIT_S = 60
MODES = (("off", True, False), ("prefer", True, True), ("require", False, True))
"""A `peer_tls`, and whether it takes plain connections, and those with a node's certificate."""
READ_ANEW = "certificates were read anew"


class PeerFiles(Equipment):
    """Every node has a folder with its certificate, and a `peer_tls` that may be changed."""

    def __init__(self, root, mode):
        self.root = root
        self.mode = mode
        self.authority = self.new_authority("first")
        for node in NODES:
            self.show(node, self.authority)

    def new_authority(self, name):
        """With a certificate of each node's."""
        made = Authority.create(self.root / name, CLUSTER)
        for node in NODES:
            made.node(node, ["localhost"])
        return made

    def folder(self, node):
        return self.root / f"of-node-{node}"

    def show(self, node, authority):
        """Put a node's certificate and key in place; whom it trusts is as before."""
        made, folder = files_in(authority._folder / f"node-{node}"), self.folder(node)
        if not folder.exists():
            folder.mkdir()
            shutil.copy(made.ca, folder)
        for one in (made.cert, made.key):
            shutil.copy(one, folder)

    def trust(self, node, *authorities):
        """Of whom it takes certificates from now on."""
        said = b"".join((one._folder / "ca.pem").read_bytes() for one in authorities)
        (self.folder(node) / "ca.pem").write_bytes(said)

    def command(self, node_id, argv):
        files = files_in(self.folder(node_id))
        given = [f"--peer-cert={files.cert}", f"--peer-key={files.key}", f"--peer-ca={files.ca}"]
        return [*argv, *given, f"--peer-tls={self.mode}"]


class Load:
    """A member of each group that commits 1, 2, 3, ..., and how long none was acknowledged."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.router = Router(cluster.endpoints)
        self.formed = {group: {} for group in GROUPS}
        self.members = [Member(self.router, group, "t", 0, self.formed[group]) for group in GROUPS]
        self.longest_s = {}

    async def __aenter__(self):
        await self._create_topic()
        self.tasks = [asyncio.create_task(member.work()) for member in self.members]
        await self.progress()
        return self

    async def __aexit__(self, *exc):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.router.close()

    async def _create_topic(self):
        async with asyncio.timeout(WAIT_S):
            request, names = admin.CreateTopicRequest(name="t", partitions=1), []
            while names != ["t"] * len(NODES):
                for stub in self.router.topics.values():
                    await stub.CreateTopic(request, wait_for_ready=True)
                known = [
                    await stub.ListTopics(admin.ListTopicsRequest())
                    for stub in self.router.topics.values()
                ]
                names = [one.name for answer in known for one in answer.topics]

    async def progress(self):
        """Wait until each member has had three more commits acknowledged."""
        goals = [member.acknowledged + 3 for member in self.members]
        async with asyncio.timeout(WAIT_S):
            while any(m.acknowledged < g for m, g in zip(self.members, goals, strict=True)):
                assert not any(task.done() for task in self.tasks)
                await asyncio.sleep(0.01)

    async def measured(self, step, doing):
        """Note the longest time in which no commit was acknowledged while a step is done."""
        task, seen, since_s, longest_s = asyncio.ensure_future(doing), -1, time.monotonic(), 0.0
        while not task.done():
            now_s, acknowledged = time.monotonic(), sum(one.acknowledged for one in self.members)
            longest_s = max(longest_s, now_s - since_s)
            if acknowledged != seen:
                seen, since_s = acknowledged, now_s
            await asyncio.sleep(0.005)
        task.result()
        self.longest_s[step] = round(longest_s, 3)

    async def restart_each(self):
        """One node after the other, as docs/operations.md has it."""
        for node in NODES:
            await asyncio.to_thread(self.cluster.stop, node)
            self.cluster.start(node)
            async with asyncio.timeout(WAIT_S):
                await self.router.wait_ready()
            await self.progress()

    async def read_anew(self, times):
        """Wait until each node has read its files so often since its start."""
        async with asyncio.timeout(WAIT_S):
            for node in self.cluster.nodes.values():
                while node.log_path.read_text("utf-8").count(READ_ANEW) < times:
                    await asyncio.sleep(0.05)
        await self.progress()

    async def end(self, capsys):
        """All that was acknowledged is there, and each group is in its first generation."""
        for member in self.members:
            member.stopping = True
        await asyncio.gather(*self.tasks)
        for member in self.members:
            kept = await read(self.router, member.group, "t", 0)
            assert member.acknowledged <= kept <= member.attempted
        assert [len(formed) for formed in self.formed.values()] == [1] * len(GROUPS)
        with capsys.disabled():
            print(json.dumps({"longest_s": self.longest_s}))  # noqa: T201


def is_taken(cluster, node, files=None):
    """Whether a peer port reads on, plainly or by TLS with these files.

    What it reads is of another version of the protocol, to which it says its own.
    """
    at = split_address(cluster.nodes[node].addresses.peer_listen)
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(socket.create_connection(at, timeout=WAIT_S))
        try:
            if files is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.load_cert_chain(files.cert, files.key)
                one = stack.enter_context(context.wrap_socket(one))
            one.sendall(MAGIC[:-1] + b"\xff")
            return one.recv(len(MAGIC)) == MAGIC
        except (ssl.SSLError, ConnectionError):
            return False


def make(tmp_path, mode):
    kit = PeerFiles(tmp_path, mode)
    return kit, Cluster(
        tmp_path / "cluster", nodes=3, shards=SHARDS, equipment=(kit,), name=CLUSTER
    )


def test_a_cluster_comes_to_tls_by_two_rolling_restarts_under_load(tmp_path, capsys):
    """First a restart that changes nothing, to compare with."""
    kit, cluster = make(tmp_path, "off")

    async def scene():
        async with Load(cluster) as load:
            mine = files_in(kit.folder(1))
            for mode, plain, tls in MODES:
                kit.mode = mode
                await load.measured(mode, load.restart_each())
                assert [is_taken(cluster, node) for node in NODES] == [plain] * len(NODES)
                assert [is_taken(cluster, node, mine) for node in NODES] == [tls] * len(NODES)
            await load.end(capsys)

    with cluster:
        cluster.wait_ready()
        asyncio.run(scene())


def test_a_clusters_authority_is_changed_by_files_alone_under_load(tmp_path, capsys):
    """The old one's certificates are refused then, and every connection is made anew."""
    kit, cluster = make(tmp_path, "require")
    old = kit.authority
    new = kit.new_authority("second")

    async def scene():
        async with Load(cluster) as load:
            for node in NODES:
                kit.trust(node, old, new)
            await load.measured("both", load.read_anew(1))
            for node in NODES:
                kit.show(node, new)
            await load.measured("new", load.read_anew(2))
            for node in NODES:
                kit.trust(node, new)
            await load.measured("alone", load.read_anew(3))
            taken = [is_taken(cluster, 0, files_in(one._folder / "node-1")) for one in (old, new)]
            assert taken == [False, True]
            await load.measured("restart", load.restart_each())
            await load.end(capsys)

    with cluster:
        cluster.wait_ready()
        asyncio.run(scene())
