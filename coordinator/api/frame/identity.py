"""Finds out who calls: by the operators' secret, a bearer token, or a client certificate.

A bearer token is one of this cluster, or a JWT of the identity provider (`jwt_verifier.py`). The
text of the former is `muster_<id>_<secret>`. Shard 0 has the blake2b hash of the secret, so who
reads the state or a backup cannot show the token.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from musterd.coordinator.api.frame.client_certificate import (
    NamedBy,
    principal_of,
    valid_until_s,
)
from musterd.coordinator.api.frame.jwt_verifier import JwtVerifier
from musterd.coordinator.api.frame.operator_access import LOOPBACK, METADATA_KEY, OperatorAccess
from musterd.coordinator.machine.access import (
    NODE_PREFIX,
    OPERATOR,
    Operation,
    Resource,
    Token,
    TokenScope,
    is_reserved,
)

if TYPE_CHECKING:
    from musterd.coordinator.machine.records.shard_records import ShardState

AUTHORIZATION: Final = "authorization"
BEARER: Final = "bearer "
PREFIX: Final = "muster_"
SECRET_BYTES: Final = 32
ID_BYTES: Final = 8
BEARER_CHARS_MAX: Final = 8_192
"""Longer credentials are nobody's."""

KNOWN_MAX: Final = 10_000
"""Callers that are kept; one more, and all are asked anew."""

MS: Final = 1_000

NOBODY: Final = (
    "This cluster has rules of who may do what: show a bearer token or a client certificate."
)
NOT_VALID: Final = "The bearer token is not valid, has expired or was revoked."
CERTIFICATE_ENDED: Final = (
    "The client certificate of this connection has expired: connect with a new one."
)
UNNAMED: Final = (
    "The client certificate names nobody of this cluster (docs/secure.md): show another or a token."
)
CERTIFICATE_KEY: Final = "x509_pem_cert"
"""Under which gRPC tells the certificate that it has checked."""
IN_CLEAR: Final = (
    "A bearer token, and the admin secret, are not taken over a connection without TLS, but on "
    "loopback: whoever listens has them now, so revoke them."
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls. `expires_wall_ms` 0: it does not end by itself."""

    principal: str
    is_operator: bool = False
    """Whether it may do everything, whatever the rules say."""
    scopes: tuple[TokenScope, ...] = ()
    expires_wall_ms: int = 0
    by_token: bool = False
    by_certificate: bool = False
    """Whether it is a client by its certificate; a node is not."""

    def covers(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether its scopes have this; without any they have everything."""
        if not self.scopes:
            return True
        return any(scope.covers(operation, resource, name) for scope in self.scopes)


class CallerContext(Protocol):
    """A call, as far as it says who makes it."""

    def peer(self) -> str:
        """The caller's address, as gRPC writes it."""
        ...

    def invocation_metadata(self) -> Any:
        """Keys and values that came with the call, or None."""
        ...

    def auth_context(self) -> Any:
        """What gRPC knows of the connection by TLS: values by key."""
        ...


class ToldCaller:
    """Keeps what a call told of its caller while it stood.

    A call of gRPC must not be asked once it has ended: `peer` reads freed memory then.
    """

    __slots__ = ("_auth", "_metadata", "_peer", "was_private")

    def __init__(self, context: CallerContext, *, has_certificates: bool) -> None:
        """`has_certificates`: callers show some, so that what TLS says is of interest."""
        self._peer = context.peer()
        self._metadata = context.invocation_metadata()
        self._auth = context.auth_context() if has_certificates else {}
        self.was_private: bool | None = getattr(context, "was_private", None)
        """Whether nobody could listen at the edge that passed the call on; None: none did."""

    def peer(self) -> str:
        """The caller's address, as gRPC writes it."""
        return self._peer

    def invocation_metadata(self) -> Any:
        """Keys and values that came with the call, or None."""
        return self._metadata

    def auth_context(self) -> Any:
        """What gRPC knew of the connection by TLS."""
        return self._auth


class Callers(NamedTuple):
    """How a node is set up to know who calls."""

    superusers: Collection[str] = ()
    """Principals that may do everything."""
    operator: OperatorAccess = LOOPBACK
    """Whom it takes as operator."""
    has_tls: bool = False
    """Whether all connections to it are encrypted."""
    has_client_ca: bool = False
    """Whether all clients show certificates, which gRPC checks when they connect."""
    cluster_id: str = ""
    """The cluster whose names in certificates count."""
    named_by: NamedBy = "uri"
    """See `principal_of`."""
    jwt: JwtVerifier | None = None
    """What it knows of its identity provider; None: there is none."""
    machine_ms: Callable[[], int] | None = None
    """The machine's clock, Unix time in ms; None: the one that stamps entries."""


NO_CALLERS: Final = Callers()


class Identities:
    """The callers of one node."""

    def __init__(
        self,
        state: "Callable[[], ShardState]",
        wall_ms: Callable[[], int],
        callers: Callers = NO_CALLERS,
    ) -> None:
        """`state` is shard 0's."""
        self.superusers = frozenset(callers.superusers)
        self._state = state
        self.wall_ms = callers.machine_ms or wall_ms
        """By which credentials end. Entries' clock follows the machine's slowly when that is set:
        for hours those that have ended would be taken, or fresh ones refused."""
        """Milliseconds since 1970."""
        self._operator = callers.operator
        self.all_are_operators = callers.operator.is_open and not callers.superusers
        """Whether everybody may make operators' calls here, as long as no rule is known."""
        self._has_tls = callers.has_tls
        self.has_client_ca = callers.has_client_ca
        """Whether callers have certificates."""
        self._cluster_id, self._named_by = callers.cluster_id, callers.named_by
        self._jwt = callers.jwt
        self._known: dict[bytes, tuple[int, Identity]] = {}
        """By the hash of a credential, as of a version of the rules, or of JWTs' keys."""

    def of(self, context: CallerContext) -> Identity | str:
        """Who makes this call; or why nobody known does."""
        shown = self.by_certificate(context) if self.has_client_ca else NOBODY
        if shown == CERTIFICATE_ENDED:
            return shown
        bearer, secret = "", False
        for key, value in context.invocation_metadata() or ():
            if key == AUTHORIZATION and isinstance(value, str):
                bearer = value
            elif key == METADATA_KEY:
                secret = True
        if not bearer and not secret:
            return shown
        if secret:
            return self._by_secret(context)
        return self._by_bearer(bearer) if self.is_private(context) else IN_CLEAR

    def by_certificate(self, context: CallerContext) -> Identity | str:
        """Who shows the certificate of this call's connection, or why nobody known does.

        The certificate is looked at with each call, since a connection outlives it.
        """
        for pem in context.auth_context().get(CERTIFICATE_KEY, ()):
            ends_wall_ms = int(valid_until_s(pem) * MS)
            if ends_wall_ms <= self.wall_ms():
                return CERTIFICATE_ENDED
            found = principal_of(pem, self._cluster_id, self._named_by)
            if found is None:
                return UNNAMED
            if found.node is not None:
                return Identity(
                    f"{NODE_PREFIX}{found.node}", is_operator=True, expires_wall_ms=ends_wall_ms
                )
            is_superuser = found.name in self.superusers
            return Identity(
                found.name, is_superuser, expires_wall_ms=ends_wall_ms, by_certificate=True
            )
        return NOBODY

    def is_private(self, context: CallerContext) -> bool:
        """Whether nobody can listen to the caller's connection, where it is at an edge: to that."""
        told: bool | None = getattr(context, "was_private", None)
        if told is not None:
            return told
        return self._has_tls or is_loopback_peer(context.peer())

    def _by_secret(self, context: CallerContext) -> Identity | str:
        operator = self._operator
        if not operator.has_secret:
            return NOBODY
        metadata = tuple(context.invocation_metadata() or ())
        refusal = operator.refusal(metadata, is_private=self.is_private(context))
        return refusal or Identity(OPERATOR, is_operator=True)

    @property
    def version(self) -> tuple[int, int]:
        """Rises with each change by which a bearer token may be another one's, or nobody's."""
        return self._state().access_version, 0 if self._jwt is None else self._jwt.version

    def _by_bearer(self, credential: str) -> Identity | str:
        if len(credential) > BEARER_CHARS_MAX or credential[: len(BEARER)].lower() != BEARER:
            return NOT_VALID
        text = credential[len(BEARER) :].strip()
        key, is_token = hash_secret(text.encode("utf-8", "surrogatepass")), text.startswith(PREFIX)
        of_rules, of_keys = self.version
        version = of_rules if is_token else of_keys
        known = self._known.get(key)
        if known is None or known[0] != version:
            identity = self._by_token(text) if is_token else self._by_jwt(text)
            if isinstance(identity, str):
                return identity
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            known = self._known[key] = (version, identity)
        identity = known[1]
        if 0 < identity.expires_wall_ms <= self.wall_ms():
            return NOT_VALID
        return identity

    def _by_jwt(self, text: str) -> Identity | str:
        if self._jwt is None:
            return NOT_VALID
        found = self._jwt.verify(text, self.wall_ms())
        if isinstance(found, str):
            return found
        return Identity(
            found.principal,
            found.principal in self.superusers,
            expires_wall_ms=found.expires_wall_ms,
            by_token=True,
        )

    def _by_token(self, text: str) -> Identity | str:
        token_id, secret = split_token(text)
        token: Token | None = self._state().tokens.get(token_id)
        if token is None or not hmac.compare_digest(hash_secret(secret), token.secret_hash):
            return NOT_VALID
        if is_reserved(token.principal):  # made before the name was muster's own
            return NOT_VALID
        return Identity(
            token.principal,
            token.principal in self.superusers,
            token.scopes,
            token.expires_wall_ms,
            by_token=True,
        )


def is_loopback_peer(peer: str) -> bool:
    """Whether a caller, as gRPC names it, is on this machine."""
    return peer.startswith(("ipv4:127.", "ipv6:[::1]:", "ipv6:%5B::1%5D:", "unix:"))


def new_token() -> tuple[str, str, bytes]:
    """A token's id, its text, and the hash of its secret."""
    token_id, secret = secrets.token_hex(ID_BYTES), secrets.token_bytes(SECRET_BYTES)
    told = base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
    return token_id, f"{PREFIX}{token_id}_{told}", hash_secret(secret)


def hash_secret(secret: bytes) -> bytes:
    """What the cluster keeps of a token's secret; 32 bytes."""
    return hashlib.blake2b(secret, digest_size=32).digest()


def split_token(text: str) -> tuple[str, bytes]:
    """Id and secret of a token's text; both empty where it is none."""
    token_id, _, told = text.removeprefix(PREFIX).partition("_")
    if not text.startswith(PREFIX):
        return "", b""
    try:
        secret = base64.b64decode(told + "=" * (-len(told) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return "", b""
    return (token_id, secret) if len(secret) == SECRET_BYTES else ("", b"")
