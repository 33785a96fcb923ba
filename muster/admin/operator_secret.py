"""The secret that an operator's call shows.

TransferLeader, ReplaceNode, FinalizeLevel, AcceptLoss and ReadBackup need it.
"""

import os
from pathlib import Path

METADATA_KEY = "muster-admin-secret-bin"
"""The key under which a call's metadata carry the secret."""

FILE_VARIABLE = "MUSTER_ADMIN_SECRET_FILE"


def operator_metadata() -> tuple[tuple[str, bytes], ...]:
    """Return the metadata of operators' calls: the content of the named file, if one is named.

    Raises:
        OSError: the file cannot be read.
    """
    path = os.environ.get(FILE_VARIABLE, "")
    return ((METADATA_KEY, Path(path).read_bytes().strip()),) if path else ()
