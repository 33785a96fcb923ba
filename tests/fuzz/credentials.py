"""Decoders of what says who somebody is: certificates of clients and nodes, JWTs, their keys."""

import base64
import json
import ssl
import tempfile
from functools import cache
from pathlib import Path
from random import Random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from musterd.coordinator.api.frame.client_certificate import principal_of, valid_until_s
from musterd.coordinator.api.frame.jwt_verifier import JwtVerifier, parse_keys
from musterd.raft.tls import TlsSession
from tests.fuzz.mutation import as_json, changed_bytes, changed_json

CLUSTER_ID = "dev"
ISSUER, AUDIENCE, KID = "https://idp.test", "muster", "e"
NOW_MS = 1_800_000_000_000
SIGNER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
"""Its public half is in the corpus of key sets, as KID."""
SEQUENCES, LONG_LENGTH = 0x20, 0x80
"""The bit of a tag whose value has parts; from which a length has bytes of its own."""


def pem_of(certificate: bytes) -> bytes:
    """As gRPC tells it."""
    text = base64.encodebytes(certificate)
    return b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n"


def client_certificate(data: bytes) -> None:
    """A client's certificate (DER), by both ways of naming it."""
    pem = pem_of(data)
    for named_by in ("uri", "cn"):
        principal_of.__wrapped__(pem, CLUSTER_ID, named_by)
    valid_until_s.__wrapped__(pem)


class _Handshake:
    """A session whose other side has shown a certificate."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def getpeercert(self) -> object:
        """Decode it by the function that a session's method of this name has."""
        return ssl._ssl._test_decode_cert(str(self._path))


@cache
def _scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="muster-fuzz-")) / "peer.pem"


def peer_certificate(data: bytes) -> None:
    """A node's certificate (DER), behind a handshake that took it."""
    _scratch().write_bytes(pem_of(data))
    session = TlsSession.__new__(TlsSession)
    session._cluster_id, session._tls = CLUSTER_ID, _Handshake(_scratch())
    session._peer()


def make_certificate(rng: Random, corpus: list[bytes]) -> bytes:
    """A certificate with one part changed, of which the lengths around it are right."""
    data = rng.choice(corpus)
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = changed_bytes(rng, data) if rng.random() < 0.1 else changed_der(rng, data)
    return data


def parts_of(data: bytes) -> list[tuple[int, bytes]]:
    """Tags and values, one after the other; none where it is no DER."""
    found, at = [], 0
    while at < len(data):
        tag, at = data[at], at + 1
        if at >= len(data):
            return []
        size, at = data[at], at + 1
        if size & LONG_LENGTH:
            count = size & 0x7F
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + size > len(data):
            return []
        found.append((tag, data[at : at + size]))
        at += size
    return found


def der(tag: int, value: bytes) -> bytes:
    """A part with its length."""
    size = len(value)
    if size < LONG_LENGTH:
        return bytes((tag, size)) + value
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, LONG_LENGTH | len(length))) + length + value


def changed_der(rng: Random, data: bytes) -> bytes:
    """It with one part changed, dropped, doubled, or put elsewhere."""
    parts = parts_of(data)
    if not parts:
        return changed_bytes(rng, data)
    at = rng.randrange(len(parts))
    tag, value = parts[at]
    inside = parts_of(value) if tag & SEQUENCES or tag == 0x04 else []  # or an octet string
    if inside and rng.random() < 0.85:
        parts[at] = tag, changed_der(rng, value)
    else:
        match rng.randrange(6):
            case 0:
                parts[at] = tag, changed_bytes(rng, value)
            case 1:
                parts[at] = rng.randrange(256), value
            case 2:
                del parts[at]
            case 3:
                parts.insert(at, parts[at])
            case 4:
                parts[at] = tag, value * rng.choice((2, 40))
            case _:
                rng.shuffle(parts)
    return b"".join(der(tag, value) for tag, value in parts)


# ---- JWTs


@cache
def _verifier() -> JwtVerifier:
    verifier = JwtVerifier(ISSUER, AUDIENCE)
    corpus = (Path(__file__).parent / "corpus" / "jwt_keys.txt").read_text("ascii")
    verifier.use(parse_keys(bytes.fromhex(corpus.split()[1])))
    return verifier


def jwt_text(data: bytes) -> None:
    """A JWT as a call shows it; whoever it is, is behind the prefix."""
    found = _verifier().verify(data.decode("utf-8", "surrogateescape"), NOW_MS)
    if not isinstance(found, str):
        assert found.principal.startswith("jwt:")
        assert found.expires_wall_ms > NOW_MS


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _decoded(text: bytes) -> bytes:
    return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))


def signed(header: bytes, body: bytes) -> bytes:
    """A token of these parts with the signature of the provider."""
    text = _encoded(header) + b"." + _encoded(body)
    return text + b"." + _encoded(SIGNER.sign(text))


def make_jwt(rng: Random, corpus: list[bytes]) -> bytes:
    """A token whose header or claims are others, mostly signed by the provider."""
    text = rng.choice(corpus)
    if rng.random() < 0.1:
        return changed_bytes(rng, text)
    header, body = (_decoded(part) for part in text.split(b".")[:2])
    if rng.random() < 0.5:
        body = as_json(changed_json(rng, json.loads(body)))
    elif rng.random() < 0.7:
        header = as_json(changed_json(rng, json.loads(header)))
    else:
        body = changed_bytes(rng, body)
    token = signed(header, body)
    return changed_bytes(rng, token) if rng.random() < 0.1 else token
