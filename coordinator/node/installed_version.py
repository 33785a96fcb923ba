"""The version of what is installed, as importlib.metadata says it, which loads 3 MiB."""

import sys
from pathlib import Path

_END = ".dist-info"


def installed_version(distribution: str) -> str:
    """Return the version of a distribution, named as its folder is: with `_` for `-`.

    Raises LookupError where it is not installed.
    """
    for folder in sys.path:
        for found in Path(folder).glob(f"{distribution}-*{_END}"):
            return found.name.removesuffix(_END).removeprefix(f"{distribution}-")
    raise LookupError(f"{distribution} is not installed")
