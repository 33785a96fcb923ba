"""Is a register linearizable? Values may have several writers (deletes, resets). By search.

The events are gone through in the order of time, with every state that the register can be in:
its value, and which of the open accesses have taken effect. An access takes effect no earlier than
somebody's end demands it; a read as soon as its value is there. Exact; the number of states
grows with the number of writes that are open at one time, and is bounded.
"""

from dataclasses import dataclass

from musterd.chaos.check.findings import Findings
from musterd.chaos.check.register import FOREVER, NONE, Access, Register
from musterd.chaos.history import Key

STATES_MAX = 20_000


class UndecidedError(Exception):
    """More than `STATES_MAX` states: nothing is known of this key."""


@dataclass(frozen=True, slots=True)
class _State:
    value: int
    done: frozenset[int]
    """Open accesses that have taken effect."""
    spent: frozenset[int]
    """Writes that may be or not, and that were needed. Fewer are better."""


def check(register: Register, found: Findings, of: Key | str) -> Access | None:
    """As `first_unexplained`; that nothing is known of it is reported as a violation."""
    try:
        return first_unexplained(register)
    except UndecidedError:
        found.broken(of, f"undecided after {STATES_MAX} states: nothing is known of it")
        return None


def first_unexplained(register: Register) -> Access | None:
    """The first access to end that no order explains; None where the register is linearizable.

    Raises UndecidedError.
    """
    return _Search(register).run()


class _Search:
    def __init__(self, register: Register) -> None:
        read = {access.value for access in register.reads}
        writes = [w for w in register.writes if w.certain or w.value in read]
        self._all = [*writes, *register.reads]
        self._first_read = len(writes)
        self._open_writes: set[int] = set()
        self._open_reads: set[int] = set()
        self._states = {_State(NONE, frozenset(), frozenset())}

    def run(self) -> Access | None:
        events = [(access.begin, 0, n) for n, access in enumerate(self._all)]
        events += [(access.end, 1, n) for n, access in enumerate(self._all)]
        events.sort()
        for _, is_end, number in events:
            if not is_end:
                self._begin(number)
            elif self._all[number].end < FOREVER and not self._end(number):
                return self._all[number]
        return None

    def _begin(self, number: int) -> None:
        if number < self._first_read:
            self._open_writes.add(number)
            return
        self._open_reads.add(number)
        value = self._all[number].value
        self._states = {
            _State(s.value, s.done | {number}, s.spent) if s.value == value else s
            for s in self._states
        }

    def _end(self, number: int) -> bool:
        """Whether a state is left in which the access has taken effect, or need not have."""
        certain = self._all[number].certain
        ended = set() if certain else {s for s in self._states if number not in s.spent}
        seen = set(self._states)
        todo = list(self._states)
        while todo:
            state = todo.pop()
            if number in state.done:
                ended.add(_State(state.value, state.done - {number}, state.spent))
                continue
            if number in state.spent:
                ended.add(_State(state.value, state.done, state.spent - {number}))
                continue
            for write in self._unlike(self._open_writes - state.done - state.spent):
                after = self._written(state, write)
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
            if len(seen) > STATES_MAX:
                raise UndecidedError
        self._open_writes.discard(number)
        self._open_reads.discard(number)
        self._states = self._best(ended)
        return bool(ended)

    def _unlike(self, writes: set[int]) -> list[int]:
        """Of writes of one value that may happen for ever, or never, the first stands for all."""
        kept, values = [], set()
        for write in sorted(writes):
            access = self._all[write]
            if access.certain or access.end < FOREVER:
                kept.append(write)
            elif access.value not in values:
                values.add(access.value)
                kept.append(write)
        return kept

    def _written(self, state: _State, write: int) -> _State:
        access = self._all[write]
        reads = {n for n in self._open_reads if self._all[n].value == access.value}
        if access.certain:
            return _State(access.value, state.done | reads | {write}, state.spent)
        return _State(access.value, state.done | reads, state.spent | {write})

    @staticmethod
    def _best(states: set[_State]) -> set[_State]:
        """Without those that have spent more than another one, and gained nothing by it."""
        alike: dict[tuple[int, frozenset[int]], list[_State]] = {}
        for state in sorted(states, key=lambda s: len(s.spent)):
            kept = alike.setdefault((state.value, state.done), [])
            if not any(other.spent <= state.spent for other in kept):
                kept.append(state)
        return {state for kept in alike.values() for state in kept}
