"""inv-I2: the offsets of each (group, topic, partition) are linearizable, as one register each."""

from musterd.chaos.check import search
from musterd.chaos.check.findings import Findings
from musterd.chaos.check.register import Access, Register, registers
from musterd.chaos.history import History
from musterd.chaos.verdict import Verdict


def check(history: History) -> Verdict:
    """Every answered read and write of a key fits one order that keeps real time.

    Commits, deletes and resets are writes. One whose outcome is unknown has happened where its
    value was read, and need not have otherwise. Looks at: the accesses of keys that were both
    written and read.
    """
    found = Findings(history, "I2", "offsets are linearizable")
    for key, register in registers(history).items():
        if not register.reads:
            continue
        found.looked_at += len(register.writes) + len(register.reads)
        access = search.check(register, found, key)
        if access is not None:
            found.broken(key, _why(found, register, access), access.begin)
    return found.verdict()


def _why(found: Findings, register: Register, access: Access) -> str:
    word = found.operation(access.operation)
    if all(write.value != access.value for write in register.writes):
        refused = [one for one in register.refused if one.value == access.value]
        if refused:
            return f"a value although it was refused: {found.operation(refused[0])}: {word}"
        return f"a value that nobody wrote: {word}"
    return f"no order of all that ended before explains the {word}"
