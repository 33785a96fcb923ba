"""A sequence whose items are made anew whenever they are read."""

from collections.abc import Sequence
from typing import Any, TypeVar, overload

_T_co = TypeVar("_T_co", covariant=True)


class LazySequence(Sequence[_T_co]):
    """A sequence whose items are made anew whenever they are read; equal to a tuple of them."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, at: int) -> _T_co: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[_T_co]: ...
    def __getitem__(self, at: int | slice) -> Any:
        return tuple(self)[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)
