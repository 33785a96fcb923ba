"""inv-I6: once a later generation was granted, nobody is served in an earlier one."""

from chaos.check.findings import Findings, named
from chaos.check.known import Evidence, KnownGenerations
from chaos.check.setup import HEARD_NS, QUORUM_NS
from chaos.history import Generation, History, Operation, Outcome, Ownership
from chaos.verdict import Verdict


def check(history: History) -> Verdict:
    """What is sent under an earlier generation *after* a later one was known is refused.

    A commit from that moment on; a heartbeat as long after it as a coordinator that was deposed may
    go on to answer (inv-I15). A later generation is known from the moment when a commit under it
    was acknowledged, or a member was told of it. Looks at: acknowledged commits of members, and
    heartbeats in a generation that was over, however they ended.
    """
    found = Findings(history, "I6", "no commit or heartbeat in an earlier generation after a later")
    known = KnownGenerations(history)
    for one in history.commits():
        if one.outcome is not Outcome.OK or one.generation < 0 or one.ended_ns is None:
            continue
        found.looked_at += 1
        _look(found, one, known.before(one.key.group, one.began_ns))
    for one in history.operations:
        if one.kind == "heartbeat" and one.generation >= 0:
            before_ns = one.began_ns - QUORUM_NS - HEARD_NS
            later = known.before(one.key.group, before_ns)
            found.looked_at += later is not None and later[1] > one.generation
            if one.outcome is Outcome.OK:
                _look(found, one, later)
    return found.verdict()


def _look(found: Findings, one: Operation, later: Evidence | None) -> None:
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
