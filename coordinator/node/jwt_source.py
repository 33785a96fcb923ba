"""Where the keys of JWTs come from: a URL or a file."""

from pathlib import Path

from musterd.coordinator.api.frame.jwt_verifier import KEYS_BYTES_MAX


def is_url(source: str) -> bool:
    """Whether keys come from a URL, not a file."""
    return source.startswith(("https://", "http://"))


def read_file(path: Path) -> bytes:
    """The file, as far as a set of keys may be long, and a byte more. Raises OSError."""
    with path.open("rb") as file:
        return file.read(KEYS_BYTES_MAX + 1)
