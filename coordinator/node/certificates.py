"""The certificates of a node's ports: read at the start, and again when a file changes.

Connections that stand keep what they began with; new ones have what was read last. Files that
cannot be used leave what was there in place, with a line in the log.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import structlog

from muster.net.file_stamp import stamp
from muster.net.tls import Tls
from musterd.coordinator.api.frame.certificate_contents import end_of, names_of
from musterd.coordinator.api.frame.client_certificate import principal_of
from musterd.coordinator.node.config import ConfigError, Settings
from musterd.coordinator.runtime.timeouts import CERTIFICATES_LOOK_MS
from musterd.raft.identity import Identity
from musterd.raft.tls import (
    PeerContexts,
    PeerTls,
    PeerTlsMode,
    TlsFiles,
    names_node,
    node_uri,
    read_contexts,
)

log = structlog.get_logger()

MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ClientPort:
    """What the client port shows, and how this node calls those of others."""

    server: grpc.ServerCertificateConfiguration
    channels: grpc.ChannelCredentials
    """It trusts its own certificate and `tls_ca`."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What all files held at one time."""

    clients: ClientPort | None
    peers: PeerContexts | None
    valid_until: dict[str, float]
    """Port ("clients", "peers") -> seconds since 1970 at which its certificate ends."""


class Certificates:
    """Reads the files of one node; `follow` does so for ever. Blocks only in threads then."""

    def __init__(self, settings: Settings, identity: Identity) -> None:
        """Read all files. Raises ConfigError where one cannot be used."""
        self._settings, self._identity = settings, identity
        self._told = ""
        """Why those that changed cannot be used, as it was said last."""
        self._stamps = self._stamp()
        try:
            self.loaded = self._load()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"certificates: {error}",
                "give PEM files that belong together, keys without a passphrase; "
                "`muster doctor --config FILE` looks at them",
            ) from error
        mode = PeerTlsMode(settings.peer_tls_mode)
        self.peers = PeerTls(mode, identity.cluster_id, self.loaded.peers)
        self.changed: list[Callable[[Loaded], None]] = []
        """Called on the loop with what was read anew."""

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """Credentials of the client port; each handshake has what was read last."""
        if self.loaded.clients is None:
            return None
        told: list[object] = [self.loaded]

        def newer() -> grpc.ServerCertificateConfiguration | None:
            """From a thread of gRPC, at each handshake; None where nothing changed."""
            now = self.loaded
            if now is told[0] or now.clients is None:
                return None
            told[0] = now
            return now.clients.server

        return grpc.dynamic_ssl_server_credentials(
            self.loaded.clients.server,
            newer,  # type: ignore[arg-type]  # the stubs forget that None means: as before
            require_client_authentication=self._settings.tls_ca is not None,
        )

    @property
    def channels(self) -> grpc.ChannelCredentials | None:
        """Credentials of calls to client ports."""
        return None if self.loaded.clients is None else self.loaded.clients.channels

    @property
    def shows_node(self) -> bool:
        """Whether other nodes' client ports learn from its certificate that it is this node."""
        settings = self._settings
        if settings.tls_cert is None or settings.tls_ca is None:
            return False
        found = principal_of(settings.tls_cert.read_bytes(), self._identity.cluster_id)
        return found is not None and found.node == self._identity.node_id

    @property
    def own(self) -> Tls | None:
        """How this node calls itself and no other."""
        settings = self._settings
        if settings.tls_cert is None or settings.tls_key is None:
            return None
        return Tls(str(settings.tls_cert), str(settings.tls_cert), str(settings.tls_key))

    async def follow(self) -> None:
        """Look at the files again and again, in a thread."""
        while self._stamps:
            await asyncio.sleep(CERTIFICATES_LOOK_MS / MS)
            loaded = await asyncio.to_thread(self.look)
            if loaded is not None:
                self.use(loaded)

    def look(self) -> Loaded | None:
        """Read the files if one has changed; None where none has, or they cannot be used."""
        stamps = self._stamp()
        if stamps == self._stamps:
            return None
        try:
            loaded = self._load()
        except (OSError, ValueError) as error:
            if str(error) != self._told:  # the next look tries again: it may be readable then
                self._told = str(error)
                log.warning(
                    "new certificates cannot be used: those of before stay", error=self._told
                )
            return None
        self._told, self._stamps = "", stamps
        return loaded

    def use(self, loaded: Loaded) -> None:
        """From now on connections begin with these."""
        self.loaded = loaded
        self.peers.contexts = loaded.peers
        for tell in self.changed:
            tell(loaded)
        log.info("certificates were read anew", valid_until=loaded.valid_until)

    def _stamp(self) -> dict[Path, tuple[int, ...]]:
        """When each file was written, as far as the file system says it."""
        settings = self._settings
        names = (settings.tls_cert, settings.tls_key, settings.tls_ca)
        peers = settings.peer_files
        of_peers = (peers.cert, peers.key, peers.ca) if peers else ()
        return {name: stamp(str(name)) for name in (*names, *of_peers) if name is not None}

    def _load(self) -> Loaded:
        settings, valid_until = self._settings, {}
        clients = peers = None
        for name in self._stamp():
            name.open("rb").close()  # an error of OpenSSL does not say which file it is
        if settings.tls_cert is not None and settings.tls_key is not None:
            clients = _client_port(settings.tls_cert, settings.tls_key, settings.tls_ca)
            valid_until["clients"] = end_of(settings.tls_cert.read_bytes())
        files = settings.peer_files
        if files is not None:
            peers = read_contexts(files)
            certificate = files.cert.read_bytes()
            self._check_own(files, certificate)
            valid_until["peers"] = end_of(certificate)
        return Loaded(clients, peers, valid_until)

    def _check_own(self, files: TlsFiles, certificate: bytes) -> None:
        """Raise ValueError where the other nodes would not take it for this node's."""
        identity = self._identity
        own = node_uri(identity.cluster_id, identity.node_id)
        uris = names_of(certificate).uris
        if not any(names_node(uri, identity.cluster_id, identity.node_id) for uri in uris):
            raise ValueError(f"{files.cert}: its names lack this node's, {own}")


def _client_port(cert: Path, key: Path, ca: Path | None) -> ClientPort:
    # A key with a passphrase, or of another certificate, is an error here, not in gRPC's log.
    read_contexts(TlsFiles(cert, key, ca or cert))
    chain, secret = cert.read_bytes(), key.read_bytes()
    authority = ca.read_bytes() if ca else None
    return ClientPort(
        grpc.ssl_server_certificate_configuration([(secret, chain)], authority),
        grpc.ssl_channel_credentials(chain + b"\n" + (authority or b""), secret, chain),
    )
