"""The state of groups that was known at a moment: the highest generation, and removed members."""

from bisect import bisect_left, bisect_right
from collections import defaultdict

from musterd.chaos.history import Generation, History, Operation, Outcome, Ownership

Evidence = tuple[int, int, Operation | Generation | Ownership]
"""When (ns), which generation, or token of a modern group, and who knew."""


class KnownGenerations:
    """Of each group: a commit was acknowledged under it, or a member was told of it.

    Of a modern group tokens are meant: one counter of the group's own is taken from with each
    grant, and each member has an epoch of its own.
    """

    def __init__(self, history: History) -> None:
        evidence: dict[str, list[Evidence]] = defaultdict(list)
        modern = {one.group for one in history.expected if one.modern}
        for one in history.commits():
            if one.outcome is Outcome.OK and one.generation >= 0 and one.ended_ns is not None:
                number = one.token if one.key.group in modern else one.generation
                evidence[one.key.group].append((one.ended_ns, number, one))
        for told in history.generations:
            if told.group not in modern:
                evidence[told.group].append((told.at_ns, told.generation, told))
        for owned in history.ownerships:
            evidence[owned.key.group].append((owned.from_ns, owned.generation, owned))
        self._rising = {group: _rising(found) for group, found in evidence.items()}

    def before(self, group: str, moment_ns: int) -> Evidence | None:
        """The highest that was known before a moment."""
        rising = self._rising.get(group, [])
        index = bisect_left(rising, moment_ns, key=lambda evidence: evidence[0]) - 1
        return rising[index] if index >= 0 else None

    def later_than(self, group: str, generation: int) -> int | None:
        """The moment at which one later than this was first known; None: there was none."""
        rising = self._rising.get(group, [])
        index = bisect_right(rising, generation, key=lambda evidence: evidence[1])
        return rising[index][0] if index < len(rising) else None


def _rising(evidence: list[Evidence]) -> list[Evidence]:
    """The moments at which the highest known generation rose."""
    highest: list[Evidence] = []
    for one in sorted(evidence, key=lambda one: (one[0], one[1])):
        if not highest or one[1] > highest[-1][1]:
            highest.append(one)
    return highest


class Removals:
    """The removals of members, where the history has the groups' logs."""

    def __init__(self, history: History) -> None:
        self._spans: dict[tuple[str, str], list[tuple[int, int | None]]] = defaultdict(list)
        known = KnownGenerations(history)
        for one in history.removals:
            from_ns = one.from_ns
            if from_ns is None:
                from_ns = known.later_than(one.group, one.generation)
            if from_ns is not None:
                self._spans[one.group, one.member_id].append((from_ns, one.until_ns))

    def is_removed(self, group: str, member_id: str, at_ns: int) -> bool:
        """Whether the log had removed it by then."""
        return any(
            from_ns <= at_ns and (until_ns is None or at_ns < until_ns)
            for from_ns, until_ns in self._spans.get((group, member_id), ())
        )
