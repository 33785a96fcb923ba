"""inv-I6: once a later generation was granted, no commit of an earlier one is accepted."""

from bisect import bisect_left
from collections import defaultdict

from chaos.check.findings import Findings, named
from chaos.history import Generation, History, Operation, Outcome, Ownership
from chaos.verdict import Verdict

_Evidence = tuple[int, int, Operation | Generation | Ownership]
"""When, which generation, and who knew."""


def check(history: History) -> Verdict:
    """No commit that was sent under an earlier generation *after* a later one was known is stored.

    A later generation is known from the moment when a commit under it was acknowledged, or a member
    was told of it. Looks at: acknowledged commits of members.
    """
    found = Findings(history, "I6", "no commit of an earlier generation after a later one")
    known: dict[str, list[_Evidence]] = defaultdict(list)
    commits: list[Operation] = []
    for one in history.commits():
        if one.outcome is Outcome.OK and one.generation >= 0 and one.ended_ns is not None:
            commits.append(one)
            known[one.key.group].append((one.ended_ns, one.generation, one))
    for told in history.generations:
        known[told.group].append((told.at_ns, told.generation, told))
    for owned in history.ownerships:
        known[owned.key.group].append((owned.from_ns, owned.generation, owned))
    rising = {group: _rising(evidence) for group, evidence in known.items()}
    for one in commits:
        found.looked_at += 1
        highest = rising[one.key.group]
        index = bisect_left(highest, one.began_ns, key=lambda evidence: evidence[0]) - 1
        if index >= 0 and highest[index][1] > one.generation:
            at_ns, generation, source = highest[index]
            found.broken(
                f"{named(one.key)}: accepted {found.operation(one)}, although generation "
                f"{generation} was known at {found.at(at_ns)}: {_word(found, source)}",
                one.began_ns,
            )
    return found.verdict()


def _word(found: Findings, source: Operation | Generation | Ownership) -> str:
    if isinstance(source, Operation):
        return found.operation(source)
    if isinstance(source, Generation):
        return f"{source.source} was told of it"
    return f"{source.client} was told that it owns {named(source.key)} in it"


def _rising(evidence: list[_Evidence]) -> list[_Evidence]:
    """The moments at which the highest known generation rose."""
    highest: list[_Evidence] = []
    for one in sorted(evidence, key=lambda one: (one[0], one[1])):
        if not highest or one[1] > highest[-1][1]:
            highest.append(one)
    return highest
