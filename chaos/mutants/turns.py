"""What takes too long for each commit takes turns: a run has every third of it, and says which."""

from collections.abc import Sequence
from typing import TypeVar

TURNS = 3
"""So many runs in a row, each with the next number, have all."""
_T = TypeVar("_T")


def due(all_of_it: Sequence[_T], turn: int) -> list[_T]:
    """What a run with this number has."""
    return [one for place, one in enumerate(all_of_it) if (place - turn) % TURNS == 0]
