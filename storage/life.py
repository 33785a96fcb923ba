"""Counts a store's openings, and how far it had got at each (raft/lives.py says what for)."""

from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

STARTS_MAX: Final = 64
"""So many starts are kept, the newest ones."""

_U64: Final = Struct(">Q")
_START: Final = Struct(">QQ")


class Start(NamedTuple):
    """One start: the life that began with it, and the newest epoch that was found."""

    life: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Life:
    """The value of META's key LIFE. `number` 0: the store was made and never opened since."""

    number: int = 0
    starts: tuple[Start, ...] = ()
    """The last `STARTS_MAX`, the oldest first. A life that was raised has none."""

    @classmethod
    def decode(cls, value: bytes | None) -> "Life":
        """Decode the output of `encode`; None: the store has no such key. Raises ValueError."""
        if not value:
            return cls()
        if len(value) % _START.size != _U64.size:
            raise ValueError(f"the lives of the store have {len(value)} bytes")
        starts = tuple(map(Start._make, _START.iter_unpack(value[_U64.size :])))
        return cls(_U64.unpack_from(value)[0], starts)

    def encode(self) -> bytes:
        starts = b"".join(_START.pack(*start) for start in self.starts)
        return _U64.pack(self.number) + starts

    def begun(self, epoch: int) -> "Life":
        """Return the next life, of a store that was found at `epoch`."""
        number = self.number + 1
        return Life(number, (*self.starts, Start(number, epoch))[-STARTS_MAX:])

    def raised(self, number: int) -> "Life":
        """Return this life under a greater number."""
        return Life(number, self.starts)
