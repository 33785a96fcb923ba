"""The PEM files of a client's connections."""

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import grpc

from muster.errors import InvalidConfig
from muster.net.file_stamp import stamp

VARIABLE: Final = "MUSTER_TLS_"
"""How the variables of `Tls.from_environment` begin."""
FILES: Final = {"CA": "ca.pem", "CERT": "cert.pem", "KEY": "key.pem"}
"""The ends of those that name one file, and what it is called in a folder of `muster cert`."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for connections.

    Without `ca` the system's authorities count; without `cert` and `key` the client shows no
    certificate. Files that change are read again within seconds (`TLS_FILES_LOOK_MS`), and new
    connections have what is there then.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""

    @classmethod
    def from_environment(cls) -> Self | None:
        """What the environment asks for, as the commands do; None: connect plainly.

        `MUSTER_TLS_DIR` names a folder as `muster cert client` makes it; `MUSTER_TLS_CA`, `_CERT`
        and `_KEY` name one file each, and win.
        """
        folder = os.environ.get(f"{VARIABLE}DIR", "")
        ca, cert, key = (
            os.environ.get(VARIABLE + end, "") or (str(Path(folder) / name) if folder else "")
            for end, name in FILES.items()
        )
        return cls(ca, cert, key) if ca or cert or key else None

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files now.

        Raises:
            InvalidConfig: a file cannot be read, or only one of `cert` and `key` is given.
        """
        if bool(self.cert) != bool(self.key):
            raise InvalidConfig("tls: cert and key go together")
        try:
            ca, cert, key = (
                Path(name).read_bytes() if name else None for name in (self.ca, self.cert, self.key)
            )
        except OSError as error:
            raise InvalidConfig(f"tls: {error}") from error
        return grpc.ssl_channel_credentials(ca, key, cert)

    def renewed_credentials(self) -> grpc.ChannelCredentials | None:
        """Read files that have changed; None while they do not belong together."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            if self.ca:
                context.load_verify_locations(self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.key, password=no_passphrase)
            return self.credentials()
        except (OSError, ValueError, InvalidConfig):  # ssl.SSLError is an OSError
            return None

    def stamps(self) -> tuple[tuple[int, ...], ...]:
        """When each file was written, as far as the file system says it."""
        return tuple(stamp(name) for name in (self.ca, self.cert, self.key) if name)


def no_passphrase() -> str:
    """OpenSSL would ask on the terminal otherwise."""
    raise ValueError("the key has a passphrase")
