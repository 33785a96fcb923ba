"""Callers who show certificates, at a real client port: who they are, and until when."""

import asyncio
import contextlib

import grpc
import pytest

from muster.v1 import admin_pb2, admin_pb2_grpc
from musterd.coordinator.api.frame.audit_trail import HandOver
from musterd.coordinator.api.frame.identity import Callers
from musterd.coordinator.api.frame.operator_access import METADATA_KEY, OperatorAccess
from musterd.coordinator.api.server import make_server, server_credentials
from musterd.coordinator.machine.access import AclRule, Operation, Pattern, Resource
from musterd.coordinator.machine.commands import AlterAcls
from musterd.coordinator.node.authority import CA_CERT, CERT, KEY, Authority
from tests.certificates import signed
from tests.coordinator.api.test_access import SECRET
from tests.coordinator.local import LocalNode

DAY_MS = 86_400_000
PATIENCE_S = 20
CLUSTER = Resource.CLUSTER


class CertifiedNode(LocalNode):
    """A node whose clients show certificates of the authority of cluster "c"."""

    def __init__(self, folder, named_by="uri"):
        operator = OperatorAccess(SECRET, on_loopback=True)
        super().__init__(
            access=operator,
            callers=Callers(
                ("root",),
                operator,
                has_tls=True,
                has_client_ca=True,
                cluster_id="c",
                named_by=named_by,
            ),
        )
        self.authority = Authority.create(folder / "certs", "c")

    async def start(self, lead=True):
        await super().start(lead)
        made = self.authority.node(0, ["localhost"])
        self.secure_server = make_server()
        self.services().add_to(self.secure_server)
        credentials = server_credentials(
            made.folder / CERT, made.folder / KEY, made.folder / CA_CERT
        )
        self.secure_port = self.secure_server.add_secure_port("127.0.0.1:0", credentials)
        await self.secure_server.start()

    async def stop(self):
        await self.secure_server.stop(0)
        await super().stop()

    async def allow(self, who):
        """The first rule: this principal may describe the cluster."""
        self.shards[0].state.level = 6
        future = asyncio.get_running_loop().create_future()
        rule = AclRule(who, Operation.DESCRIBE, CLUSTER, Pattern.LITERAL, "", False)
        self.shards[0].submit(AlterAcls((rule,)), 4_096, future.set_result)
        await asyncio.wait_for(future, PATIENCE_S)

    def connect(self, folder):
        """A channel that shows what is in the folder."""
        ca, key, cert = ((folder / name).read_bytes() for name in (CA_CERT, KEY, CERT))
        return grpc.aio.secure_channel(
            f"localhost:{self.secure_port}", grpc.ssl_channel_credentials(ca, key, cert)
        )


@contextlib.asynccontextmanager
async def certified(folder, named_by="uri"):
    node = CertifiedNode(folder, named_by)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def told(channel):
    """The status of a call that describes the cluster."""
    try:
        await admin_pb2_grpc.AdminStub(channel).DescribeCluster(
            admin_pb2.DescribeClusterRequest(), timeout=PATIENCE_S
        )
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


def test_rules_are_asked_of_the_name_in_a_certificate(tmp_path):
    """The one with the right passes, a superuser and a node too; others have none."""

    async def scenario():
        async with certified(tmp_path) as node:
            await node.allow("billing")
            made = {name: node.authority.client(name).folder for name in ("billing", "x", "root")}
            made["node"] = node.authority.node(1, ["localhost"]).folder
            found = {}
            for name, folder in made.items():
                async with node.connect(folder) as channel:
                    found[name] = await told(channel)
            assert found == {
                "billing": "OK",
                "x": "PERMISSION_DENIED",
                "root": "OK",
                "node": "OK",
            }

    asyncio.run(scenario())


def test_without_rules_a_superuser_s_or_node_s_certificate_is_enough_for_operators_calls(tmp_path):
    """So the first rule needs no admin secret where there are certificates; another is refused."""

    async def scenario():
        async with certified(tmp_path) as node:
            node.shards[0].state.level = 6
            made = {name: node.authority.client(name).folder for name in ("billing", "root")}
            made["node"] = node.authority.node(1, ["localhost"]).folder
            found = {}
            for name, folder in made.items():
                async with node.connect(folder) as channel:
                    try:
                        await admin_pb2_grpc.AdminStub(channel).AlterClientQuotas(
                            admin_pb2.AlterClientQuotasRequest(), timeout=PATIENCE_S
                        )
                        found[name] = "OK"
                    except grpc.aio.AioRpcError as error:
                        found[name] = error.code().name
            assert found == {"billing": "UNAUTHENTICATED", "root": "OK", "node": "OK"}

    asyncio.run(scenario())


def test_without_rules_the_audit_trail_names_certificates_and_the_operator(tmp_path):
    """As docs/audit.md and docs/quotas.md say: all others are anonymous, also by a token."""

    async def scenario():
        async with certified(tmp_path) as node:
            node.shards[0].state.level = 6
            node.core.audit.follow(0, lambda: 1_000, lambda: True, lambda: 0)
            entries = []

            async def keep(_batch, some):
                entries.extend(some)
                return HandOver.DONE

            creates = [admin_pb2.CreateTopicRequest(name=f"t{n}", partitions=1) for n in range(4)]
            alter = admin_pb2.AlterClientQuotasRequest()
            async with node.connect(node.authority.client("billing").folder) as channel:
                await admin_pb2_grpc.TopicsStub(channel).CreateTopic(creates.pop())
                by_secret = ((METADATA_KEY, SECRET),)
                await admin_pb2_grpc.AdminStub(channel).AlterClientQuotas(alter, metadata=by_secret)
            for metadata in ((), (("authorization", "Bearer muster_1_2"),), by_secret):
                await node.topics.CreateTopic(creates.pop(), metadata=metadata)
            await node.core.audit.flush(keep)
            assert [one.principal for one in entries] == [
                "billing",
                "operator",
                *(["anonymous"] * 3),
            ]

    asyncio.run(scenario())


@pytest.mark.parametrize("named_by", ["uri", "cn"])
def test_a_certificate_of_another_cluster_is_nobody_at_the_port(tmp_path, named_by):
    """Though the authority signed it, and its common name is a superuser's."""

    async def scenario():
        async with certified(tmp_path, named_by) as node:
            await node.allow("billing")
            uris = [b"muster://other/client/root"]
            signed(node.authority, tmp_path / "foreign", uris, common_name="root")
            signed(node.authority, tmp_path / "bytes", [b"\xff" * 60_000], common_name="x")
            for folder in ("foreign", "bytes"):
                async with node.connect(tmp_path / folder) as channel:
                    assert await told(channel) in {"UNAUTHENTICATED", "UNAVAILABLE"}

    asyncio.run(scenario())


@pytest.mark.parametrize("has_rules", [True, False])
def test_a_certificate_that_ends_ends_the_calls_of_its_connection(tmp_path, has_rules):
    """On a connection that stands, with rules and without; a token does not help."""

    async def scenario():
        async with certified(tmp_path) as node:
            if has_rules:
                await node.allow("billing")
            folder = node.authority.client("billing", days=2).folder
            async with node.connect(folder) as channel:
                assert await told(channel) == "OK"
                node.later_ms = 3 * DAY_MS
                assert await told(channel) == "UNAUTHENTICATED"

    asyncio.run(scenario())


def test_an_expired_certificate_makes_no_connection(tmp_path):
    """It is refused at the handshake."""

    async def scenario():
        async with certified(tmp_path) as node:
            uris = [b"muster://c/client/billing"]
            signed(node.authority, tmp_path / "old", uris, begins_days=-2, ends_days=-1)
            async with node.connect(tmp_path / "old") as channel:
                assert await told(channel) == "UNAVAILABLE"

    asyncio.run(scenario())
