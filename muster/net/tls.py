"""The PEM files of a client's connections."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from muster.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for connections.

    Without `ca` the system's authorities count; without `cert` and `key` the client shows no
    certificate.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""

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
