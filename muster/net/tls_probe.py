"""Finds out why TLS keeps a connection from being made, since gRPC seldom says it.

Asked once a connection has failed: a handshake of our own, with the same files, that is looked at.
"""

import socket
import ssl
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from muster import timeouts
from muster.net.tls import Tls

_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_OTHER_NAMES: Final = frozenset({62, 64})
"""OpenSSL's numbers of what is wrong with a certificate (X509_V_ERR_*): a name, an address."""

_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})


class TlsFault(Enum):
    """A cause of failed TLS, and its remedies: with the SDK, with a command."""

    PLAIN_CLIENT = (
        "give Client(tls=muster.Tls(ca=FILE)), the certificate of the nodes' authority",
        "let MUSTER_TLS_CA, or the folder MUSTER_TLS_DIR, have the nodes' authority's certificate",
    )
    PLAIN_NODE = (
        "leave Client(tls=...) out, or reach the node by its port that speaks TLS",
        "unset MUSTER_TLS_DIR, _CA, _CERT and _KEY, or name another port",
    )
    AUTHORITY = (
        "let Tls(ca=FILE) name the certificate of the authority that signed the node's",
        "let MUSTER_TLS_CA name the certificate of the authority that signed the node's",
    )
    NAME = (
        "reach the node by a name in its certificate, or give it a certificate for this one",
        "reach the node by a name in its certificate, or give it a certificate for this one",
    )
    TIME = (
        "give the node a certificate that is valid now; compare the clocks of both machines",
        "give the node a certificate that is valid now; compare the clocks of both machines",
    )
    CLIENT_CERTIFICATE = (
        "let Tls(cert=FILE, key=FILE) name a certificate of the authority that the node trusts",
        "let MUSTER_TLS_DIR, or MUSTER_TLS_CERT and _KEY, name one of the node's authority",
    )

    def __init__(self, sdk_hint: str, command_hint: str) -> None:
        self.sdk_hint = sdk_hint
        self.command_hint = command_hint


@dataclass(frozen=True, slots=True)
class TlsTrouble:
    """The fault between this client and a node; `message` is one line that names the node."""

    fault: TlsFault
    message: str


def find_trouble(
    endpoint: str, tls: Tls | None, context: ssl.SSLContext | None = None
) -> TlsTrouble | None:
    """Shake hands with a node as gRPC would; None where TLS is not what is wrong.

    The files are read now, or have been by `client_context`.
    Blocks for TLS_PROBE_MS at most for each of connecting, the handshake and the node's first byte.
    """
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    timeout_s = timeouts.TLS_PROBE_MS / 1000
    try:
        with socket.create_connection((host, int(port)), timeout_s) as connected:
            return _shake_hands(connected, endpoint, host, tls, context or client_context(tls))
    except ssl.SSLCertVerificationError as error:
        return _of_certificate(endpoint, host, error)
    except ssl.SSLError as error:
        return _of_handshake(endpoint, error.reason or "", tls)
    except (OSError, ValueError):  # nobody listens, the node ends, no such name: not of TLS
        return None


def _shake_hands(
    connected: socket.socket, endpoint: str, host: str, tls: Tls | None, context: ssl.SSLContext
) -> TlsTrouble | None:
    with context.wrap_socket(connected, server_hostname=host) as secure:
        if tls is None:
            message = f"{endpoint} speaks TLS, and this client does not"
            return TlsTrouble(TlsFault.PLAIN_CLIENT, message)
        if secure.recv(1):  # gRPC speaks first
            return None
    # With TLS 1.3 a client's certificate is judged when its own handshake is over; gRPC's servers
    # then close without a word.
    return _of_client_certificate(endpoint, tls)


def client_context(tls: Tls | None) -> ssl.SSLContext:
    """Read the files as gRPC does."""
    context = ssl.create_default_context()
    if tls is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif tls.ca:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # gRPC trusts each of `ca`, too
        context.load_verify_locations(cadata=Path(tls.ca).read_text("latin-1"))
    if tls is not None and tls.cert:
        context.load_cert_chain(tls.cert, tls.key)
    context.set_alpn_protocols(["h2"])
    return context


def _of_certificate(endpoint: str, host: str, error: ssl.SSLCertVerificationError) -> TlsTrouble:
    code, said = error.verify_code, error.verify_message
    if code == _EXPIRED:
        return TlsTrouble(TlsFault.TIME, f"{endpoint}: the node's certificate has expired")
    if code == _NOT_YET_VALID:
        return TlsTrouble(TlsFault.TIME, f"{endpoint}: the node's certificate is not valid yet")
    if code in _OTHER_NAMES:
        message = f"{endpoint}: the node's certificate is not for {host}"
        return TlsTrouble(TlsFault.NAME, message)
    message = f"{endpoint}: the node's certificate is of no authority that is trusted here: {said}"
    return TlsTrouble(TlsFault.AUTHORITY, message)


def _of_handshake(endpoint: str, reason: str, tls: Tls | None) -> TlsTrouble | None:
    if tls is None:
        return None
    if reason in _NOT_TLS:
        message = f"{endpoint} does not speak TLS, and this client does"
        return TlsTrouble(TlsFault.PLAIN_NODE, message)
    if "_ALERT_" in reason:
        return _of_client_certificate(endpoint, tls)
    return None


def _of_client_certificate(endpoint: str, tls: Tls) -> TlsTrouble:
    if tls.cert:
        message = f"{endpoint} refuses the certificate that this client shows"
    else:
        message = f"{endpoint} demands a client certificate, and this client shows none"
    return TlsTrouble(TlsFault.CLIENT_CERTIFICATE, message)
