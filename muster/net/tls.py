"""The PEM files of a client's connections."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import grpc

from muster.errors import InvalidConfig

VARIABLE: Final = "MUSTER_TLS_"
"""How the variables of `Tls.from_environment` begin."""
FILES: Final = {"CA": "ca.pem", "CERT": "cert.pem", "KEY": "key.pem"}
"""The ends of those that name one file, and what it is called in a folder of `muster cert`."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for connections.

    Without `ca` the system's authorities count; without `cert` and `key` the client shows no
    certificate.
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
