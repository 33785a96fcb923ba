"""The bearer token that a client shows with each call, given as it is or in a file."""

import contextlib
import ipaddress
from pathlib import Path

from muster.errors import InvalidConfig
from muster.net.file_stamp import stamp

METADATA_KEY = "authorization"
"""The key under which a call's metadata carry the token."""

FILE_VARIABLE = "MUSTER_TOKEN_FILE"

TOKEN_BYTES_MAX = 8_192

Metadata = tuple[tuple[str, str], ...]


class BearerToken:
    """A client's token. A file is read again when it has changed, so tokens can be renewed."""

    def __init__(self, token: str = "", file: str = "") -> None:
        """Give one of both.

        Raises:
            InvalidConfig: both are given, the file cannot be read, or what is given is no token.
        """
        if token and file:
            raise InvalidConfig("token and token_file: give one of them")
        self._file = file
        self._stamp: tuple[int, ...] = ()
        self._metadata = _metadata_of(token) if token else ()
        if file:
            try:
                self._read()
            except OSError as error:
                raise InvalidConfig(f"token_file: {error}") from error

    def metadata(self) -> Metadata:
        """What a call shows now; a file that cannot be read any more counts as it was."""
        if self._file:
            with contextlib.suppress(OSError, InvalidConfig):
                self._read()
        return self._metadata

    def _read(self) -> None:
        now = stamp(self._file)
        if now != self._stamp or not now:
            self._metadata = _metadata_of(Path(self._file).read_text("utf-8").strip())
            self._stamp = now


def _metadata_of(token: str) -> Metadata:
    printable = token.isascii() and token.isprintable() and " " not in token
    if not printable or not 0 < len(token) <= TOKEN_BYTES_MAX:
        raise InvalidConfig(
            "that is no token: `muster token create` prints one",
            hint="give its text alone, without quotes",
        )
    return ((METADATA_KEY, f"Bearer {token}"),)


def is_loopback(endpoint: str) -> bool:
    """Whether host:port is on this machine, as it is written."""
    host = endpoint.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
