"""TLS between nodes: sessions without sockets, and what a peer's certificate must say.

TLS 1.3 alone, both sides with a certificate of the peers' authority. Who a node is stands in its
certificate as the only URI of the form `muster://CLUSTER/node/ID`, or `.../node/NAME-ID`, which is
the name of its pod in Kubernetes; other names, such as those of the client port, say nothing here.
A stranger is judged by its certificate as soon as the handshake ends: nothing that it sends after
that is read before (docs/adr/0024).
"""

import contextlib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

HANDSHAKE_BYTE: Final = 0x16
"""The first byte of TLS on a connection; muster's own first byte is another one."""
PART_BYTES: Final = 16 * 1024
"""So much of what a stranger sends is read at a time."""
STRANGER_BYTES_MAX: Final = 64 * 1024
"""So much may arrive from a connection before its hello is taken."""
READ_BYTES: Final = 64 * 1024
TEXT_MAX: Final = 300
"""Characters of a reason that names what a stranger sent."""
URI_SCHEME: Final = "muster://"
ID_DIGITS_MAX: Final = 19
SET_CHARS_MAX: Final = 252
"""Characters of the name of a StatefulSet, which a pod's name begins with."""


class PeerTlsMode(StrEnum):
    """How a node talks to the others."""

    OFF = "off"
    """Plainly."""
    PREFER = "prefer"
    """By TLS where the other node speaks it, else plainly: on the way to `require` or back."""
    REQUIRE = "require"
    """By TLS alone."""


class PeerTlsError(Exception):
    """A session cannot go on; `reason` is the word under which it is counted."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(short(message))
        self.reason = reason


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a port: certificate, its key, and the authority of those who connect."""

    cert: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True)
class PeerContexts:
    """What was read from the files, for both directions."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def short(text: str) -> str:
    """`text` in one line of TEXT_MAX characters at most, without what a terminal obeys."""
    line = "".join(one if one.isprintable() else "?" for one in text[: TEXT_MAX + 1])
    return line if len(line) <= TEXT_MAX else line[: TEXT_MAX - 3] + "..."


def node_uri(cluster_id: str, node: int) -> str:
    """The name of a node in its certificate."""
    return f"{URI_SCHEME}{quote(cluster_id, safe='')}/node/{node}"


def names_node(uri: str, cluster_id: str, node: int) -> bool:
    """Whether a URI of a certificate says that it is this node's."""
    named, kind, name = _parts(uri)
    is_ours = uri.startswith(URI_SCHEME) and named == cluster_id and kind == "node"
    return is_ours and _node_in(name) == node


def read_contexts(files: TlsFiles) -> PeerContexts:
    """Read the files; blocks. Raises OSError (ssl.SSLError is one) and ValueError."""
    return PeerContexts(
        _context(files, ssl.PROTOCOL_TLS_SERVER), _context(files, ssl.PROTOCOL_TLS_CLIENT)
    )


def _context(files: TlsFiles, protocol: "ssl._SSLMethod") -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the node's id is checked instead
    context.verify_mode = ssl.CERT_REQUIRED
    if protocol is ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # connections last; no session is resumed
    context.load_cert_chain(files.cert, files.key, password=_no_passphrase)
    context.load_verify_locations(cafile=files.ca)
    return context


def _no_passphrase() -> str:
    """OpenSSL would ask on the terminal otherwise."""
    raise ValueError("the key has a passphrase: give a key without one")


class PeerTls:
    """The TLS of one node's peer port. `contexts` may be replaced while it runs."""

    def __init__(
        self, mode: PeerTlsMode, cluster_id: str, contexts: PeerContexts | None = None
    ) -> None:
        """Raises ValueError where `mode` needs contexts and there are none."""
        if mode is not PeerTlsMode.OFF and contexts is None:
            raise ValueError(f"peer_tls = {mode} needs certificates")
        self.mode = mode
        self._cluster_id = cluster_id
        self.contexts = contexts
        """Sessions that begin from now on have them; those that stand go on."""

    @property
    def requires(self) -> bool:
        return self.mode is PeerTlsMode.REQUIRE

    @property
    def speaks(self) -> bool:
        return self.mode is not PeerTlsMode.OFF

    def session(self, *, dials: bool) -> "TlsSession":
        """A new session; `dials`: this node connects, and speaks first."""
        if self.contexts is None:
            raise RuntimeError("peer_tls is off")
        context = self.contexts.client if dials else self.contexts.server
        return TlsSession(context, self._cluster_id, dials=dials)


class TlsSession:
    """One TLS connection without its socket: bytes in, bytes out.

    After the handshake `node` is the peer's id. Every method that reads may raise PeerTlsError;
    `outgoing` is to be sent before the connection is closed then, too.
    """

    def __init__(self, context: ssl.SSLContext, cluster_id: str, *, dials: bool) -> None:
        self._cluster_id = cluster_id
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=not dials)
        self.node: int | None = None

    def outgoing(self) -> bytes:
        """What is to be sent now; each byte once."""
        return self._out.read()

    def receive(self, data: bytes) -> bytes:
        """Take what arrived; return what it says, which may be nothing.

        Raises PeerTlsError where the handshake fails, the certificate is not a node's of this
        cluster, a record is damaged, or the other side ended the session.
        """
        self._in.write(data)
        try:
            if self.node is None and not self._shake_hands():
                return b""
            return b"".join(self._read())
        except ssl.SSLCertVerificationError as error:
            said = f"its certificate is refused: {error.verify_message}"
            raise PeerTlsError("certificate", said) from error
        except ssl.SSLError as error:
            raise PeerTlsError("tls", f"TLS with it fails: {error.reason or error}") from error

    def shake_hands(self) -> None:
        """Begin, where this side speaks first. Raises PeerTlsError."""
        self.receive(b"")

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.node = self._peer()
        return True

    def _read(self) -> Iterator[bytes]:
        with contextlib.suppress(ssl.SSLWantReadError):
            while True:
                part = self._tls.read(READ_BYTES)
                if not part:  # close_notify: it says this again each time
                    raise PeerTlsError("tls_ended", "it ended the session")
                yield part

    def _peer(self) -> int:
        try:
            names = self._names()
        except (ValueError, SystemError) as error:  # of bytes that are no text, and odd forms
            raise PeerTlsError(
                "certificate", "its certificate has names that are no text"
            ) from error
        nodes = [name for name in names if name.startswith(URI_SCHEME)]
        if len(nodes) != 1:
            found = f"{len(nodes)} names of the form {URI_SCHEME}CLUSTER/node/ID, not one"
            raise PeerTlsError("certificate", f"its certificate has {found}")
        cluster_id, kind, name = _parts(nodes[0])
        node = _node_in(name)
        if kind != "node" or node is None:
            said = f"its certificate is of {nodes[0]!r}, which is no node"
            raise PeerTlsError("certificate", said)
        if cluster_id != self._cluster_id:
            said = (
                f"its certificate is of cluster {cluster_id!r}, this node of {self._cluster_id!r}"
            )
            raise PeerTlsError("certificate", said)
        return node

    def _names(self) -> list[str]:
        said = self._tls.getpeercert() or {}
        pairs = said.get("subjectAltName", ())
        return [str(pair[1]) for pair in pairs if pair[0] == "URI"]

    def send(self, data: bytes) -> bytes:
        """`data` as it travels, after everything that was to be sent before it."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self._out.read()


def _parts(uri: str) -> tuple[str, str, str]:
    cluster_id, _, rest = uri.removeprefix(URI_SCHEME).partition("/")
    kind, _, name = rest.partition("/")
    return unquote(cluster_id), kind, name


def _node_in(name: str) -> int | None:
    """The id that stands in a URI, by itself or at the end of the name of a pod; None: neither."""
    before, dash, ident = name.rpartition("-")
    if dash and not _begins_pod(before):
        return None
    is_id = ident.isascii() and ident.isdigit() and len(ident) <= ID_DIGITS_MAX
    return int(ident) if is_id else None


def _begins_pod(text: str) -> bool:
    if len(text) > SET_CHARS_MAX or not text[:1].isalnum():
        return False
    letters = text.replace("-", "").replace(".", "")
    return letters.isascii() and letters.isalnum()
