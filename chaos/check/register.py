"""Reads and writes of one key by all clients, as operations on a register with possible times."""

from dataclasses import dataclass, field

from musterd.chaos.check.known import KnownGenerations
from musterd.chaos.history import SUPERSEDED, WRITES, History, Key, Operation, Outcome

FOREVER = 1 << 62
"""Later than every moment, ns."""
NONE = -1
"""The value of a key before its first write, and after a delete."""


@dataclass(slots=True)
class Access:
    """A write or a read, that takes effect at one moment from `begin` to `end`."""

    value: int
    begin: int
    end: int
    """`FOREVER`: it was not answered, and nothing tells when it can no longer take effect."""
    certain: bool
    """Whether it has taken effect, or will; else it may also never."""
    operation: Operation


@dataclass(slots=True)
class Register:
    """One key. A refused write is in none of the lists: it never takes effect."""

    writes: list[Access] = field(default_factory=list)
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
        register = found.setdefault(one.key, Register())
        if not is_write:
            if one.outcome is Outcome.OK:
                register.reads.append(_access(one, certain=True))
        elif one.outcome is Outcome.FAIL:
            register.refused.append(one)
        else:
            register.writes.append(_access(one, certain=one.outcome is Outcome.OK))
    known = KnownGenerations(history)
    modern = {one.group for one in history.expected if one.modern}
    for register in found.values():
        register.writes.sort(key=lambda access: access.begin)
        register.reads.sort(key=lambda access: access.begin)
        _end_overtaken(register, known, modern)
    return found


def _end_overtaken(register: Register, known: KnownGenerations, modern: set[str]) -> None:
    """A member's commit that was not answered takes no effect any more once it is overtaken.

    By a later generation: from when on one is known, no commit of an earlier one is taken (gp-O5);
    not in `modern` groups, where others' tokens are rising without that.
    Or by a commit of the same client that began later and was acknowledged: it has a greater
    `commit_seq`, so the earlier one is superseded (gp-O9).
    """
    acknowledged = [one for one in register.writes if one.certain and one.operation.numbered]
    for write in register.writes:
        one = write.operation
        if write.end < FOREVER or one.kind != "commit" or one.generation < 0:
            continue
        fenced = one.key.group not in modern
        later = known.later_than(one.key.group, one.generation) if fenced else None
        ends = [FOREVER if later is None else max(later, write.begin)]
        if one.numbered:
            ends += (
                other.end
                for other in acknowledged
                if other.operation.client == one.client and other.begin > write.begin
            )
        write.end = min(ends)


def _access(one: Operation, *, certain: bool) -> Access:
    if one.value is None:
        raise ValueError(f"{one} has no value")
    # What a newer commit overtook has no effect after it was answered.
    ends = certain or one.error == SUPERSEDED
    if ends and one.ended_ns is None:
        raise ValueError(f"{one} was answered at no time")
    end = one.ended_ns if ends and one.ended_ns is not None else FOREVER
    return Access(one.value, one.began_ns, end, certain, one)
