"""A small certificate authority for tests and small installations: a folder with files of PEM.

Keys are P-256, certificates for machines live 90 days and the authority's 10 years. A node's
certificate names it for its peers (`muster://CLUSTER/node/ID`, raft/tls.py) and by its hosts for
clients; a client's names it as `muster://CLUSTER/client/NAME`. Nothing is kept of what was signed.
"""

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from musterd.coordinator.machine.access import is_reserved
from musterd.raft.tls import URI_SCHEME, node_uri

CA_CERT: Final = "ca.pem"
CA_KEY: Final = "ca.key"
CERT: Final = "cert.pem"
KEY: Final = "key.pem"
AUTHORITY_DAYS: Final = 3_650
DAYS: Final = 90
NAME_MAX: Final = 64
"""Characters of a client's name, and of a common name in X.509."""
HOSTS_MAX: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9._@-]+")
_SLACK: Final = timedelta(minutes=5)
"""Certificates begin so much before they are made: clocks differ."""


class AuthorityError(Exception):
    """A certificate cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Made:
    """A certificate that was written, and where."""

    subject: str
    folder: Path
    valid_until: datetime


def client_uri(cluster_id: str, name: str) -> str:
    """The name of a client in its certificate."""
    return f"{URI_SCHEME}{quote(cluster_id, safe='')}/client/{name}"


class Authority:
    """The authority in a folder, with the id of the cluster that it is for."""

    def __init__(
        self, folder: Path, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        self._folder = folder
        self._cert, self._key = cert, key
        self.cluster_id = _common_name(cert)

    @classmethod
    def create(cls, folder: Path, cluster_id: str, days: int = AUTHORITY_DAYS) -> "Authority":
        """Make one. Raises OSError, and AuthorityError of a bad id or where one exists."""
        if not 0 < len(cluster_id) <= NAME_MAX:
            raise AuthorityError(f"a cluster id has 1 to {NAME_MAX} characters")
        if (folder / CA_KEY).exists() or (folder / CA_CERT).exists():
            raise AuthorityError(f"{folder} has an authority already")
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cluster_id)])
        builder = (
            _begun(name, name, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
        )
        cert = builder.sign(key, hashes.SHA256())
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_key(folder / CA_KEY, key)
        _write(folder / CA_CERT, _pem(cert), 0o644)
        return cls(folder, cert, key)

    @classmethod
    def read(cls, folder: Path) -> "Authority":
        """The one that is there. Raises AuthorityError."""
        try:
            cert = x509.load_pem_x509_certificate((folder / CA_CERT).read_bytes())
            key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise AuthorityError(f"{folder} has no authority that can be read: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise AuthorityError(f"{folder / CA_KEY} is no key that `muster cert ca` made")
        return cls(folder, cert, key)

    @property
    def valid_until(self) -> datetime:
        return self._cert.not_valid_after_utc

    def node(self, node: int, hosts: Sequence[str], days: int = DAYS) -> Made:
        """Write node-ID/ with certificate, key and authority. Raises AuthorityError, OSError."""
        if not 0 < len(hosts) <= HOSTS_MAX:
            raise AuthorityError(f"a node has 1 to {HOSTS_MAX} names or addresses")
        names = [x509.UniformResourceIdentifier(node_uri(self.cluster_id, node))]
        try:
            alternatives = x509.SubjectAlternativeName([*names, *map(_host, hosts)])
        except ValueError as error:
            raise AuthorityError(f"not a host: {error}") from error
        folder = self._folder / f"node-{node}"
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._issue(folder, f"node-{node}", alternatives, usages, days)

    def client(self, name: str, days: int = DAYS) -> Made:
        """Write client-NAME/ likewise. Raises AuthorityError, OSError."""
        if not _NAME.fullmatch(name) or len(name) > NAME_MAX:
            raise AuthorityError(
                f"a client's name has letters, digits and . _ @ -, {NAME_MAX} characters at most"
            )
        if is_reserved(name):
            raise AuthorityError(f"{name} is a name that muster gives: no client has it")
        uri = x509.UniformResourceIdentifier(client_uri(self.cluster_id, name))
        folder = self._folder / f"client-{name}"
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._issue(folder, name, x509.SubjectAlternativeName([uri]), usages, days)

    def renew(self, folder: Path, days: int = DAYS) -> Made:
        """Make what is in a folder anew, with a new key. Raises AuthorityError, OSError."""
        try:
            old = x509.load_pem_x509_certificate((folder / CERT).read_bytes())
            names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            usages = old.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except (ValueError, x509.ExtensionNotFound) as error:
            raise AuthorityError(
                f"{folder / CERT} is no certificate of a node or client"
            ) from error
        own = f"{URI_SCHEME}{quote(self.cluster_id, safe='')}/"
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        if not any(uri.startswith(own) for uri in uris):
            raise AuthorityError(f"{folder / CERT} is of another cluster than {self.cluster_id!r}")
        return self._issue(folder, _common_name(old), names, list(usages), days)

    def _issue(
        self,
        folder: Path,
        subject: str,
        names: x509.SubjectAlternativeName,
        usages: Sequence[x509.ObjectIdentifier],
        days: int,
    ) -> Made:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
        cert = (
            _begun(name, self._cert.subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(names, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_key(folder / KEY, key)
        _write(folder / CERT, _pem(cert), 0o644)
        _write(folder / CA_CERT, _pem(self._cert), 0o644)
        return Made(subject, folder, cert.not_valid_after_utc)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _common_name(cert: x509.Certificate) -> str:
    names = cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(path, pem, 0o600)


def _write(path: Path, content: bytes, mode: int) -> None:
    """In one step: a node that reads it meanwhile sees the file of before."""
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
