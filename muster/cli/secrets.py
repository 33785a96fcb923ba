"""Takes secrets out of what leaves a machine: known values, and what looks like one."""

import base64
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

HIDDEN: Final = b"(hidden)"
VALUE_BYTES_MIN: Final = 6
"""A shorter value is no secret, and would be found in the middle of words."""
FILE_BYTES_MAX: Final = 64 * 1024
"""So much of a file that holds a secret is looked for."""

_PRIVATE: Final = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [^-]*-----|\Z)", re.DOTALL
)
_BEARER: Final = re.compile(rb"(?i)\b(bearer|basic)[ +]+[\w.~+/=-]{6,}")
_NAMED: Final = re.compile(
    rb"(?i)((?<!fencing_)(?:secret|token|password|passwd|authorization|api_?key)(?:-bin)?"
    rb"\\?[\"']?\s*[:=]\s*\\?[\"']?)([^\s\"',;}\\]{6,})"
)
_USER_INFO: Final = re.compile(rb"(://[^\s/:@]*:)[^\s/@]+@")
_SECRET_NAME: Final = re.compile(r"SECRET|TOKEN|PASSWORD|PASSPHRASE|CREDENTIAL")


class Scrubber:
    """Replaces secrets in bytes. `values`: those that are known on this machine."""

    def __init__(self, values: Iterable[bytes]) -> None:
        forms: set[bytes] = set()
        for value in values:
            bare = value.strip()
            # Of a key's file, lines: it may be quoted with other line ends.
            parts = [bare, *bare.splitlines()] if b"\n" in bare else [bare]
            for part in parts:
                if len(part) >= VALUE_BYTES_MIN and not part.startswith(b"-----"):
                    forms |= {part, part.hex().encode(), base64.b64encode(part).rstrip(b"=")}
        self._known = sorted(forms, key=len, reverse=True)

    def scrub(self, data: bytes) -> bytes:
        """The data without them; what is left out is `(hidden)`."""
        for value in self._known:
            data = data.replace(value, HIDDEN)
        data = _PRIVATE.sub(HIDDEN, data)
        data = _BEARER.sub(rb"\1 " + HIDDEN, data)
        data = _NAMED.sub(rb"\1" + HIDDEN, data)
        return _USER_INFO.sub(rb"\1" + HIDDEN + b"@", data)


def variables(environment: Mapping[str, str]) -> tuple[dict[str, str], list[bytes]]:
    """What of MUSTER* variables may be shown, and the secrets that they hold or name files of."""
    shown: dict[str, str] = {}
    found: list[bytes] = []
    for name, value in sorted(environment.items()):
        if not name.startswith("MUSTER"):
            continue
        names_file = name.endswith(("_FILE", "_KEY"))
        if _SECRET_NAME.search(name) and not names_file:
            shown[name] = HIDDEN.decode()
            found.append(value.encode())
        else:
            shown[name] = value
        if names_file:
            found += contents(Path(value))
    return shown, found


def contents(file: Path) -> list[bytes]:
    """What a file that holds a secret has in it; nothing where it cannot be read."""
    try:
        with file.open("rb") as opened:
            return [opened.read(FILE_BYTES_MAX)]
    except OSError:
        return []


def of_this_process() -> tuple[dict[str, str], list[bytes]]:
    """As `variables`, of the environment here."""
    return variables(os.environ)
