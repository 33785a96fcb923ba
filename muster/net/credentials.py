"""What a client shows of itself, as its files have it: a certificate, a bearer token, or both.

A call may last longer than what it shows. It is refused then, and made again where the files have
another credential than it showed: once for each, so that what is refused for good comes to an end.
"""

import threading
from pathlib import Path
from typing import Final

from muster.errors import ErrorCode
from muster.net.bearer_token import BearerToken, Metadata, is_loopback
from muster.net.tls import Tls

REFUSALS: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""What a call that waits is answered when its token or certificate ends, and whoever may not."""

Shown = tuple[bytes, Metadata]
"""A certificate in PEM (empty: none) and a token, as one call shows them."""


class Credentials:
    """The certificate and token of one client. Threads may share it."""

    def __init__(self, tls: Tls | None, token: BearerToken | None) -> None:
        """Read the files.

        Raises:
            InvalidConfig: those of `tls` cannot be read.
        """
        self._tls, self._token = tls, token
        self._lock = threading.Lock()
        self._stamps = tls.stamps() if tls else ()
        self._certificate = _certificate_of(tls)
        self.channel = tls.credentials() if tls else None
        """For new channels; None: they are plain."""

    @property
    def has_files(self) -> bool:
        """Whether there are files of TLS, which may change."""
        return bool(self._stamps)

    def metadata(self, endpoint: str) -> Metadata:
        """The metadata of a call to a node: nothing where others can listen."""
        if self._token is None or not self.is_private(endpoint):
            return ()
        return self._token.metadata()

    def is_private(self, endpoint: str) -> bool:
        """Whether nobody can listen to calls to a node."""
        return self.channel is not None or is_loopback(endpoint)

    def shown(self) -> Shown:
        """What a call would show now."""
        return self._certificate, self._token.metadata() if self._token is not None else ()

    def renew(self) -> bool:
        """Read files of TLS that have changed and belong together; whether `channel` is another."""
        with self._lock:
            if self._tls is None or (now := self._tls.stamps()) == self._stamps:
                return False
            certificate = _certificate_of(self._tls)
            channel = self._tls.renewed_credentials()
            if channel is None:
                return False
            self._stamps, self._certificate, self.channel = now, certificate, channel
            return True


def _certificate_of(tls: Tls | None) -> bytes:
    """The file's bytes; empty where there is none, or it is gone: `renewed_credentials` says so."""
    try:
        return Path(tls.cert).read_bytes() if tls is not None and tls.cert else b""
    except OSError:
        return b""
