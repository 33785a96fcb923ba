"""Findings of a checker, in words that a person can act on."""

from collections.abc import Iterable

from musterd.chaos.check.setup import moment
from musterd.chaos.history import SUPERSEDED, History, Key, Operation, Outcome
from musterd.chaos.verdict import Verdict, Violation

LISTED_MAX = 50
"""So many violations of one invariant are listed; the others are counted in the note."""
_NS = 1e9


def beginning(history: History) -> int:
    """The fact `began_ns`, else the first moment: what people are told of times counts from it."""
    told = moment(history, "began_ns")
    if told is not None:
        return told
    firsts = (
        min((one.began_ns for one in history.operations), default=None),
        min((one.from_ns for one in history.ownerships), default=None),
        min((one.began_ns for one in history.faults), default=None),
        min((one.at_ns for one in history.generations), default=None),
        min((one.at_ns for one in history.store_writes), default=None),
    )
    return min((first for first in firsts if first is not None), default=0)


class Findings:
    """Collects one checker's violations, at most `LISTED_MAX`."""

    def __init__(self, history: History, invariant: str, title: str) -> None:
        self._began = beginning(history)
        self._invariant, self._title = invariant, title
        self._listed: list[Violation] = []
        self._notes: list[str] = []
        self.count = 0
        """How many were found in all."""
        self.looked_at = 0
        self.counts: dict[str, int] = {}
        """Figures for the verdict."""

    def broken(self, of: Key | str, what: str, at_ns: int | None = None) -> None:
        """One violation. `of`: as `about` in `Violation`."""
        self.count += 1
        if len(self._listed) < LISTED_MAX:
            about = named(of) if isinstance(of, Key) else of
            told = f"{about}: {what}" if about else what
            self._listed.append(Violation(self._invariant, told, at_ns, about))

    def note(self, text: str) -> None:
        """Something to know that is no violation."""
        self._notes.append(text)

    def verdict(self) -> Verdict:
        notes = list(self._notes)
        if self.count > len(self._listed):
            notes.append(f"{self.count - len(self._listed)} more violations are not listed")
        return Verdict(
            self._invariant,
            self._title,
            self.looked_at,
            tuple(self._listed),
            note="; ".join(notes),
            found=self.count,
            counts=dict(self.counts),
        )

    # -- words

    def at(self, ns: int) -> str:
        """A moment: seconds since the history began."""
        return f"{(ns - self._began) / _NS:+.6f} s"

    def span(self, from_ns: int, until_ns: int | None) -> str:
        """A span, which may not have ended."""
        if until_ns is None:
            return f"{self.at(from_ns)} .. open"
        return f"{self.at(from_ns)} .. {self.at(until_ns)}"

    def operation(self, one: Operation) -> str:
        """An operation with its client, its value, its times and its outcome."""
        outcome = ""
        if one.outcome is Outcome.UNKNOWN:
            outcome = ", superseded" if one.error == SUPERSEDED else ", outcome unknown"
        elif one.outcome is Outcome.FAIL:
            outcome = f", refused ({one.error})" if one.error else ", refused"
        node = "" if one.node is None else f", node-{one.node}"
        generation = "" if one.generation < 0 else f", generation {one.generation}"
        value = "" if one.value is None else f" {one.value}"
        times = self.span(one.began_ns, one.ended_ns)
        return f"{one.kind}{value} by {one.client} ({times}{generation}{node}{outcome})"


def named(key: Key) -> str:
    """The key as reports name it: group/topic/partition."""
    return f"{key.group}/{key.topic}/{key.partition}"


def some(names: Iterable[str], most: int = 5) -> str:
    """The first few of many, and how many more there are."""
    everything = list(names)
    rest = len(everything) - most
    return ", ".join(everything[:most]) + (f" and {rest} more" if rest > 0 else "")
