"""A scripted cluster on loopback (real gRPC, answers from a table), and `muster` run on it."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import pytest
from google.protobuf.message import Message

from muster.cli import main
from muster.v1 import (
    access_pb2,
    access_pb2_grpc,
    admin_pb2,
    admin_pb2_grpc,
    group_pb2,
    group_pb2_grpc,
)
from muster.v1.admin_pb2 import DescribeClusterResponse
from muster.v1.errors_pb2 import Coordinator, ErrorCode, Status

CLUSTER_ID = "c0ffee00-0000-4000-8000-000000000001"
Script = Message | list[Message] | Callable[[Message], Message | grpc.StatusCode]


@dataclass
class Node:
    """One scripted node. `script`: an RPC's name -> its answer, answers in turn, or a function.

    What a function returns may be gRPC's status.
    """

    node_id: int
    script: dict[str, Script] = field(default_factory=dict)
    calls: list[tuple[str, Message]] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    """What came with each of these calls."""
    endpoint: str = ""
    server: grpc.Server | None = None

    @property
    def store_uuid(self) -> str:
        """What this node's store is called."""
        return f"00000000-0000-4000-8000-00000000000{self.node_id}"

    def named(self, rpc: str) -> list[Message]:
        """The requests of one RPC, in order."""
        return [request for name, request in self.calls if name == rpc]

    def start(self, credentials: grpc.ServerCredentials | None = None) -> None:
        """Serve on a free port, with TLS where there are credentials."""
        self.server = grpc.server(ThreadPoolExecutor(max_workers=8))
        for package, rpc_module, services in (
            (admin_pb2, admin_pb2_grpc, ("Topics", "Admin")),
            (group_pb2, group_pb2_grpc, ("GroupCoordinator",)),
            (access_pb2, access_pb2_grpc, ("Access",)),
        ):
            for service in services:
                methods = package.DESCRIPTOR.services_by_name[service].methods
                servicer = type(service, (), {m.name: self._handler(m.name) for m in methods})()
                getattr(rpc_module, f"add_{service}Servicer_to_server")(servicer, self.server)
        free = "127.0.0.1:0"
        port = (
            self.server.add_secure_port(free, credentials)
            if credentials
            else self.server.add_insecure_port(free)
        )
        self.endpoint = f"127.0.0.1:{port}"
        self.server.start()

    def stop(self) -> None:
        """Be gone."""
        if self.server:
            self.server.stop(None).wait()
            self.server = None

    def _handler(self, name: str) -> Callable[[object, Message, grpc.ServicerContext], Message]:
        def handle(_self: object, request: Message, context: grpc.ServicerContext) -> Message:
            self.calls.append((name, request))
            self.metadata.append(dict(context.invocation_metadata()))
            if name not in self.script:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{name} is not in the script")
            answer = self.script[name]
            if isinstance(answer, Message):
                return answer
            if isinstance(answer, list):
                return answer.pop(0)
            told = answer(request)
            if isinstance(told, grpc.StatusCode):
                context.abort(told, "as the script says")
            return told

        return handle


@dataclass
class Cluster:
    """Three nodes; node `shard % 3 + 1` leads each of 4 shards, in term 7."""

    nodes: list[Node]
    shards: int = 4

    def view(self, node_id: int) -> DescribeClusterResponse:
        """What a healthy node says of the cluster."""
        return DescribeClusterResponse(
            cluster_id=CLUSTER_ID,
            node_id=node_id,
            shards=self.shards,
            nodes=[
                admin_pb2.Node(
                    node_id=node.node_id,
                    endpoint=node.endpoint,
                    peer_endpoint=f"127.0.0.1:1{node.node_id}",
                    store_uuid=node.store_uuid,
                    connected=True,
                    version="0.1.0",
                )
                for node in self.nodes
            ],
            shard_states=[
                admin_pb2.Shard(
                    shard=shard,
                    role="Leader" if self.leader(shard).node_id == node_id else "Follower",
                    term=7,
                    leader_id=self.leader(shard).node_id,
                    commit_index=100 + shard,
                    applied_index=100 + shard - (node_id == 3),
                    groups=shard,
                )
                for shard in range(self.shards)
            ],
        )

    def leader(self, shard: int) -> Node:
        """Who leads a shard."""
        return self.nodes[shard % len(self.nodes)]

    def coordinate(self, node: Node) -> None:
        """Every node names `node` as every group's coordinator."""
        where = Coordinator(node_id=node.node_id, endpoint=node.endpoint, term=7)

        def find(request: group_pb2.FindCoordinatorRequest) -> group_pb2.FindCoordinatorResponse:
            return group_pb2.FindCoordinatorResponse(
                results=[
                    group_pb2.FindCoordinatorResponse.Result(
                        group_id=key.group_id, coordinator=where
                    )
                    for key in request.keys
                ]
            )

        for other in self.nodes:
            other.script["FindCoordinator"] = find


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A healthy scripted cluster; MUSTER_BOOTSTRAP names its first node."""
    made = Cluster([Node(1), Node(2), Node(3)])
    for node in made.nodes:
        node.start()
    for node in made.nodes:
        node.script["DescribeCluster"] = made.view(node.node_id)
    monkeypatch.setenv("MUSTER_BOOTSTRAP", made.nodes[0].endpoint)
    for name in ("MUSTER_OUTPUT", "MUSTER_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    yield made
    for node in made.nodes:
        node.stop()


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    exit_code: int
    out: str
    err: str


@pytest.fixture
def muster(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run `muster ARGS...` in this process."""

    def run(*args: str) -> Ran:
        capsys.readouterr()
        code: object = 0
        try:
            main(list(args))
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        return Ran(int(code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def masked(cluster: Cluster) -> Callable[[str], str]:
    """Replace each node's endpoint by one of equal width that is the same in every run."""

    def mask(text: str) -> str:
        for node in cluster.nodes:
            text = text.replace(node.endpoint, f"127.0.0.1:1707{node.node_id}")
        return re.sub(r"127\.0\.0\.1:(?!1707\d)\d{5}", "127.0.0.1:?????", text)

    return mask


@pytest.fixture
def no() -> Callable[..., Status]:
    """A status that refuses."""

    def status(code: ErrorCode.ValueType, message: str = "", **more: object) -> Status:
        return Status(code=code, message=message, **more)

    return status
