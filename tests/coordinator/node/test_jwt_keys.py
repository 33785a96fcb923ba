"""The identity provider's keys: fetched, changed, kept while their source fails; and bounds."""

import asyncio
import contextlib
import http.client
import ssl
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs

from musterd.coordinator.api.frame.jwt_verifier import KEYS_BYTES_MAX, JwtVerifier
from musterd.coordinator.node import jwt_keys
from musterd.coordinator.node.authority import CERT, KEY, Authority
from musterd.coordinator.node.config import ConfigError, load_settings
from musterd.coordinator.node.jwt_keys import ASKED_MAX, JwtKeys, body_of, fetch
from tests.identity_provider import AUDIENCE, ISSUER, ec_key, free_url, jwk, key_server, key_set

FIRST, SECOND = jwk(ec_key(), "k1"), jwk(ec_key(), "k2")
PATIENCE_S = 20


def keys_of(source, ca=None, changed=lambda: None):
    return JwtKeys(str(source), ca, JwtVerifier(ISSUER, AUDIENCE), changed)


def known(held):
    return set(held._verifier.keys)


def test_keys_of_a_url_are_taken_and_replaced():
    """Whoever is told of changes is told of changes alone."""
    told = []
    with key_server(FIRST) as server:
        held = keys_of(server.url, changed=lambda: told.append(1))
        assert asyncio.run(held.look())
        assert asyncio.run(held.look())
        assert (known(held), len(told)) == ({"k1"}, 1)
        server.body = key_set(SECOND)
        assert asyncio.run(held.look())
        assert (known(held), len(told), held.counts) == ({"k2"}, 2, (3, 0))


def test_keys_stay_while_their_source_fails_and_it_is_said_once(tmp_path):
    """Another status, no JSON, too much, too many, nobody there; each is a failure."""
    with key_server(FIRST) as server, capture_logs() as lines:
        held = keys_of(server.url)
        asyncio.run(held.look())
        server.status = 302
        assert not asyncio.run(held.look())
        assert not asyncio.run(held.look())
        server.status = 200
        for body in (
            b"<html>",
            b" " * (KEYS_BYTES_MAX + 2**20),
            key_set(*(FIRST | {"kid": f"{n}"} for n in range(10_000))),
            key_set(*(FIRST | {"kid": f"{n}"} for n in range(101))),
        ):
            server.body = body
            assert not asyncio.run(held.look())
        held._source = free_url()
        assert not asyncio.run(held.look())
        assert known(held) == {"k1"}
        assert held.counts == (1, 7)
    said = [one["error"] for one in lines if one["log_level"] == "warning"]
    assert "302" in said[0]
    assert len(said) == len(set(said)) <= 6
    assert max(map(len, said)) <= 300


@pytest.mark.parametrize("left", [(), ({"kty": "oct", "kid": "k1", "k": "c2VjcmV0"},)])
def test_keys_that_were_withdrawn_without_others_are_gone(left):
    """An empty set, or one of other kinds, is no failure: its tokens are nobody's from then on."""
    told = []
    with key_server(FIRST) as server, capture_logs() as lines:
        held = keys_of(server.url, changed=lambda: told.append(1))
        assert asyncio.run(held.look())
        server.body = key_set(*left)
        assert asyncio.run(held.look())
        assert asyncio.run(held.look())
        assert (known(held), len(told), held.counts) == (set(), 2, (3, 0))
    said = [one["event"] for one in lines if one["log_level"] == "warning"]
    assert said == ["the set of keys has none that can be used: no JWT is taken"]


def test_a_server_that_hangs_ends_with_the_time_and_holds_no_loop(monkeypatch):
    """Other tasks go on meanwhile, and the node could end."""
    monkeypatch.setattr(jwt_keys, "JWT_KEYS_FETCH_MS", 200)

    async def scenario(server):
        held, turns = keys_of(server.url), 0
        looks = asyncio.create_task(held.look())
        while not looks.done():
            await asyncio.sleep(0)
            turns += 1
        assert not looks.result()
        assert turns > 100
        monkeypatch.setattr(jwt_keys, "JWT_KEYS_FETCH_MS", 60_000)
        looks = asyncio.create_task(held.look())
        while server.asked < 2:
            await asyncio.sleep(0.01)
        looks.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looks

    with key_server(FIRST) as server:
        server.holds.set()
        asyncio.run(asyncio.wait_for(scenario(server), PATIENCE_S))


@contextlib.asynccontextmanager
async def followed(server):
    """Keys that have been read, and are looked at in the background."""
    held = keys_of(server.url)
    following = asyncio.create_task(held.follow())
    while not known(held):
        await asyncio.sleep(0.01)
    yield held
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following


def test_a_key_that_is_not_known_makes_one_look_and_no_more(monkeypatch):
    """However many tokens name it, and others; what was looked for in vain is refused."""
    monkeypatch.setattr(jwt_keys, "JWT_KEYS_GAP_MS", 50)

    async def scenario(server):
        async with followed(server) as held:
            server.body = key_set(FIRST, SECOND)
            for _ in range(1_000):
                assert held.want("k2")
                assert held.want("none")
            while "k2" not in known(held):
                await asyncio.sleep(0.01)
            assert server.asked == 2
            assert not held.want("none")
            for number in range(1_000):
                held.want(f"other-{number}")
                assert len(held._asked) <= ASKED_MAX

    with key_server(FIRST) as server:
        asyncio.run(asyncio.wait_for(scenario(server), PATIENCE_S))


def test_after_each_look_there_is_a_pause_whatever_is_asked(monkeypatch):
    """A flood of tokens with keys that are not known makes no flood of fetches."""
    monkeypatch.setattr(jwt_keys, "JWT_KEYS_GAP_MS", 3_600_000)

    async def scenario(server):
        async with followed(server) as held:
            for number in range(1_000):
                held.want(f"{number}")
                await asyncio.sleep(0)
            assert server.asked == 1

    with key_server(FIRST) as server:
        asyncio.run(asyncio.wait_for(scenario(server), PATIENCE_S))


def test_keys_of_a_file_are_read_again(tmp_path, monkeypatch):
    """A file that is gone, or cut, leaves those of before."""
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(FIRST))
    held = keys_of(file)
    assert asyncio.run(held.look())
    file.write_bytes(key_set(SECOND)[:-3])
    assert not asyncio.run(held.look())
    file.unlink()
    assert not asyncio.run(held.look())
    assert known(held) == {"k1"}
    file.write_bytes(key_set(SECOND))
    assert asyncio.run(held.look())
    assert known(held) == {"k2"}


def test_the_urls_certificate_is_checked(tmp_path):
    """By the authority that is named, or the system's."""
    authority = Authority.create(tmp_path / "certs", "c")
    made = authority.node(0, ["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.folder / CERT, made.folder / KEY)
    with key_server(FIRST, tls=context) as server:
        held = keys_of(server.url, tmp_path / "certs" / "ca.pem")
        assert asyncio.run(held.look())
        assert known(held) == {"k1"}
        for ca in (None, tmp_path / "missing.pem"):
            stranger = keys_of(server.url, ca)
            assert not asyncio.run(stranger.look())
            assert not known(stranger)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n{}",
        b"HTTP/1.1 " + b"9" * 5_000 + b" OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\n\r\n{}",
        b"\x16\x03\x01\x00\x02\x02\x28",
    ],
)
def test_an_answer_that_is_no_http_is_a_failure(raw):
    """Of the kinds that a look takes as such."""
    with pytest.raises((OSError, ValueError, http.client.HTTPException)):
        body_of(raw)


def test_a_server_that_never_ends_its_answer_is_cut_off():
    """At the bound of a set and a head."""

    async def scenario():
        sent = 0

        async def serve(_reader, writer):
            nonlocal sent
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            with contextlib.suppress(OSError):
                while sent < 64 * 2**20:
                    writer.write(b" " * 65_536)
                    sent += 65_536
                    await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ValueError, match="more than"):
            await fetch(urlsplit(f"http://127.0.0.1:{port}/"), None)
        assert sent < 64 * 2**20
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


ISSUED = {"data_dir": "/d", "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"jwt_issuer": ISSUER}, "belong together"),
        ({"jwt_audience": AUDIENCE, "jwt_keys": "https://idp/keys"}, "belong together"),
        (ISSUED | {"jwt_keys": "http://idp.test/keys"}, "whoever is on the way"),
        (ISSUED | {"jwt_keys": "https://user@idp.test/keys"}, "no user"),
        (ISSUED | {"jwt_keys": "https:///keys"}, "needs a host"),
        (ISSUED | {"jwt_keys": "https://idp.test/a b"}, "no spaces"),
        (ISSUED | {"jwt_keys": "https://idp.test/\r\nX: y"}, "no spaces"),
        (ISSUED | {"jwt_keys": "https://[x/keys"}, "jwt_keys|IPv6"),
        (ISSUED | {"jwt_keys": "/missing/keys.json"}, "jwt_keys: /missing/keys.json"),
        (ISSUED | {"jwt_keys": "/missing", "jwt_keys_ca": "/ca"}, "is for an https"),
        (ISSUED | {"jwt_keys": "https://idp.test/keys", "jwt_claim": ""}, "belong together"),
    ],
)
def test_settings_that_would_trust_too_much_or_nobody_are_refused(flags, why):
    """Before anything starts."""
    with pytest.raises(ConfigError, match=why):
        load_settings(None, {"data_dir": "/d"} | flags)


def test_a_file_is_read_at_the_start_and_a_url_is_not(tmp_path):
    """A provider that is down keeps no node from starting."""
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(FIRST))
    assert set(load_settings(None, ISSUED | {"jwt_keys": str(file)}).jwt.keys) == {"k1"}
    file.write_bytes(b"{}")
    with pytest.raises(ConfigError, match="no JWK set"):
        load_settings(None, ISSUED | {"jwt_keys": str(file)})
    for url in ("https://idp.test/keys?a=b", "http://[::1]:9/keys", free_url()):
        assert load_settings(None, ISSUED | {"jwt_keys": url}).jwt.keys == {}
    assert load_settings(None, {"data_dir": "/d"}).jwt is None
