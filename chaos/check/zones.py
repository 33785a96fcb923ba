"""Is a register linearizable, where every value that was read has one writer? Exact, O(n log n).

A write and its reads are a block: in any order that explains the history they stand together, and
blocks follow one another. With f the earliest end and s the latest begin in a block, block A must
precede B as soon as f(A) < s(B). An order exists if and only if no read ends before its own write
began, and no two blocks must each precede the other: f(A) < s(B) and f(B) < s(A) (Gibbons and
Korach, Testing Shared Memories, 1997). Of two blocks with s <= f that is never true, so only pairs
with a "forward" one (f < s) are looked at.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from musterd.chaos.check.register import Access, Register


@dataclass(slots=True)
class Block:
    """A write and all reads of its value."""

    write: Access
    first: Access
    """Which ends first."""
    last: Access
    """Which begins last."""

    @property
    def finish(self) -> int:
        """The earliest end, ns."""
        return self.first.end

    @property
    def start(self) -> int:
        """The latest begin, ns."""
        return self.last.begin


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why there is no order."""

    why: str
    """no-writer | before-write | both-first"""
    read: Access | None = None
    """Of the first two."""
    one: Block | None = None
    other: Block | None = None


def has_one_writer_each(register: Register) -> bool:
    """Whether no value that was read has two writes that it may be from."""
    read = {access.value for access in register.reads}
    seen: set[int] = set()
    for write in register.writes:
        if write.value in read:
            if write.value in seen:
                return False
            seen.add(write.value)
    return True


def conflicts(register: Register) -> Iterator[Conflict]:
    """Why it is not linearizable; nothing where it is. Needs `has_one_writer_each`."""
    wrong: list[Conflict] = []
    blocks = _blocks(register, wrong)
    yield from wrong
    if wrong:
        return
    forward = sorted((b for b in blocks if b.finish < b.start), key=lambda b: (b.finish, b.start))
    furthest: Block | None = None
    disjoint: list[Block] = []
    for block in forward:
        if furthest is not None and block.finish < furthest.start:
            yield Conflict("both-first", one=furthest, other=block)
        else:
            disjoint.append(block)
        if furthest is None or block.start > furthest.start:
            furthest = block
    finishes = [block.finish for block in disjoint]
    for block in blocks:
        if block.finish < block.start:
            continue
        # Forward blocks that do not overlap end in the order in which they begin.
        index = bisect_left(finishes, block.start) - 1
        if index >= 0 and block.finish < disjoint[index].start:
            yield Conflict("both-first", one=disjoint[index], other=block)


def _blocks(register: Register, wrong: list[Conflict]) -> list[Block]:
    """Blocks of what has happened; a write that may be and that nobody read need not have."""
    read: set[int] = {access.value for access in register.reads}
    blocks: list[Block] = []
    of_value: dict[int, Block] = {}
    for write in register.writes:
        if write.certain or write.value in read:
            block = Block(write, write, write)
            blocks.append(block)
            if write.value in read:
                of_value[write.value] = block
    for access in register.reads:
        home = of_value.get(access.value)
        if home is None:
            wrong.append(Conflict("no-writer", read=access))
        elif access.end < home.write.begin:
            wrong.append(Conflict("before-write", read=access, one=home))
        else:
            if access.end < home.first.end:
                home.first = access
            if access.begin > home.last.begin:
                home.last = access
    return blocks
