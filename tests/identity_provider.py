"""An identity provider for tests: keys, JWTs, and its key set on loopback."""

import base64
import json
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ISSUER, AUDIENCE = "https://idp.test", "muster"
ALGORITHMS = {
    rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
    ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
    ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
}


def ec_key(curve=ec.SECP256R1):
    return ec.generate_private_key(curve())


def rsa_key(bits=2048):
    return rsa.generate_private_key(65537, bits)


def jwk(key, kid, **fields):
    """The public half of a key, as a key set has it."""
    kind = next(one for owner, one in ALGORITHMS.items() if isinstance(key, owner))
    return kind.to_jwk(key.public_key(), as_dict=True) | {"kid": kid, "use": "sig"} | fields


def key_set(*keys):
    return json.dumps({"keys": list(keys)}).encode()


def pem_of(key):
    """The public half as everybody knows it: what algorithm confusion signs with."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def claims(now_ms=None, **others):
    """Of a sound token; a claim that is None is left out."""
    now = int(time.time()) if now_ms is None else now_ms // 1_000
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "iat": now, "nbf": now, "exp": now + 300}
    return {name: value for name, value in (said | others).items() if value is not None}


def signed(key, kid="k1", algorithm="ES256", headers=None, **others):
    """A token of this provider."""
    heads = {"kid": kid} | (headers or {})
    heads = {name: value for name, value in heads.items() if value is not None}
    return jwt.encode(claims(**others), key, algorithm, heads)


def by_hand(header, body, signature=b""):
    """A token whose parts are what they are."""
    parts = (json.dumps(header).encode(), json.dumps(body).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


class KeySetServer:
    """Serves `body` over HTTP on loopback, and counts how often it was asked."""

    def __init__(self):
        self.body, self.status, self.asked = b"", 200, 0
        self.holds = threading.Event()
        """While it is set, an answer is begun and not ended."""
        self.ended = threading.Event()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                provider.asked += 1
                self.send_response(provider.status)
                self.send_header("Content-Length", str(len(provider.body)))
                self.end_headers()
                if provider.holds.is_set():
                    provider.ended.wait(60)
                    return
                self.wfile.write(provider.body)

            def log_message(self, *_args): ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/keys"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def use_tls(self, context):
        """From now on it speaks TLS."""
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_address[1]}/keys"

    def start(self):
        self._thread.start()

    def stop(self):
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def key_server(*keys, tls=None):
    server = KeySetServer()
    server.body = key_set(*keys)
    if tls is not None:
        server.use_tls(tls)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def free_url():
    """A URL at which nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{one.getsockname()[1]}/keys"
