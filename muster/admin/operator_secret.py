"""The secret that an operator's call shows; which calls: docs/access.md, The admin secret."""

import os
from pathlib import Path

METADATA_KEY = "muster-admin-secret-bin"
"""The key under which a call's metadata carry the secret."""

FILE_VARIABLE = "MUSTER_ADMIN_SECRET_FILE"
CLEAR_VARIABLE = "MUSTER_INSECURE_ADMIN_SECRET"
"""With `true` the secret is shown without TLS to other machines, too, as the nodes' setting
`insecure_admin_secret` takes it."""


def goes_in_the_clear() -> bool:
    """Whether the user wants the secret to be shown where others can listen."""
    return os.environ.get(CLEAR_VARIABLE, "").lower() in {"1", "true"}


def operator_metadata() -> tuple[tuple[str, bytes], ...]:
    """Return the metadata of operators' calls: the content of the named file, if one is named.

    Raises:
        OSError: the file cannot be read.
    """
    path = os.environ.get(FILE_VARIABLE, "")
    return ((METADATA_KEY, Path(path).read_bytes().strip()),) if path else ()
