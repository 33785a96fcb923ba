"""A later Python's text, put into the machine: where that asks how text looks, it answers as later.

`str` itself cannot be changed. Its subclass is asked by `repr`, `!r` and `isprintable` alike.
"""

import dataclasses

from tests.machine.world import World

LATER = {
    "\U0001fae8": 15.0,  # a shaking face, printable since Python 3.12
    "\U00011f00": 15.0,  # a Kawi sign
    "\u2ffc": 15.1,  # an ideographic description character, since Python 3.13
    "\U0001fae9": 16.0,  # a face with bags under its eyes, since Python 3.14
}
"""Characters that were not assigned in Unicode 14, and since when they are."""


class LaterText(str):
    """Text as a later Python has it: what it can print, and what its `repr` is."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = super().__repr__()
        for character in LATER:
            shown = shown.replace(ascii(character)[1:-1], character)
        return shown

    def __iter__(self):
        return map(LaterText, super().__iter__())

    def isprintable(self) -> bool:
        return all(one in LATER or str(one).isprintable() for one in self)


def as_later(what):
    """The same command, all whose texts are a later Python's."""
    if type(what) is str:
        return LaterText(what)
    if isinstance(what, tuple):
        make = getattr(what, "_make", tuple)
        return make(map(as_later, what))
    if dataclasses.is_dataclass(what):
        fields = {f.name: as_later(getattr(what, f.name)) for f in dataclasses.fields(what)}
        return dataclasses.replace(what, **fields)
    return what


class LaterWorld(World):
    """What one shard comes to where a later Python runs the machine."""

    def apply(self, *commands):
        return super().apply(*map(as_later, commands))
