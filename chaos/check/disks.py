"""inv-I14 and inv-I16: a node whose files are damaged, or whose disk fails, serves nobody."""

from collections.abc import Mapping

from musterd.chaos.check.findings import Findings
from musterd.chaos.history import History, NodeState, Outcome
from musterd.chaos.verdict import Verdict

FOUND = {
    "corrupt": ("refused", "repaired"),
    "forgot": ("repaired",),
    "diverged": ("repaired",),
    "disk_error": ("stopped",),
    "sync_hangs": ("left",),
    "no_room": ("stayed",),
    "slept": ("left",),
}
"""What a node in such a state may be found to have done."""
SILENCED = frozenset({"corrupt", "disk_error"})
"""In these a node acknowledges nothing at all."""


def check_corrupt(history: History) -> Verdict:
    """A node with damaged files refuses to start, or comes up with its peers' state.

    While it refuses it acknowledges nothing. That a repaired one has the right state is inv-I10's.
    One on an older copy of its files cannot know: others have to find out, and make it whole. One
    whose stored state was changed is outvoted, it and nobody else, and takes that of a majority.
    Looks at: damaged nodes.
    """
    found = Findings(history, "I14", "damaged files are refused or repaired, never served")
    return _check(
        found,
        history,
        {
            "corrupt": "had damaged files",
            "forgot": "was started without what it had synced last",
            "diverged": "stored another state than the log says",
        },
    )


def check_errors(history: History) -> Verdict:
    """A node whose writes and syncs fail ends, and acknowledges nothing that began after that.

    One whose syncs hang leads nothing after a while, and later ends with 1; one whose disk is full
    stays. What others made durable it may acknowledge.
    Looks at: failed disks.
    """
    found = Findings(history, "I16", "a disk error stops the node before it acknowledges more")
    return _check(
        found,
        history,
        {
            "disk_error": "had a failed disk",
            "sync_hangs": "had a disk that ended no sync",
            "no_room": "had a disk without room",
        },
    )


def _check(found: Findings, history: History, kinds: Mapping[str, str]) -> Verdict:
    """By kind of state, what a node in it was said to have."""
    look_at_states(found, history, kinds)
    if not found.looked_at:
        found.note(f"no node {' or '.join(kinds.values())}")
    return found.verdict()


def look_at_states(found: Findings, history: History, kinds: Mapping[str, str]) -> None:
    """Whether each node in such a state did what it may do."""
    for state in history.node_states:
        if state.kind not in kinds:
            continue
        found.looked_at += 1
        where = (
            f"node-{state.node} {kinds[state.kind]} ({found.span(state.from_ns, state.until_ns)})"
        )
        if state.found not in FOUND[state.kind]:
            allowed = " or ".join(FOUND[state.kind])
            detail = f": {state.detail}" if state.detail else ""
            found.broken(
                "", f"{where} and was found {state.found}, not {allowed}{detail}", state.from_ns
            )
        if state.kind in SILENCED and state.found != "repaired":
            _answers(found, history, state, where)


def _answers(found: Findings, history: History, state: NodeState, where: str) -> None:
    for one in history.operations:
        if (
            one.node == state.node
            and one.outcome is Outcome.OK
            and one.ended_ns is not None
            and state.from_ns < one.began_ns
            and one.ended_ns < state.until_ns
        ):
            found.broken("", f"{where} and acknowledged {found.operation(one)}", one.began_ns)
