"""A real cluster with rules: three processes, TLS on all ports, and callers of every kind."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import grpc

from muster.admin.operator_secret import METADATA_KEY
from muster.net.tls import Tls
from muster.v1 import access_pb2, admin_pb2, group_pb2
from muster.v1.access_pb2_grpc import AccessStub
from muster.v1.admin_pb2_grpc import AdminStub, TopicsStub
from muster.v1.group_pb2_grpc import GroupCoordinatorStub
from musterd.coordinator.node.authority import Authority
from musterd.coordinator.node.launcher import Cluster, Equipment
from tests.certificates import signed
from tests.docs import access

NAME = "guarded"
NODES = (0, 1, 2)
SHARDS = 4
SECRET = b"0123456789abcdef0123456789abcdef"
NOBODY, OPERATOR, NODE, STRANGER = "nobody", "operator", "node", "stranger"
NODE_ID = 1
"""Whose certificate `NODE` shows."""
BY_TOKEN = ("guest", "owner", "watcher")
"""Principals that show a token, over a connection whose certificate names nobody here."""
CALLERS = (NOBODY, *access.PRINCIPALS, OPERATOR, NODE)
SERVICES = {
    "GroupCoordinator": GroupCoordinatorStub,
    "Topics": TopicsStub,
    "Admin": AdminStub,
    "Access": AccessStub,
}
CALL_S = 15
READY_S = 60


class TlsFolders(Equipment):
    """Each node has its folder of the authority, for both ports."""

    def __init__(self, root):
        self.root = root

    def command(self, node_id, argv):
        return [*argv, f"--tls-dir={self.root / f'node-{node_id}'}"]


@dataclass
class Ready:
    """What the launcher asks the health service with."""

    files: object

    def credentials(self):
        return tls(self.files).credentials()


def tls(files):
    """The files as a client's."""
    return Tls(str(files.ca), str(files.cert), str(files.key))


@dataclass
class Guarded:
    """The cluster, and what its callers show."""

    cluster: Cluster
    authority: Authority
    files: dict[str, object]
    tokens: dict[str, str] = field(default_factory=dict)

    def metadata(self, who):
        """What comes with each call of theirs."""
        if who in self.tokens:
            return (("authorization", f"Bearer {self.tokens[who]}"),)
        return ((METADATA_KEY, SECRET),) if who == OPERATOR else ()

    def credentials(self, who):
        """The certificate that their connections show."""
        return tls(self.files.get(who, self.files[STRANGER])).credentials()


def start(root):
    """Authority, certificates, nodes; ready, with topics, rules and tokens."""
    root.mkdir(exist_ok=True)
    authority = Authority.create(root / "certs", NAME)
    files = {}
    for node in NODES:
        authority.node(node, ["localhost", "127.0.0.1"])
    uri = f"muster://{NAME}/"
    for who in (*access.PRINCIPALS, *BY_TOKEN):
        if who not in BY_TOKEN:
            files[who] = signed(authority, root / who, [f"{uri}client/{who}".encode()])
    files[NODE] = signed(authority, root / NODE, [f"{uri}node/{NODE_ID}".encode()])
    files[STRANGER] = signed(authority, root / STRANGER, [b"muster://elsewhere/client/root"])
    secret = root / "admin.secret"
    secret.write_bytes(SECRET)
    cluster = Cluster(
        root / "cluster",
        nodes=len(NODES),
        shards=SHARDS,
        equipment=(TlsFolders(root / "certs"),),
        flags=(f"--admin-secret-file={secret}", f"--superusers={access.ROOT}"),
        name=NAME,
    )
    cluster.tls = Ready(files[access.ROOT])
    return Guarded(cluster, authority, files)


class Channels:
    """A channel for each caller and node, opened when it is first used."""

    def __init__(self, guarded):
        self.guarded = guarded
        self._stack = AsyncExitStack()
        self._stubs = {}

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        await self._stack.aclose()

    async def stub(self, who, endpoint, service):
        """The service at a node, as this caller reaches it."""
        key = who, endpoint, service
        if key not in self._stubs:
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = grpc.aio.secure_channel(endpoint, self.guarded.credentials(who), options)
            await self._stack.enter_async_context(channel)
            for name, stub in SERVICES.items():
                self._stubs[who, endpoint, name] = stub(channel)
        return self._stubs[key]

    async def call(self, who, service, rpc, request, endpoint=None):
        """The answer of the node, or of the one that it names instead, and of who that is."""
        endpoint = endpoint or self.guarded.cluster.endpoints[0]
        async with asyncio.timeout(READY_S):
            while True:
                stub = await self.stub(who, endpoint, service)
                answer = await getattr(stub, rpc)(
                    request, metadata=self.guarded.metadata(who), timeout=CALL_S
                )
                status = getattr(answer, "status", None)
                if status is None or int(status.code) not in ELSEWHERE:
                    return answer
                endpoint = status.coordinator.endpoint or endpoint
                await asyncio.sleep(0.02)  # between two looks

    async def root(self, service, rpc, request, endpoint=None):
        """As the superuser, who is not refused."""
        answer = await self.call(access.ROOT, service, rpc, request, endpoint)
        status = getattr(answer, "status", None)
        assert status is None or not int(status.code), (rpc, status)
        return answer

    async def coordinator(self, group):
        """The endpoint of a group's."""
        request = group_pb2.FindCoordinatorRequest(keys=[{"group_id": group}])
        async with asyncio.timeout(READY_S):
            while True:
                answer = await self.root("GroupCoordinator", "FindCoordinator", request)
                if found := answer.results[0].coordinator.endpoint:
                    return found

    async def leader(self, shard=0):
        """The endpoint of a shard's."""
        async with asyncio.timeout(READY_S):
            while True:
                view = await self.root(
                    "Admin", "DescribeCluster", admin_pb2.DescribeClusterRequest()
                )
                led = view.shard_states[shard].leader_id
                if led >= 0:
                    return self.guarded.cluster.nodes[led].endpoint


ELSEWHERE = {14, 15, 16}
"""Codes that another node, or a later moment, answers otherwise."""


async def close_to_all(guarded):
    """Topics and tokens, then the rules; returns when every node knows them."""
    async with Channels(guarded) as channels:
        for name in (access.MINE, access.OTHERS):
            request = admin_pb2.CreateTopicRequest(name=name, partitions=1)
            await channels.root("Topics", "CreateTopic", request)
        for who in BY_TOKEN:
            request = access_pb2.CreateTokenRequest(principal=who, expires_wall_ms=0)
            made = await channels.root("Access", "CreateToken", request)
            guarded.tokens[who] = made.token
        rules = [
            access_pb2.AclRule(
                principal=one.principal,
                operation=int(one.operation),
                resource=int(one.resource),
                pattern=int(one.pattern),
                name=one.name,
                deny=one.deny,
            )
            for granted in access.GRANTED.values()
            for one in granted
        ]
        added = await channels.root("Access", "AlterAcls", access_pb2.AlterAclsRequest(added=rules))
        async with asyncio.timeout(READY_S):
            for endpoint in guarded.cluster.endpoints:
                seen = -1
                while seen < added.access_version:
                    request = access_pb2.DescribeAclsRequest()
                    told = await channels.root("Access", "DescribeAcls", request, endpoint)
                    seen = told.access_version
