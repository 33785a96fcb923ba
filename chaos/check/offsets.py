"""inv-I2: the offsets of each (group, topic, partition) are linearizable, as one register each."""

from musterd.chaos.check import search
from musterd.chaos.check.findings import Findings, named
from musterd.chaos.check.register import FOREVER, Access, Register, registers
from musterd.chaos.check.zones import Conflict, conflicts, has_one_writer_each
from musterd.chaos.history import History, Key
from musterd.chaos.verdict import Verdict


def check(history: History) -> Verdict:
    """Every answered read and write of a key fits one order that keeps real time.

    Commits, deletes and resets are writes. One whose outcome is unknown has happened where its
    value was read, and need not have otherwise. Looks at: the accesses of keys that were both
    written and read.
    """
    found = Findings(history, "I2", "offsets are linearizable")
    searched = 0
    for key, register in registers(history).items():
        if not register.reads:
            continue
        found.looked_at += len(register.writes) - 1 + len(register.reads)
        if has_one_writer_each(register):
            for conflict in conflicts(register):
                _report(found, key, register, conflict)
            continue
        searched += 1
        access = search.check(register, found, named(key))
        if access is not None:
            found.broken(
                named(key),
                f"no order of all that ended before explains the {_word(found, access)}",
                access.begin,
            )
    if searched:
        found.note(f"{searched} keys had values with several writers, and were searched")
    return found.verdict()


def _report(found: Findings, key: Key, register: Register, conflict: Conflict) -> None:
    read, one, other = conflict.read, conflict.one, conflict.other
    if read is not None and one is None:
        refused = [w for w in register.refused if w.value == read.value]
        why = "that nobody wrote"
        if refused:
            why = f"although it was refused: {found.operation(refused[0])}"
        found.broken(
            named(key),
            f"a value {why}: {_word(found, read)}",
            read.begin,
        )
    elif read is not None and one is not None:
        found.broken(
            named(key),
            f"a value before it was written: {_word(found, read)}, {_word(found, one.write)}",
            read.begin,
        )
    elif one is not None and other is not None:
        found.broken(
            named(key),
            f"{one.write.value} and {other.write.value} must each precede the "
            f"other: {_word(found, one.first)} ended before {_word(found, other.last)} began, and "
            f"{_word(found, other.first)} ended before {_word(found, one.last)} began",
            max(min(one.last.begin, FOREVER), other.last.begin),
        )


def _word(found: Findings, access: Access) -> str:
    if access.operation is None:
        return "the beginning, with no offset,"
    return found.operation(access.operation)
