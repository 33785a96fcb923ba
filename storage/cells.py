"""Reads a range of keys to its end, and knows an end from an error."""

from collections.abc import Callable, Iterator
from typing import Protocol

from musterd.storage.store import StoreError


class Cells(Protocol):
    """The database's own iterator, which stands at a cell or at none. Its moment is its making."""

    def valid(self) -> bool:
        """Whether it stands at a cell; False at the end, and after an error."""

    def key(self) -> object: ...

    def value(self) -> object: ...

    def next(self) -> None:
        """Go to the next cell."""

    def status(self) -> None:
        """Raises what has ended it before its end."""


def read_until(
    cells: Cells, end: bytes, wrong: Callable[[Exception], StoreError]
) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of each cell before `end`.

    Raises `wrong(error)` where the database cannot be read: its own `items()` ends there as if
    nothing followed (release 0.3.29), so that a node would take a part of its state for all of it.
    """
    while cells.valid():
        key, value = cells.key(), cells.value()
        if not isinstance(key, bytes) or not isinstance(value, bytes):
            raise wrong(TypeError("a key or a value that is no bytes"))
        if key >= end:
            return
        yield key, value
        cells.next()
    try:
        cells.status()
    except Exception as error:  # rocksdict raises plain Exception
        raise wrong(error) from error
