"""What the SDK raises where TLS is why no node can be reached, from whatever is called first."""

import asyncio

import pytest

import muster
from muster.errors import TlsHandshakeFailed
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
