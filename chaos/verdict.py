"""The verdict of a checker on a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from musterd.chaos.history import History


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken, and what was seen."""

    invariant: str
    """`I1` ... `I17`, or the kind of one that only the simulator sees (`H-stale-read`)."""
    what: str
    """For people: who, where, when, what was promised and what was seen."""
    at_ns: int | None = None
    about: str = ""
    """The key, the group or the place whose promise it is; "" where it is none of these."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of one checker. One that looked at nothing has not passed."""

    invariant: str
    title: str
    looked_at: int
    """How many operations, intervals, pairs: 0 means that it says nothing."""
    violations: tuple[Violation, ...] = ()
    applies: bool = True
    """False: listed as not applying (yet), with the reason in `note`; never counted as passed."""
    note: str = ""
    found: int = 0
    """How many violations were found, where `violations` does not list all of them."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Figures of this invariant (I1: `lost`, `unread`)."""

    @property
    def violations_count(self) -> int:
        """Of all that were found."""
        return max(self.found, len(self.violations))

    @property
    def passed(self) -> bool:
        """It applies, it had something to look at, and nothing was broken."""
        return self.applies and self.looked_at > 0 and not self.violations


Checker = Callable[[History], Verdict]
