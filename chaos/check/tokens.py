"""inv-I6: once a later generation or fencing token was granted, nobody is served with an earlier.

A generation is a group's, a token a partition's: where a static member is replaced, the others go
on in their generation with the token that they have.
"""

from bisect import bisect_right

from musterd.chaos.check.findings import Findings, named
from musterd.chaos.check.known import Evidence, KnownGenerations, Removals
from musterd.chaos.check.setup import HEARD_NS, QUORUM_NS, owned_by_key
from musterd.chaos.history import Generation, History, Key, Operation, Outcome, Ownership
from musterd.chaos.verdict import Verdict


def check(history: History) -> Verdict:
    """Check that what is sent under an earlier generation *after* a later one was known is refused.

    A commit from that moment on; a heartbeat as long after it as a coordinator that was deposed may
    go on to answer (inv-I15). A later generation is known from the moment when a commit under it
    was acknowledged, or a member was told of it. Nor is a commit of a partition under an earlier
    token than another process was told with it before, nor one of a member that had been removed.
    Looks at: acknowledged commits of members, and heartbeats in a generation that was over, however
    they ended.
    """
    found = Findings(history, "I6", "no commit or heartbeat in an earlier generation after a later")
    known = KnownGenerations(history)
    granted, removals = _Granted(history), Removals(history)
    modern = {one.group for one in history.expected if one.modern}
    for one in history.commits():
        if one.outcome is not Outcome.OK or one.generation < 0 or one.ended_ns is None:
            continue
        found.looked_at += 1
        if one.key.group not in modern:
            _look(found, one, known.before(one.key.group, one.began_ns))
        if removals.is_removed(one.key.group, one.member_id, one.began_ns):
            found.broken(
                one.key,
                f"accepted {found.operation(one)} of {one.member_id}, which had been removed",
                one.began_ns,
            )
        later_owner = granted.after(one)
        if later_owner is not None:
            found.broken(
                one.key,
                f"accepted {found.operation(one)} under token {one.token}, "
                f"although {later_owner.member_id} of {later_owner.client} had token "
                f"{later_owner.token} at {found.at(later_owner.from_ns)}",
                one.began_ns,
            )
    for one in history.operations:
        if one.kind == "heartbeat" and one.generation >= 0 and one.key.group not in modern:
            before_ns = one.began_ns - QUORUM_NS - HEARD_NS
            later = known.before(one.key.group, before_ns)
            found.looked_at += later is not None and later[1] > one.generation
            if one.outcome is Outcome.OK:
                _look(found, one, later)
    return found.verdict()


class _Granted:
    """Of each partition: the moments at which the highest token that anybody was told rose."""

    def __init__(self, history: History) -> None:
        self._rising: dict[Key, list[Ownership]] = {}
        for key, owned in owned_by_key(history).items():
            rising = self._rising[key] = owned[:1]
            for one in owned:
                if one.token > rising[-1].token:
                    rising.append(one)

    def after(self, commit: Operation) -> Ownership | None:
        """Another process that had a later token before this was sent."""
        rising = self._rising.get(commit.key, [])
        index = bisect_right(rising, commit.began_ns, key=lambda one: one.from_ns) - 1
        later = rising[index] if index >= 0 and commit.token else None
        if later is None or later.token <= commit.token or later.member_id == commit.member_id:
            return None
        return later


def _look(found: Findings, one: Operation, later: Evidence | None) -> None:
    if later is None or later[1] <= one.generation:
        return
    at_ns, generation, source = later
    found.broken(
        one.key.group if one.kind == "heartbeat" else one.key,
        f"accepted {found.operation(one)}, although generation "
        f"{generation} was known at {found.at(at_ns)}: {_word(found, source)}",
        one.began_ns,
    )


def _word(found: Findings, source: Operation | Generation | Ownership) -> str:
    if isinstance(source, Operation):
        return found.operation(source)
    if isinstance(source, Generation):
        return f"{source.source} was told of it"
    return f"{source.client} was told that it owns {named(source.key)} in it"
