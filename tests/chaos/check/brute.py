"""Whether a register is linearizable: the slow, obvious way (Wing and Gong, 1993), and ours."""

from functools import cache

from musterd.chaos.check.register import NONE, Access, Register
from musterd.chaos.check.search import first_unexplained


def is_linearizable(register: Register) -> bool:
    """Try every order: each next one is one that nothing which is left had to precede."""
    everything: list[Access] = [*register.writes, *register.reads]
    first_read = len(register.writes)

    @cache
    def explained(left: frozenset[int], value: int) -> bool:
        if all(not everything[n].certain for n in left):
            return True
        for n in left:
            one = everything[n]
            if any(everything[m].end < one.begin for m in left if everything[m].certain):
                continue
            if n >= first_read and one.value != value:
                continue
            # A write that need not have happened is dropped where its time is over, too.
            after = frozenset(m for m in left - {n} if not _missed(everything[m], one))
            if explained(after, one.value):
                return True
        return False

    def _missed(other: Access, chosen: Access) -> bool:
        return not other.certain and other.end < chosen.begin

    return explained(frozenset(range(len(everything))), NONE)


def is_explained(register: Register) -> bool:
    """What the checker of inv-I2 says of it. Raises search.UndecidedError."""
    return first_unexplained(register) is None
