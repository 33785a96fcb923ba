"""The probe against real servers: what is reached, what is not, and what is said of it."""

import asyncio
import functools
import socket
from pathlib import Path

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2_grpc

from muster import Tls
from musterd.coordinator.api.server import Health, make_server, server_credentials
from musterd.coordinator.node import reach_probe
from musterd.coordinator.node.reach_probe import FAILURES, ReachProbe
from musterd.raft.contract import ClientReach
from tests.tls_servers import make_certificates

TLS = Path(__file__).parents[2] / "testdata" / "tls"
OWN = "muster.node.own"


def run(test):
    """Run a coroutine function as a test."""

    @functools.wraps(test)
    def runner(*args, **more):
        asyncio.run(test(*args, **more))

    return runner


class Served:
    """A node's server as far as its health, on a free port."""

    def __init__(self, own=OWN, credentials=None):
        self.own = own
        self.credentials = credentials

    async def __aenter__(self):
        self.server = make_server()
        health = Health(self.server, self.own)
        at = "127.0.0.1:0"
        if self.credentials:
            self.port = self.server.add_secure_port(at, self.credentials)
        else:
            self.port = self.server.add_insecure_port(at)
        await self.server.start()
        await health.start()
        return self

    async def __aexit__(self, *_):
        await self.server.stop(0)


def probe(endpoint, own=None, told=lambda _: None):
    """A probe of the node OWN."""
    return ReachProbe(endpoint, OWN, own.credentials() if own else None, own, told)


def own_tls(folder, name):
    """A node's TLS files, which its probe trusts and shows."""
    cert = str(folder / f"{name}.pem")
    return Tls(cert, cert, str(folder / f"{name}.key"))


@run
async def test_a_node_that_answers_is_reached():
    """By name and by number."""
    async with Served() as node:
        assert await probe(f"127.0.0.1:{node.port}").look() == ""
        assert await probe(f"localhost:{node.port}").look() == ""


@run
async def test_a_closed_port_another_server_and_no_address_are_not():
    """Each with its reason."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        assert "refused" in await probe(f"127.0.0.1:{bound.getsockname()[1]}").look()
    async with Served(own="muster.node.other") as other:
        assert await probe(f"127.0.0.1:{other.port}").look() == "another server answers there"
        assert "`advertise` is missing" in await probe(f"0.0.0.0:{other.port}").look()
    assert await probe("no-such-host.invalid:7070").look() != ""


@run
async def test_who_takes_the_connection_and_says_nothing_is_not(monkeypatch):
    """As behind a firewall, or a load balancer without anybody behind it."""
    monkeypatch.setattr(reach_probe, "REACH_PROBE_CALL_MS", 300)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        why = await probe(f"127.0.0.1:{silent.getsockname()[1]}").look()
    assert why == "no connection within 300 ms"


class Slow(health_pb2_grpc.HealthServicer):
    """A server whose loop is busy."""

    async def Check(self, request, context):  # noqa: N802 - gRPC's name
        await asyncio.Event().wait()


@run
async def test_who_is_slow_is_reached(monkeypatch):
    """The way is open; a node under load keeps its shards."""
    monkeypatch.setattr(reach_probe, "REACH_PROBE_CALL_MS", 500)
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(Slow(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    assert await probe(f"127.0.0.1:{port}").look() == ""
    await server.stop(0)


@run
async def test_tls_is_looked_at_as_a_client_does():
    """The certificate's name counts; so does its absence."""
    pair = (TLS / "server.pem", TLS / "server.key")
    async with Served(credentials=server_credentials(*pair, None)) as node:
        own = own_tls(TLS, "server")
        assert await probe(f"127.0.0.1:{node.port}", own).look() == ""
        wrong_name = f"127.0.0.2:{node.port}"
        assert await probe(wrong_name, own).look() != ""
        assert await probe(f"127.0.0.1:{node.port}").look() != ""


@pytest.mark.parametrize(("server", "client_ca"), [("good", "other"), ("server-only", "authority")])
def test_a_node_whose_clients_have_certificates_that_it_has_none_of_is_reached(
    tmp_path, server, client_ca
):
    """Of another authority than its own, and by a certificate that is for servers alone."""
    make_certificates(tmp_path)
    own = own_tls(tmp_path, server)
    credentials = server_credentials(Path(own.cert), Path(own.key), tmp_path / f"{client_ca}.pem")

    async def look():
        async with Served(credentials=credentials) as node:
            assert await probe(f"127.0.0.1:{node.port}", own).look() == ""
            assert await probe(f"127.0.0.2:{node.port}", own).look() != ""
            stranger = own_tls(tmp_path, "elsewhere")
            assert await probe(f"127.0.0.1:{node.port}", stranger).look() != ""

    asyncio.run(look())


def test_it_takes_some_failures_and_one_success():
    """Each verdict is told once, and logged."""
    told = []
    one = probe("127.0.0.1:7070", told=told.append)
    with structlog.testing.capture_logs() as lines:
        for _ in range(FAILURES - 1):
            one.judge("refused")
        assert told == []
        one.judge("refused")
        one.judge("refused")
        assert told == [ClientReach.FAILS]
        one.judge("")
        one.judge("refused")
    assert told == [ClientReach.FAILS, ClientReach.OK]
    assert [line["log_level"] for line in lines] == ["warning", "info"]
    assert lines[0]["error"].startswith("refused: ")


@run
async def test_it_looks_again_and_again():
    """Until the node is reached, without waiting for the interval after a failure."""
    told = asyncio.Queue()
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{bound.getsockname()[1]}"
        running = asyncio.create_task(probe(endpoint, told=told.put_nowait).run(0.01))
        assert await told.get() is ClientReach.FAILS
        server = make_server(reuse_port=True)
        health = Health(server, OWN)
        server.add_insecure_port(endpoint)
        await server.start()
        await health.start()
        assert await told.get() is ClientReach.OK
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop(0)


def test_an_error_of_another_kind_is_an_answer():
    """RESOURCE_EXHAUSTED and the like come from the node."""
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), grpc.aio.Metadata(), "busy"
    )
    assert reach_probe._failure(error, grpc.ChannelConnectivity.READY) == ""


def test_certificates_that_are_gone_by_the_time_of_their_use_leave_those_of_before(tmp_path):
    """They are being changed; a node does not end of it."""
    make_certificates(tmp_path)
    own = own_tls(tmp_path, "good")
    credentials = server_credentials(Path(own.cert), Path(own.key), tmp_path / "authority.pem")

    async def look():
        async with Served(credentials=credentials) as node:
            one = probe(f"127.0.0.1:{node.port}", own)
            one.use(None, own_tls(tmp_path, "gone"))
            assert await one.look() == ""

    asyncio.run(look())
