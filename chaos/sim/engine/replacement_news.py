"""News of replaced nodes reaches a node as in the shipped build: with what its shard 0 applies.

Amid a tick, and in the order of the log: a node that begins with an empty log reads of all earlier
replacements first, unless a snapshot tells it of the last ones at once.

Nobody proposes an entry for a replacement here. It lies between two entries of shard 0, so what a
replacement is true as of counts double: 2 x the index of an entry, plus 1 right behind it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from musterd.raft.contract import Examination, Role, StateBatch, StateMachine, StateView

if TYPE_CHECKING:
    from musterd.raft.driver import Driver
    from musterd.raft.peers import Replacement


class News:
    """What shard 0 has said of nodes' stores to one life of one node."""

    def __init__(self, log: "Sequence[Replacement]", driver: "Callable[[], Driver]") -> None:
        """`log`: all replacements there are, by rising `as_of`."""
        self._log, self._driver = log, driver
        self._read = 0

    def applied(self, index: int) -> None:
        """Shard 0 is applied up to `index`: tell what the log says until there, one by one.

        Called by each command that is applied, and by the node's timer: some entries are none.
        """
        end = 2 * index + 1
        while self._read < len(self._log) and self._log[self._read].as_of <= end:
            said = self._log[self._read]
            self._read += 1
            self._driver().allow_replacement(said)

    def loaded(self, index: int) -> None:
        """Shard 0's state as of `index` was loaded: it holds the last replacement of each node."""
        held = [said for said in self._log if said.as_of <= 2 * index + 1]
        self._read = len(held)
        for said in {said.node: said for said in held}.values():
            as_of = max(said.as_of, 2 * index)
            self._driver().allow_replacement(replace(said, as_of=as_of))

    def beside(self, machine: StateMachine) -> StateMachine:
        """Shard 0's machine, whose entries bring the news."""
        return _Bringing(machine, self)


class _Bringing:
    def __init__(self, machine: StateMachine, news: News) -> None:
        self._machine, self._news = machine, news

    def apply(self, index: int, term: int, entry: bytes, batch: StateBatch) -> object:
        result = self._machine.apply(index, term, entry, batch)
        self._news.applied(index)
        return result

    def reload(self, view: StateView) -> Iterator[None]:
        yield from self._machine.reload(view) or ()
        self._news.loaded(view.applied_index)

    def examine(self) -> Examination:
        return self._machine.examine()

    def role_changed(self, role: Role, term: int) -> None:
        self._machine.role_changed(role, term)
