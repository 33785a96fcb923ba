"""The check that a call comes from an operator, who has the cluster's secret.

Where there are no rules, the RPCs whose row says `by_operator` (rpc_rules.py) need it, or the
certificate of a superuser or node (`ActiveCall.authorize`), and all others are any client's.
"""

import hmac
from collections.abc import Iterable
from pathlib import Path
from typing import Final

METADATA_KEY: Final = "muster-admin-secret-bin"
"""The call's metadata that carries the secret (muster/admin/operator_secret.py)."""

SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 1_024

NOT_ENABLED: Final = (
    "This node is reachable from beyond its machine and has no admin secret, so it takes such "
    "calls by superusers' certificates alone: show one, or set admin_secret_file on every node."
)
NOT_SHOWN: Final = (
    "This call needs the admin secret of the cluster, whose file MUSTER_ADMIN_SECRET_FILE names, "
    "or a superuser's certificate."
)

HEARD: Final = (
    "The admin secret is not taken over a connection without TLS, but on loopback: whoever listens "
    "has it now, so give all nodes another one."
)


class OperatorAccess:
    """Decides whether a call has shown the cluster's secret."""

    def __init__(
        self, secret: bytes | None, *, on_loopback: bool, in_the_clear: bool = False
    ) -> None:
        """`secret` None: there is none, and calls without a certificate need loopback.

        `on_loopback`: `listen` and `peer_listen` are on loopback.
        `in_the_clear`: the secret is taken over any connection.
        """
        self._secret = secret
        self._on_loopback = on_loopback
        self._in_the_clear = in_the_clear

    @property
    def is_open(self) -> bool:
        """True where calls need nothing."""
        return self._secret is None and self._on_loopback

    @property
    def has_secret(self) -> bool:
        """Whether there is a secret to show."""
        return self._secret is not None

    def refusal(
        self, metadata: Iterable[tuple[str, str | bytes]], *, is_private: bool
    ) -> str | None:
        """Why a call with this metadata is refused; None where it is not.

        `is_private`: nobody could listen to it. A secret that others have heard is none.
        """
        if self.is_open:
            return None
        if self._secret is None:
            return NOT_ENABLED
        given = [value for key, value in metadata if key == METADATA_KEY]
        if given and not is_private and not self._in_the_clear:
            return HEARD
        equal = [isinstance(one, bytes) and hmac.compare_digest(one, self._secret) for one in given]
        return None if any(equal) else NOT_SHOWN


LOOPBACK: Final = OperatorAccess(None, on_loopback=True)


def read_secret(path: Path) -> bytes:
    """The secret in a file, without white space around it. Raises OSError, ValueError."""
    secret = path.read_bytes().strip()
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise ValueError(
            f"{path}: a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, this one has "
            f"{len(secret)}"
        )
    return secret
