"""What the SDK raises where TLS is why no node can be reached, from whatever is called first."""

import asyncio
import threading

import grpc
import pytest

import muster
from muster.errors import TlsHandshakeFailed
from muster.net import tls_probe
from muster.net.nodes import Nodes
from tests.tls_servers import CASES, client_tls, make_certificates, serving

FOREVER_MS = 3_600_000
"""Whoever waits for the end of its time here does not pass."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Certificates."""
    made = tmp_path_factory.mktemp("tls")
    make_certificates(made)
    return made


async def topics(client):
    """Any node is asked."""
    await client.topics()


async def join(client):
    """A member begins."""
    async with client.group("g", ["t"]) as group:
        await group.next_assignment()


async def committed(client):
    """The group's coordinator is searched first."""
    await client.committed("g", [("t", 0)])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("call", [topics, join, committed])
async def test_the_first_call_says_what_is_wrong_with_tls(folder, name, call):
    """The error names the node and what to do."""
    case = CASES[name]
    options = {"tls": client_tls(folder, case), "request_timeout_ms": FOREVER_MS}
    with serving(folder, case) as endpoint:
        async with muster.Client(endpoint, **options) as client:
            with pytest.raises(TlsHandshakeFailed) as raised:
                await asyncio.wait_for(call(client), 60)
    assert endpoint in raised.value.message
    assert case.told in raised.value.message
    assert raised.value.hint != TlsHandshakeFailed.default_hint


async def test_a_client_may_be_closed_while_it_looks_for_the_reason(monkeypatch):
    """What comes back finds the channel closed, and nothing fails in the background."""
    began, release = threading.Event(), threading.Event()

    def look(_endpoint, _tls):
        began.set()
        release.wait(60)

    monkeypatch.setattr(tls_probe, "find_trouble", look)
    nodes = Nodes(["127.0.0.1:1"], None)
    await asyncio.to_thread(began.wait, 60)
    channel = nodes._channels["127.0.0.1:1"]
    closing = asyncio.create_task(nodes.close())
    while channel.get_state() is not grpc.ChannelConnectivity.SHUTDOWN:
        await asyncio.sleep(0)
    release.set()
    await closing
