"""inv-I6: once a later generation was granted, nobody is served in an earlier one."""

from bisect import bisect_left
from collections import defaultdict

from chaos.check.findings import Findings, named
from chaos.check.setup import HEARD_NS, QUORUM_NS
from chaos.history import Generation, History, Operation, Outcome, Ownership
from chaos.verdict import Verdict

_Evidence = tuple[int, int, Operation | Generation | Ownership]
"""When, which generation, and who knew."""


def check(history: History) -> Verdict:
    """What is sent under an earlier generation *after* a later one was known is refused.

    A commit from that moment on; a heartbeat as long after it as a coordinator that was deposed may
    go on to answer (inv-I15). A later generation is known from the moment when a commit under it
    was acknowledged, or a member was told of it. Looks at: acknowledged commits of members, and
    heartbeats in a generation that was over, however they ended.
    """
    found = Findings(history, "I6", "no commit or heartbeat in an earlier generation after a later")
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
        _look(found, one, _known_before(rising[one.key.group], one.began_ns))
    for one in history.operations:
        if one.kind == "heartbeat" and one.generation >= 0:
            before_ns = one.began_ns - QUORUM_NS - HEARD_NS
            later = _known_before(rising.get(one.key.group, []), before_ns)
            found.looked_at += later is not None and later[1] > one.generation
            if one.outcome is Outcome.OK:
                _look(found, one, later)
    return found.verdict()


def _known_before(highest: list[_Evidence], moment_ns: int) -> _Evidence | None:
    """The highest generation that was known before a moment."""
    index = bisect_left(highest, moment_ns, key=lambda evidence: evidence[0]) - 1
    return highest[index] if index >= 0 else None


def _look(found: Findings, one: Operation, later: _Evidence | None) -> None:
    if later is None or later[1] <= one.generation:
        return
    at_ns, generation, source = later
    what = one.key.group if one.kind == "heartbeat" else named(one.key)
    found.broken(
        f"{what}: accepted {found.operation(one)}, although generation "
        f"{generation} was known at {found.at(at_ns)}: {_word(found, source)}",
        one.began_ns,
    )


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
