"""Certificates that tests need: an authority, what it signs, and what it would never sign."""

import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from musterd.coordinator.node.authority import CA_CERT, CERT, KEY, Authority
from musterd.raft.tls import TlsFiles

SUBJECT_ALTERNATIVE_NAME = ObjectIdentifier("2.5.29.17")
_URI_TAG = 0x86


def files_in(folder):
    """The files that `muster cert` writes into a folder."""
    return TlsFiles(folder / CERT, folder / KEY, folder / CA_CERT)


def uri_extension(*uris):
    """Names as bytes, whatever they are: X.509 allows ASCII alone."""
    names = b"".join(_tlv(_URI_TAG, uri) for uri in uris)
    return x509.UnrecognizedExtension(SUBJECT_ALTERNATIVE_NAME, _tlv(0x30, names))


def unknown_names():
    """A name of a kind that `cryptography` does not read: an X.400 address."""
    return x509.UnrecognizedExtension(SUBJECT_ALTERNATIVE_NAME, _tlv(0x30, _tlv(0xA3, b"\x30\x00")))


def of_unknown_version(cert):
    """The same certificate (PEM) with a version that X.509 does not have."""
    der = ssl.PEM_cert_to_DER_cert(cert.decode())
    version = b"\xa0\x03\x02\x01"
    return ssl.DER_cert_to_PEM_cert(der.replace(version + b"\x02", version + b"\x05", 1)).encode()


def _tlv(tag, value):
    size = len(value)
    if size < 0x80:
        return bytes((tag, size)) + value
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + value


def signed(
    authority: Authority,
    folder,
    uris,
    *,
    begins_days=-1,
    ends_days=1,
    common_name="anything",
    names=None,
):
    """Write a certificate of the authority with these names, valid between these days from now.

    `names`: an extension of alternative names instead of `uris`.
    """
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .issuer_name(authority._cert.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=begins_days))
        .not_valid_after(now + timedelta(days=ends_days))
        .add_extension(
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            critical=False,
        )
        .add_extension(names or uri_extension(*uris), critical=False)
        .sign(authority._key, hashes.SHA256())
    )
    folder.mkdir()
    (folder / CERT).write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    (folder / KEY).write_bytes(key_pem(key))
    (folder / CA_CERT).write_bytes(authority._cert.public_bytes(serialization.Encoding.PEM))
    return files_in(folder)


def key_pem(key, passphrase=None):
    """PEM of a key, with a passphrase where one is given."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(passphrase)
        if passphrase
        else serialization.NoEncryption(),
    )


def stranger_context(files):
    """How somebody with these files would connect; it believes whoever answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(files.cert, files.key)
    return context
