"""Which JWTs are taken, and which never are, whatever they say."""

import hashlib
import hmac
import json

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from musterd.coordinator.api.frame import identity, jwt_verifier
from musterd.coordinator.api.frame.jwt_verifier import (
    KEYS_BYTES_MAX,
    KEYS_MAX,
    LEEWAY_MS,
    JwtVerifier,
    KeySetError,
    VerifiedJwt,
    parse_keys,
)
from musterd.coordinator.machine.records.shard_records import ShardState
from tests.identity_provider import (
    AUDIENCE,
    ISSUER,
    by_hand,
    claims,
    ec_key,
    jwk,
    key_set,
    pem_of,
    rsa_key,
    signed,
)

NOW_MS = 1_800_000_000_000
KEY, RSA_KEY, ED_KEY = ec_key(), rsa_key(), ed25519.Ed25519PrivateKey.generate()
SET = key_set(jwk(KEY, "k1"), jwk(RSA_KEY, "r"), jwk(ED_KEY, "e"))


def verifier(keys=SET, **settings):
    made = JwtVerifier(ISSUER, AUDIENCE, **settings)
    made.use(parse_keys(keys))
    return made


def told(text, now_ms=NOW_MS, **settings):
    """The principal, or why there is none."""
    found = verifier(**settings).verify(text, now_ms)
    return found.principal if isinstance(found, VerifiedJwt) else found


def token(key=KEY, kid="k1", algorithm="ES256", headers=None, **others):
    return signed(key, kid, algorithm, headers, now_ms=NOW_MS, **others)


@pytest.mark.parametrize(
    ("key", "kid", "algorithm"),
    [
        *((RSA_KEY, "r", one) for one in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        (KEY, "k1", "ES256"),
        (ED_KEY, "e", "EdDSA"),
    ],
)
def test_a_sound_token_of_each_algorithm_is_its_owners(key, kid, algorithm):
    """The principal is its `sub` behind a prefix, and it ends with its time and the leeway."""
    found = verifier().verify(token(key, kid, algorithm), NOW_MS)
    assert found == VerifiedJwt("jwt:ann", NOW_MS + 300_000 + LEEWAY_MS)


def test_another_claim_may_name_the_owner():
    """A token without it is nobody's."""
    assert told(token(email="a@b"), claim="email") == "jwt:a@b"
    assert told(token(), claim="email") == jwt_verifier.LACKS


def test_algorithms_without_a_secret_key_are_refused():
    """HMAC by the public key, in each form that somebody could know it in, and none."""
    secrets = [pem_of(RSA_KEY), json.dumps(jwk(RSA_KEY, "r")).encode(), b""]
    body = claims(NOW_MS)
    for secret in secrets:
        for algorithm, hashed in (("HS256", hashlib.sha256), ("HS512", hashlib.sha512)):
            unsigned = by_hand({"alg": algorithm, "kid": "r"}, body).rstrip(".")
            signature = hmac.new(secret, unsigned.encode(), hashed).digest()
            forged = by_hand({"alg": algorithm, "kid": "r"}, body, signature)
            assert told(forged) == jwt_verifier.NOT_VALID
    for algorithm in ("none", "None", "NONE", "", None, "HS256", 7):
        assert told(by_hand({"alg": algorithm, "kid": "r"}, body)) == jwt_verifier.NOT_VALID
    assert told(by_hand({"kid": "r"}, body)) == jwt_verifier.NOT_VALID


def test_a_set_of_symmetric_or_private_keys_has_no_key():
    """A provider that gives those away signs nothing that counts."""
    secret = {"kty": "oct", "kid": "k1", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}
    private = jwt.algorithms.ECAlgorithm.to_jwk(KEY, as_dict=True) | {"kid": "k1"}
    assert "d" in private
    for one in (secret, private, jwk(KEY, "k1", use="enc"), jwk(KEY, "k1", alg="HS256")):
        assert not parse_keys(key_set(one))


def test_a_key_that_names_its_algorithm_takes_no_other():
    """Though its kind would."""
    keys = key_set(jwk(RSA_KEY, "r", alg="RS256"))
    assert told(token(RSA_KEY, "r", "RS256"), keys=keys) == "jwt:ann"
    assert told(token(RSA_KEY, "r", "PS256"), keys=keys) == jwt_verifier.NOT_VALID


def test_keys_that_are_weak_or_slow_are_left_out():
    """RSA below 2,048 and above 4,096 bits, with a huge exponent, and other curves."""
    slow = jwk(RSA_KEY, "slow") | {"e": jwk(RSA_KEY, "r")["n"][:-4] + "AAAB"}
    other = jwk(ec_key(ec.SECP521R1), "p")
    small = jwk(rsa_key(1024), "small")
    assert set(parse_keys(key_set(small, slow, other, jwk(KEY, "k1")))) == {"k1"}


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"iss": "https://idp.test/"}, jwt_verifier.OTHER_ISSUER),
        ({"iss": None}, jwt_verifier.LACKS),
        ({"aud": "other"}, jwt_verifier.OTHER_AUDIENCE),
        ({"aud": ["other", "muster2"]}, jwt_verifier.OTHER_AUDIENCE),
        ({"aud": None}, jwt_verifier.LACKS),
        ({"exp": None}, jwt_verifier.LACKS),
        ({"exp": "1900000000"}, jwt_verifier.LACKS),
        ({"exp": True}, jwt_verifier.LACKS),
        ({"exp": float("inf")}, jwt_verifier.LACKS),
        ({"exp": float("nan")}, jwt_verifier.LACKS),
        ({"exp": 10**400}, jwt_verifier.LACKS),
        ({"exp": NOW_MS // 1_000 - 31}, jwt_verifier.EXPIRED),
        ({"nbf": NOW_MS // 1_000 + 31}, jwt_verifier.NOT_YET),
        ({"iat": NOW_MS // 1_000 + 31}, jwt_verifier.NOT_YET),
        ({"iat": "now"}, jwt_verifier.LACKS),
        ({"sub": None}, jwt_verifier.LACKS),
        ({"sub": ""}, jwt_verifier.LACKS),
        ({"sub": "a\nb"}, jwt_verifier.LACKS),
        ({"sub": "\ud800"}, jwt_verifier.LACKS),
        ({"sub": "\u202eann"}, jwt_verifier.LACKS),
        ({"sub": "x" * 246}, jwt_verifier.LACKS),
        ({"exp": NOW_MS // 1_000 - 29}, "jwt:ann"),
        ({"nbf": NOW_MS // 1_000 + 29, "iat": NOW_MS // 1_000 + 29}, "jwt:ann"),
        ({"nbf": None, "iat": None}, "jwt:ann"),
        ({"aud": ["x", "muster"]}, "jwt:ann"),
        ({"sub": "*"}, "jwt:*"),
        ({"sub": "node:1"}, "jwt:node:1"),
        ({"sub": "x" * 245}, "jwt:" + "x" * 245),
    ],
)
def test_each_claim_is_asked(others, why):
    """Though the signature is right."""
    assert told(token(**others)) == why


def test_a_signature_of_another_key_or_of_a_changed_token_is_none():
    """Each part counts."""
    head, body, signature = token().split(".")
    other = token(sub="root").split(".")
    changed = [
        token(ec_key()),
        ".".join((head, other[1], signature)),
        ".".join((other[0][:-1] + "A", body, signature)),
        f"{head}.{body}.",
        f"{head}.{body}",
        "",
        ".",
        "..",
        "a.b.c",
        "\xff.\xff.\xff",
        "\ud800",
    ]
    for text in changed:
        assert told(text) == jwt_verifier.NOT_VALID


def test_a_token_chooses_neither_where_its_key_comes_from_nor_what_it_is():
    """`jwk`, `jku` and `x5u` are not looked at, and a key id is a name of the set alone."""
    thief = ec_key()
    headers = {
        "jwk": jwk(thief, "k1"),
        "jku": "http://127.0.0.1:9/keys",
        "x5u": "http://127.0.0.1:9/cert",
    }
    assert told(token(thief, headers=headers)) == jwt_verifier.NOT_VALID
    for kid in ("../../dev/null", "' OR 1=1 --", "k1\x00", "K1", "k1 ", "x" * 10_000):
        assert told(token(kid=kid)) == jwt_verifier.NOT_VALID
    for kid in (7, ["k1"], {"k1": 1}, True):
        assert told(by_hand({"alg": "ES256", "kid": kid}, claims(NOW_MS))) == jwt_verifier.NOT_VALID
    for headers in ({"crit": ["x"], "x": 1}, {"crit": ["b64"], "b64": False}):
        forged = by_hand({"alg": "ES256", "kid": "k1"} | headers, claims(NOW_MS), b"x" * 64)
        assert told(forged) == jwt_verifier.NOT_VALID


def test_a_token_without_a_key_id_is_taken_where_there_is_one_key():
    """With several nobody guesses."""
    without = token(kid=None)
    assert told(without, keys=key_set(jwk(KEY, "k1"))) == "jwt:ann"
    assert told(without) == jwt_verifier.NOT_VALID


def test_a_key_id_that_is_not_known_is_awaited_while_somebody_looks():
    """And refused once that was in vain."""
    made, asked = verifier(), []
    made.want = lambda kid: asked.append(kid) or len(asked) < 2
    assert made.verify(token(kid="new"), NOW_MS) == jwt_verifier.AWAITED
    assert made.verify(token(kid="new"), NOW_MS) == jwt_verifier.NOT_VALID
    assert asked == ["new", "new"]
    made.verify(token(), NOW_MS)
    assert (made.verified_total, made.refused_total, made.awaited_total) == (1, 1, 1)


@pytest.mark.parametrize(
    "data",
    [
        b'{"keys": []}',
        b'{"keys": [1, null, {"kty": 7}, {"kty": ["RSA"]}, {"kty": "EC", "x": 1}]}',
    ],
)
def test_a_set_without_keys_that_can_be_used_takes_no_token(data):
    """It is a set: its provider has withdrawn the others."""
    assert told(token(), keys=data) == jwt_verifier.NOT_VALID


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no JWK set"),
        (b'{"keys": {}}', "no JWK set"),
        (key_set(*(jwk(ED_KEY, f"{n}") for n in range(KEYS_MAX + 1))), "101 keys; 100 at most"),
        (key_set(*(jwk(ED_KEY, f"{n}") for n in range(10_000))), "more than 262144 bytes"),
        (b" " * (KEYS_BYTES_MAX + 1), "more than 262144 bytes"),
    ],
)
def test_a_set_of_keys_that_is_none_is_refused_as_a_whole(data, why):
    """Whatever is wrong with it."""
    with pytest.raises(KeySetError, match=why):
        parse_keys(data)


def test_of_two_keys_with_one_id_the_first_counts():
    """A set that repeats an id replaces nothing."""
    keys = key_set(jwk(KEY, "k1"), jwk(ec_key(), "k1"))
    assert told(token(), keys=keys) == "jwt:ann"


class Caller:
    """A call's context without a call."""

    def __init__(self, text, peer="ipv4:127.0.0.1:1"):
        self._metadata, self._peer = (("authorization", f"Bearer {text}"),), peer

    def peer(self):
        return self._peer

    def invocation_metadata(self):
        return self._metadata


def identities(made, now_ms=NOW_MS, superusers=()):
    state = ShardState()
    callers = identity.Callers(superusers, jwt=made)
    return identity.Identities(lambda: state, lambda: now_ms, callers)


def test_a_token_that_was_verified_is_remembered_until_its_end_and_other_keys():
    """Its signature costs once; a key that is gone takes its tokens along."""
    now = [NOW_MS]
    made = verifier()
    known = identity.Identities(ShardState, lambda: now[0], identity.Callers(jwt=made))
    caller = Caller(token())
    assert known.of(caller) == known.of(caller)
    assert made.verified_total == 1
    now[0] = NOW_MS + 300_000 + LEEWAY_MS
    assert known.of(caller) == identity.NOT_VALID
    now[0] = NOW_MS
    made.use(parse_keys(key_set(jwk(ec_key(), "k2"), jwk(RSA_KEY, "r"))))
    assert known.of(caller) == jwt_verifier.NOT_VALID


def test_a_change_of_rules_or_tokens_verifies_no_jwt_anew():
    """Each change would cost a signature for each caller; other keys do."""
    made, state = verifier(), ShardState()
    known = identity.Identities(lambda: state, lambda: NOW_MS, identity.Callers(jwt=made))
    caller = Caller(token())
    found = known.of(caller)
    state.access_version += 1
    assert known.of(caller) == found
    assert made.verified_total == 1
    made.use(parse_keys(SET))
    assert known.of(caller) == found
    assert made.verified_total == 2


def test_a_jwt_is_nobody_but_its_principal():
    """No operator, no node, no superuser but by its whole name."""
    made = verifier()
    found = identities(made).of(Caller(token(sub="operator")))
    assert (found.principal, found.is_operator, found.by_token) == ("jwt:operator", False, True)
    known = identities(made, superusers=("ann", "jwt:root"))
    assert not known.of(Caller(token())).is_operator
    assert known.of(Caller(token(sub="root"))).is_operator


def test_a_jwt_is_not_taken_in_the_clear_nor_where_there_is_no_provider():
    """As tokens of the cluster are not."""
    assert identities(verifier()).of(Caller(token(), "ipv4:10.0.0.7:1")) == identity.IN_CLEAR
    assert identities(None).of(Caller(token())) == identity.NOT_VALID


def test_a_token_of_a_mebibyte_costs_nothing():
    """It is refused by its length, before anything is decoded."""
    made = verifier()
    assert identities(made).of(Caller(token(padding="x" * 2**20))) == identity.NOT_VALID
    assert made.refused_total == 0
