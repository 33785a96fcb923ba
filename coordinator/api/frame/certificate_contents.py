"""Reads what certificates say, by the library `cryptography`.

It is loaded with the first certificate, which a node that has some reads at its start. One without
any has 8 MiB of memory less.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CertificateNames:
    """The names in a certificate, of the kinds that count here, in its order."""

    uris: tuple[str, ...]
    common: tuple[str, ...]
    """The common names of its subject."""


def names_of(certificate: bytes) -> CertificateNames:
    """Return the names of a certificate (PEM). Raises ValueError where it cannot be read."""
    from cryptography import x509  # noqa: PLC0415  # see the module's docstring

    subject = x509.NameOID.COMMON_NAME
    try:
        read = x509.load_pem_x509_certificate(certificate)
        try:
            names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
        except x509.ExtensionNotFound:
            uris = []
        common = [str(one.value) for one in read.subject.get_attributes_for_oid(subject)]
    except _unreadable() as error:
        raise ValueError(str(error)) from error
    return CertificateNames(tuple(uris), tuple(common))


def end_of(certificate: bytes) -> float:
    """Return the end of a certificate (PEM) in seconds since 1970. Raises ValueError as above."""
    from cryptography import x509  # noqa: PLC0415  # see the module's docstring

    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()
    except _unreadable() as error:
        raise ValueError(str(error)) from error


def _unreadable() -> tuple[type[Exception], ...]:
    """What `cryptography` raises of a certificate that it does not understand."""
    from cryptography import x509  # noqa: PLC0415  # see the module's docstring

    return (
        ValueError,
        TypeError,  # a name of a type that its kind cannot have
        x509.DuplicateExtension,
        x509.InvalidVersion,
        x509.UnsupportedGeneralNameType,
    )
