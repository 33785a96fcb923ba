"""Counts words, as the demo does. A word never crosses a line, so lines can be counted anywhere."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping

_WORD = re.compile(r"\w+")


def count_tokens(text: bytes, into: Counter[str]) -> None:
    """Add the words of `text` (one line or many; UTF-8, what is not is replaced) to `into`."""
    into.update(_WORD.findall(text.decode("utf-8", "replace")))


def table_digest(counts: Mapping[str, int]) -> str:
    """SHA-256 over the table's lines `token TAB count`, in order of the tokens' UTF-8."""
    digest = hashlib.sha256()
    for token in sorted(counts):
        digest.update(f"{token}\t{counts[token]}\n".encode())
    return digest.hexdigest()
