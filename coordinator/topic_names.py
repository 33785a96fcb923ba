"""One copy of each topic name that is decoded, or each offset would hold a copy of its own.

`sys.intern` does not do: some versions of CPython (3.12.0 to 3.12.5) never free what it was given,
and whoever sends commits chooses the names.
"""

from typing import Final

from musterd.coordinator.machine.limits import LIMITS

NAMES_MAX: Final = LIMITS.max_topics
"""All topics that there can be; with `LIMITS.id_max_bytes` of each name, 4 MiB at most."""


class _Names(dict[str, str]):
    """By name, the copy that is shared. One name too many, and all are collected anew."""

    def __missing__(self, name: str) -> str:
        if len(name) <= LIMITS.id_max_bytes:  # no topic has a longer one
            if len(self) >= NAMES_MAX:
                self.clear()
            self[name] = name
        return name


NAMES: Final = _Names()
"""`NAMES[name]` is equal to `name`; the same object for the same name, as far as it is kept."""
