"""The hash functions that the interpreter brings along.

`hashlib` has the same ones and loads OpenSSL, 3.5 MiB of each process's memory.
"""

import sys
from _blake2 import blake2b

if sys.version_info >= (3, 12):
    from _sha2 import sha256
else:
    from _sha256 import sha256

__all__ = ["blake2b", "sha256"]
