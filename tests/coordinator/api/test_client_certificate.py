"""Who shows a certificate at the client port."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from musterd.coordinator.api.frame.client_certificate import (
    CERTIFICATE_BYTES_MAX,
    CertifiedPrincipal,
    principal_of,
)
from musterd.coordinator.node.authority import Authority
from tests.certificates import signed, unknown_names


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    """A certificate with these URIs and this common name, as PEM."""
    folder = tmp_path_factory.mktemp("ca")
    authority = Authority.create(folder / "certs", "c")
    numbers = itertools.count()

    def make(*uris, common_name="anything"):
        made = signed(authority, folder / str(next(numbers)), uris, common_name=common_name)
        return made.cert.read_bytes()

    return make


def name_of(certificate, named_by="uri"):
    found = principal_of(certificate, "c", named_by)
    return found and (found.name, found.node)


def test_a_client_and_a_node_are_who_their_uri_says(pem):
    """Whichever way others are named."""
    for named_by in ("uri", "cn"):
        assert name_of(pem(b"muster://c/client/billing"), named_by) == ("billing", None)
        assert name_of(pem(b"muster://c/node/2"), named_by) == ("", 2)
        assert name_of(pem(b"muster://c/node/muster-eu.a-12"), named_by) == ("", 12)
        mixed = pem(b"spiffe://x/y", b"muster://c/client/billing")
        assert name_of(mixed, named_by) == ("billing", None)


def test_what_muster_cert_makes_names_its_client(tmp_path):
    """With the end of its time."""
    made = Authority.create(tmp_path / "certs", "a/b \N{SNOWMAN}").client("billing", days=3)
    found = principal_of((made.folder / "cert.pem").read_bytes(), "a/b \N{SNOWMAN}")
    assert found == CertifiedPrincipal("billing", None, made.valid_until.timestamp())
    wanted = datetime.now(UTC) + timedelta(days=3)
    assert abs(found.valid_until_s - wanted.timestamp()) < 3600


NOBODY = {
    "another cluster": [b"muster://other/client/billing"],
    "a scheme in other letters": [b"MUSTER://c/client/billing"],
    "two names": [b"muster://c/client/billing", b"muster://c/client/admin"],
    "two clusters": [b"muster://c/client/billing", b"muster://other/client/billing"],
    "neither client nor node": [b"muster://c/token/billing"],
    "no word": [b"muster://c/client/bill%20ing"],
    "a longer path": [b"muster://c/client/billing/admin"],
    "an empty name": [b"muster://c/client/"],
    "the name of whoever has the admin secret": [b"muster://c/client/operator"],
    "the name of callers without one": [b"muster://c/client/anonymous"],
    "a node that is no number": [b"muster://c/node/-1"],
    "a pod without a number": [b"muster://c/node/muster-"],
    "a pod's name that ends in letters": [b"muster://c/node/muster-1a"],
    "a name that is no pod's": [b"muster://c/node/m/uster-1"],
    "a pod's name that is too long": [b"muster://c/node/" + b"a" * 300 + b"-1"],
    "bytes that are no text": [b"muster://c/client/\xff"],
}


@pytest.mark.parametrize("named_by", ["uri", "cn"])
@pytest.mark.parametrize("name", list(NOBODY))
def test_any_other_name_of_a_cluster_is_nobody_whatever_the_common_name(pem, name, named_by):
    """So a certificate of another cluster's client is nobody here, by either rule."""
    assert name_of(pem(*NOBODY[name], common_name="admin"), named_by) is None


def test_a_common_name_counts_by_the_setting_alone(pem):
    """And only as a plain word."""
    assert name_of(pem(common_name="billing")) is None
    assert name_of(pem(common_name="billing"), "cn") == ("billing", None)
    assert name_of(pem(b"spiffe://x/y", common_name="billing"), "cn") == ("billing", None)
    for other in ("bill ing", "operator", "anonymous", "node:1", "jwt:ann"):
        assert name_of(pem(common_name=other), "cn") is None


def test_what_is_no_certificate_or_a_very_long_one_is_nobody(pem):
    """Neither is read for long."""
    assert name_of(b"") is None
    assert name_of(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n") is None
    long = pem(b"muster://c/client/billing", b"x:" + b"a" * CERTIFICATE_BYTES_MAX)
    assert name_of(long) is None


def test_a_certificate_with_a_name_of_an_unknown_kind_is_nobody(tmp_path):
    """Its reader raises something else than for other bytes."""
    authority = Authority.create(tmp_path / "certs", "c")
    made = signed(authority, tmp_path / "made", (), names=unknown_names())
    assert name_of(made.cert.read_bytes()) is None
