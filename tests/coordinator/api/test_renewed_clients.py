"""A client whose certificate files are renewed: it shows what is there, and no call is cut."""

import asyncio
import shutil

import grpc

from muster import timeouts
from muster.net.nodes import Nodes
from muster.net.tls import Tls
from musterd.coordinator.api.server import server_credentials
from musterd.coordinator.node.authority import CA_CERT, CERT, KEY, Authority

PATIENCE_S = 20
PATH = "/test/Who"


class Door:
    """A server that answers with the caller's certificate, after `held` where a request asks."""

    def __init__(self, authority):
        made = authority.node(0, ["localhost"])
        self._credentials = server_credentials(
            made.folder / CERT, made.folder / KEY, made.folder / CA_CERT
        )
        self.waits, self.held = asyncio.Event(), asyncio.Event()

    async def __aenter__(self):
        async def answer(request, context):
            shown = context.auth_context()["x509_pem_cert"][0]
            if request:
                self.waits.set()
                await self.held.wait()
            return shown

        handler = grpc.unary_unary_rpc_method_handler(answer)
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test", {"Who": handler}),)
        )
        port = self._server.add_secure_port("127.0.0.1:0", self._credentials)
        self.endpoint = f"localhost:{port}"
        await self._server.start()
        return self

    async def __aexit__(self, *_):
        await self._server.stop(0)


def ask(nodes, door, request=b""):
    return nodes.unary(door.endpoint, PATH, bytes, request, PATIENCE_S * 1_000)


async def until_shown(nodes, door, certificate):
    """Wait until a call shows this certificate."""
    while (await ask(nodes, door)).strip() != certificate.strip():
        await asyncio.sleep(0.01)


def test_renewed_files_are_shown_without_a_restart_and_cut_no_call(tmp_path, monkeypatch):
    """A certificate beside the former key is none yet; the former serves until both are there."""
    monkeypatch.setattr(timeouts, "TLS_FILES_LOOK_MS", 20)
    authority = Authority.create(tmp_path / "certs", "c")
    own, other = authority.client("one").folder, authority.client("two").folder
    before, after = ((folder / CERT).read_bytes() for folder in (own, other))
    files = Tls(*(str(own / name) for name in (CA_CERT, CERT, KEY)))

    async def scenario():
        async with Door(authority) as door:
            nodes = Nodes([door.endpoint], files)
            under_way = asyncio.ensure_future(ask(nodes, door, b"wait"))
            await door.waits.wait()
            channel = nodes._channels[door.endpoint]
            looks, renewed = [], Tls.renewed_credentials
            monkeypatch.setattr(
                Tls, "renewed_credentials", lambda tls: looks.append(1) or renewed(tls)
            )
            shutil.copy(other / CERT, own / CERT)
            while len(looks) < 3:
                await asyncio.sleep(0.01)
            assert nodes._channels[door.endpoint] is channel
            await until_shown(nodes, door, before)
            shutil.copy(other / KEY, own / KEY)
            await until_shown(nodes, door, after)
            assert not under_way.done()
            door.held.set()
            assert (await under_way).strip() == before.strip()
            await nodes.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_who_was_refused_shows_newer_files_at_once(tmp_path, monkeypatch):
    """Nobody looks at them otherwise; written anew with the same certificate they are not newer."""
    monkeypatch.setattr(timeouts, "TLS_FILES_LOOK_MS", 3_600_000)
    authority = Authority.create(tmp_path / "certs", "c")
    own, other = authority.client("one").folder, authority.client("two").folder
    files = Tls(*(str(own / name) for name in (CA_CERT, CERT, KEY)))

    async def scenario():
        async with Door(authority) as door:
            nodes = Nodes([door.endpoint], files)
            shown = nodes.shown()
            await until_shown(nodes, door, (own / CERT).read_bytes())
            assert not nodes.has_newer(shown)
            (own / CERT).write_bytes((own / CERT).read_bytes())
            assert not nodes.has_newer(shown)
            shutil.copy(other / CERT, own / CERT)
            assert not nodes.has_newer(shown)  # beside the former key it is none
            shutil.copy(other / KEY, own / KEY)
            assert nodes.has_newer(shown)
            assert not nodes.has_newer(nodes.shown())
            assert (await ask(nodes, door)).strip() == (other / CERT).read_bytes().strip()
            await nodes.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
