"""Verifies JWTs of an identity provider, by keys that somebody else fetches.

The algorithms are a fixed list of asymmetric ones, and of them a key has only those that fit it, so
a token's header chooses none: `none` and the HMAC ones, whose key would be the public one, are
refused. Nothing is looked up that a token names but its key id, in the set that is here.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from musterd.coordinator.machine.access import JWT_PREFIX
from musterd.coordinator.machine.limits import LIMITS

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

LEEWAY_MS: Final = 30_000
"""By so much clocks may differ, at the begin and at the end of a JWT."""
KEYS_BYTES_MAX: Final = 256 * 1024
"""The longest set of keys that is read."""
KEYS_MAX: Final = 100
KID_CHARS_MAX: Final = 256
RSA_BITS: Final = (2_048, 4_096)
RSA_EXPONENT_MAX: Final = 2**32
"""With a larger one a single verification would hold the loop for milliseconds."""
RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES: Final = {"secp256r1": ("ES256",), "secp384r1": ("ES384",)}
ED25519: Final = ("EdDSA",)
MS: Final = 1_000

NOT_VALID: Final = "The JWT is not valid: its form, its key, its algorithm or its signature."
EXPIRED: Final = "The JWT has expired."
NOT_YET: Final = "The JWT is of a later time than this node's clock: it is not valid yet."
OTHER_ISSUER: Final = "The JWT is of another issuer than this cluster's."
OTHER_AUDIENCE: Final = "The JWT is for another audience than this cluster."
LACKS: Final = "The JWT lacks a claim that this cluster needs, or has it in another form."
AWAITED: Final = "The key of the JWT is not known here yet; it is looked for: repeat the call."

Algorithms = tuple[str, ...]
PublicKey: TypeAlias = "RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey"
KeySet = Mapping[str, tuple[PublicKey, Algorithms]]
"""Key id ("" where a key has none) -> the key and the algorithms that it is good for."""


class KeySetError(ValueError):
    """A set of keys that is refused as a whole; the message says why."""


@dataclass(frozen=True, slots=True)
class VerifiedJwt:
    """What a sound JWT says."""

    principal: str
    expires_wall_ms: int
    """When it is good no more, leeway included, in milliseconds since 1970."""


def parse_keys(data: bytes) -> KeySet:
    """Return the keys of a JWK set (RFC 7517) that can verify tokens.

    Keys of other kinds, of other uses and private ones are left out, and so is a key whose id
    another one has. Without any that is left the set is empty: the provider has withdrawn its
    keys, so nobody's token counts.

    Raises:
        KeySetError: it is longer than KEYS_BYTES_MAX, is no such set, or has more than KEYS_MAX
            keys.
    """
    if len(data) > KEYS_BYTES_MAX:
        raise KeySetError(f"has more than {KEYS_BYTES_MAX} bytes")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise KeySetError("is no JSON") from error
    listed = body.get("keys") if isinstance(body, dict) else None
    if not isinstance(listed, list):
        raise KeySetError('is no JWK set: it lacks the list "keys"')
    if len(listed) > KEYS_MAX:
        raise KeySetError(f"has {len(listed)} keys; {KEYS_MAX} at most")
    found: dict[str, tuple[PublicKey, Algorithms]] = {}
    for one in listed:
        kid = one.get("kid", "") if isinstance(one, dict) else None
        if not isinstance(kid, str) or len(kid) > KID_CHARS_MAX:
            continue
        key = _key_of(one)
        if key is not None:
            found.setdefault(kid, key)
    return found


def _key_of(described: Mapping[str, Any]) -> tuple[PublicKey, Algorithms] | None:
    """The key and its algorithms; None where it cannot verify tokens."""
    if described.get("use", "sig") != "sig" or "d" in described:
        return None
    import jwt  # noqa: PLC0415  # most nodes never need it

    kinds: dict[object, Any] = {
        "RSA": jwt.algorithms.RSAAlgorithm,
        "EC": jwt.algorithms.ECAlgorithm,
        "OKP": jwt.algorithms.OKPAlgorithm,
    }
    kind = described.get("kty")
    reader = kinds.get(kind) if isinstance(kind, str) else None
    if reader is None:
        return None
    try:
        key = reader.from_jwk(dict(described))
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError):  # fields of other types
        return None
    algorithms = _algorithms_of(key)
    named = described.get("alg")
    if named is not None:
        algorithms = tuple(one for one in algorithms if one == named)
    return (key, algorithms) if algorithms else None


def _algorithms_of(key: object) -> Algorithms:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa  # noqa: PLC0415  # above

    match key:
        case rsa.RSAPublicKey():
            least, most = RSA_BITS
            sound = least <= key.key_size <= most and key.public_numbers().e <= RSA_EXPONENT_MAX
            return RSA if sound else ()
        case ec.EllipticCurvePublicKey():
            return CURVES.get(key.curve.name, ())
        case ed25519.Ed25519PublicKey():
            return ED25519
        case _:
            return ()


def _why(error: Exception) -> str:
    """What is said of an error of PyJWT: more where the issuer has signed the token."""
    from jwt import exceptions  # noqa: PLC0415  # most nodes never need it

    match error:
        case exceptions.InvalidIssuerError():
            return OTHER_ISSUER
        case exceptions.InvalidAudienceError():
            return OTHER_AUDIENCE
        case (
            exceptions.MissingRequiredClaimError()
            | exceptions.InvalidSubjectError()
            | exceptions.InvalidJTIError()
        ):
            return LACKS
        case _:
            return NOT_VALID


def _never(_kid: str) -> bool:
    return False


class JwtVerifier:
    """What a node knows of its identity provider: whose tokens it takes, and by which keys."""

    def __init__(self, issuer: str, audience: str, claim: str = "sub") -> None:
        """`claim` names the token's owner."""
        self._issuer, self._audience, self._claim = issuer, audience, claim
        self.keys: KeySet = {}
        self.version = 0
        """Rises with each other set of keys."""
        self.want: Callable[[str], bool] = _never
        """Asks for a look for a key id that is not known; False where there will be none soon."""
        self.verified_total = 0
        self.refused_total = 0
        self.awaited_total = 0

    def use(self, keys: KeySet) -> None:
        """From now on these keys count, and no others."""
        self.keys = keys
        self.version += 1

    def verify(self, text: str, wall_ms: int) -> VerifiedJwt | str:
        """Return what a JWT says, or why it is not taken.

        `text`: as short as the caller takes it. It takes tens of microseconds for the signature.
        """
        found = self._verify(text, wall_ms)
        if isinstance(found, VerifiedJwt):
            self.verified_total += 1
        elif found == AWAITED:
            self.awaited_total += 1
        else:
            self.refused_total += 1
        return found

    def _verify(self, text: str, wall_ms: int) -> VerifiedJwt | str:
        found = self._key_for(text)
        if isinstance(found, str):
            return found
        key, algorithms = found
        import jwt  # noqa: PLC0415  # most nodes never need it

        try:
            claims = jwt.decode(
                text,
                key,
                algorithms=algorithms,
                audience=self._audience,
                issuer=self._issuer,
                options={
                    "require": ["exp", "iss", "aud", self._claim],
                    # The time is asked of the node's own clock below.
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.PyJWTError as error:
            return _why(error)
        return self._judge(claims, wall_ms)

    def _key_for(self, text: str) -> tuple[PublicKey, Algorithms] | str:
        """The key that a token names and its algorithms, or why there is none."""
        if not text.isascii():
            return NOT_VALID
        import jwt  # noqa: PLC0415  # as above

        try:
            kid = jwt.get_unverified_header(text).get("kid", "")
        except jwt.PyJWTError:
            return NOT_VALID
        if not isinstance(kid, str) or len(kid) > KID_CHARS_MAX:
            return NOT_VALID
        found = self.keys.get(kid)
        if found is None and not kid and len(self.keys) == 1:
            (found,) = self.keys.values()
        if found is None:
            return AWAITED if kid and self.want(kid) else NOT_VALID
        return found

    def _judge(self, claims: Mapping[str, Any], wall_ms: int) -> VerifiedJwt | str:
        """Judge a token that the issuer has signed: whose it is, and when."""
        owner = claims[self._claim]
        times = [_ms(claims.get(name, 0)) for name in ("exp", "nbf", "iat")]
        if not isinstance(owner, str) or not _is_name(owner):
            return LACKS
        ends_ms, *begins_ms = times
        if ends_ms is None or None in begins_ms:
            return LACKS
        if any(one is not None and one > wall_ms + LEEWAY_MS for one in begins_ms):
            return NOT_YET
        if ends_ms + LEEWAY_MS <= wall_ms:
            return EXPIRED
        return VerifiedJwt(JWT_PREFIX + owner, ends_ms + LEEWAY_MS)


def _ms(seconds: object) -> int | None:
    """Milliseconds of a time claim; None where it is no number of seconds since 1970."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    return int(seconds * MS) if 0 <= seconds < 2**53 else None  # NaN is in no range


def _is_name(owner: str) -> bool:
    return (
        bool(owner)
        and owner.isprintable()
        and len(JWT_PREFIX) + len(owner.encode()) <= LIMITS.id_max_bytes
    )
