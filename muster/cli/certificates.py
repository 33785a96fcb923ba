"""Until when a node's certificate is valid, as a client sees it."""

import socket
import ssl
from typing import Final

from muster.net.nodes import parse_endpoints
from muster.net.tls import Tls, no_passphrase

CONNECT_S: Final = 3.0


def served_until(endpoint: str, files: Tls) -> float:
    """Seconds since 1970 at which the certificate of the node at "host:port" ends.

    Raises OSError (ssl.SSLError among them) where no handshake succeeds, ValueError where the
    certificate does not say it.
    """
    host, _, port = parse_endpoints(endpoint)[0].rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=files.ca or None)
    context.set_alpn_protocols(["h2"])
    if files.cert and files.key:
        context.load_cert_chain(files.cert, files.key, password=no_passphrase)
    with (
        socket.create_connection((host, int(port)), CONNECT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        until = (connection.getpeercert() or {}).get("notAfter")
    if not until:
        raise ValueError("the certificate does not say until when it is valid")
    return float(ssl.cert_time_to_seconds(str(until)))
