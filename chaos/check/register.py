"""What clients did to one key, as a register: writes and reads, and when each can have been."""

from dataclasses import dataclass, field

from chaos.history import SUPERSEDED, WRITES, History, Key, Operation, Outcome

FOREVER = 1 << 62
"""Later than every moment, ns."""
BEFORE_ALL = -FOREVER
NONE = -1
"""The value of a key before its first write, and after a delete."""


@dataclass(slots=True)
class Access:
    """A write or a read, that takes effect at one moment from `begin` to `end`."""

    value: int
    begin: int
    end: int
    """`FOREVER`: it was never answered, and may still take effect."""
    certain: bool
    """Whether it has taken effect, or will; else it may also never."""
    operation: Operation | None
    """None: what was there before the history began."""


@dataclass(slots=True)
class Register:
    """One key. A refused write is in none of the lists: it never takes effect."""

    writes: list[Access] = field(default_factory=list)
    """The first is the initial one, of `NONE`."""
    reads: list[Access] = field(default_factory=list)
    """Those that were answered."""
    refused: list[Operation] = field(default_factory=list)
    """Writes that were refused; for messages."""


def registers(history: History) -> dict[Key, Register]:
    """Each key's accesses, in the order in which they began.

    Raises ValueError where a write or an answered read has no value.
    """
    found: dict[Key, Register] = {}
    for one in history.operations:
        is_write = one.kind in WRITES
        if not is_write and one.kind != "read":
            continue
        register = found.get(one.key)
        if register is None:
            register = found[one.key] = Register()
            register.writes.append(Access(NONE, BEFORE_ALL, BEFORE_ALL, True, None))
        if not is_write:
            if one.outcome is Outcome.OK:
                register.reads.append(_access(one, certain=True))
        elif one.outcome is Outcome.FAIL:
            register.refused.append(one)
        else:
            register.writes.append(_access(one, certain=one.outcome is Outcome.OK))
    for register in found.values():
        register.writes.sort(key=lambda access: access.begin)
        register.reads.sort(key=lambda access: access.begin)
    return found


def _access(one: Operation, *, certain: bool) -> Access:
    if one.value is None:
        raise ValueError(f"{one} has no value")
    # What a newer commit overtook has no effect after it was answered.
    ends = certain or one.error == SUPERSEDED
    if ends and one.ended_ns is None:
        raise ValueError(f"{one} was answered at no time")
    end = one.ended_ns if ends and one.ended_ns is not None else FOREVER
    return Access(one.value, one.began_ns, end, certain, one)
