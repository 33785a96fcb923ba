"""Who shows a certificate at the client port, by the certificate alone.

gRPC has checked by then that it is of the listener's authority, and valid when the connection was
made. A connection outlives that, so the end is told, for whoever asks at each call.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal
from urllib.parse import unquote

from musterd.coordinator.api.frame.certificate_contents import end_of, names_of
from musterd.coordinator.machine.access import is_reserved

NamedBy = Literal["uri", "cn"]
URI_SCHEME: Final = "muster://"
"""Names of clients and nodes begin with it: `muster://CLUSTER/client/NAME`."""
CERTIFICATE_BYTES_MAX: Final = 16 * 1024
"""The longest PEM that is read; a longer one names nobody."""
REMEMBERED_MAX: Final = 1_024
"""Certificates whose names are kept: 16 MiB at most."""
_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_NODE: Final = re.compile(r"(?:[A-Za-z0-9][-.A-Za-z0-9]{0,251}-)?([0-9]{1,9})")
"""A node's id, or the name of its pod, which ends in it (raft/tls.py has the same rule)."""


@dataclass(frozen=True, slots=True)
class CertifiedPrincipal:
    """The owner of a certificate: a client with a name, or a node of this cluster."""

    name: str
    """The client's; "" where it is a node."""
    node: int | None
    valid_until_s: float
    """Seconds since 1970 from which the certificate is good no more."""


@lru_cache(REMEMBERED_MAX)
def principal_of(
    certificate: bytes, cluster_id: str, named_by: NamedBy = "uri"
) -> CertifiedPrincipal | None:
    """Return the owner of a certificate (PEM); None where it is nobody.

    A name of the form `muster://CLUSTER/...` decides: of this cluster it is the client or node that
    it says, of another nobody, whatever else the certificate says, and so are two of them. Without
    one the owner is nobody, or with `named_by` "cn" the only common name of the subject. Names have
    1 to 64 letters, digits and . _ @ -; those that muster itself gives are nobody's.
    """
    if len(certificate) > CERTIFICATE_BYTES_MAX:
        return None
    try:
        names, until_s = names_of(certificate), end_of(certificate)
    except ValueError:  # names that are no text, versions and forms that do not exist
        return None
    uris = [uri for uri in names.uris if uri.lower().startswith(URI_SCHEME)]
    common = names.common
    if uris:
        return _of_uri(uris[0], cluster_id, until_s) if len(uris) == 1 else None
    if named_by == "cn" and len(common) == 1 and _is_name(common[0]):
        return CertifiedPrincipal(common[0], None, until_s)
    return None


@lru_cache(REMEMBERED_MAX)
def valid_until_s(certificate: bytes) -> float:
    """Return the end of a certificate (PEM) in seconds since 1970, whoever it names.

    0 where it cannot be read or is too long: it is good no more.
    """
    if len(certificate) > CERTIFICATE_BYTES_MAX:
        return 0.0
    try:
        return end_of(certificate)
    except ValueError:
        return 0.0


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not is_reserved(name)


def _of_uri(uri: str, cluster_id: str, until_s: float) -> CertifiedPrincipal | None:
    cluster, _, rest = uri.removeprefix(URI_SCHEME).partition("/")
    kind, _, name = rest.partition("/")
    if unquote(cluster) != cluster_id:
        return None
    if kind == "client" and _is_name(name):
        return CertifiedPrincipal(name, None, until_s)
    node = _NODE.fullmatch(name) if kind == "node" else None
    return CertifiedPrincipal("", int(node[1]), until_s) if node else None
