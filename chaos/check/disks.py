"""inv-I14 and inv-I16: a node whose files are damaged, or whose disk fails, serves nobody."""

from chaos.check.findings import Findings
from chaos.history import History, NodeState, Outcome
from chaos.verdict import Verdict

FOUND = {"corrupt": ("refused", "repaired"), "disk_error": ("stopped",)}
"""What a node in such a state may be found to have done."""


def check_corrupt(history: History) -> Verdict:
    """A node with damaged files refuses to start, or comes up with its peers' state.

    While it refuses it acknowledges nothing. That a repaired one has the right state is inv-I10's.
    Looks at: damaged nodes.
    """
    found = Findings(history, "I14", "damaged files are refused or repaired, never served")
    return _check(found, history, "corrupt", "had damaged files")


def check_errors(history: History) -> Verdict:
    """A node whose writes and syncs fail ends, and acknowledges nothing that began after that.

    Looks at: failed disks.
    """
    found = Findings(history, "I16", "a disk error stops the node before it acknowledges more")
    return _check(found, history, "disk_error", "had a failed disk")


def _check(found: Findings, history: History, kind: str, words: str) -> Verdict:
    states = [state for state in history.node_states if state.kind == kind]
    if not states:
        found.note(f"no node {words}")
    for state in states:
        found.looked_at += 1
        where = f"node-{state.node} {words} ({found.span(state.from_ns, state.until_ns)})"
        if state.found not in FOUND[kind]:
            allowed = " or ".join(FOUND[kind])
            detail = f": {state.detail}" if state.detail else ""
            found.broken(
                f"{where} and was found {state.found}, not {allowed}{detail}", state.from_ns
            )
        if state.found != "repaired":
            _answers(found, history, state, where)
    return found.verdict()


def _answers(found: Findings, history: History, state: NodeState, where: str) -> None:
    for one in history.operations:
        if (
            one.node == state.node
            and one.outcome is Outcome.OK
            and one.ended_ns is not None
            and state.from_ns < one.began_ns
            and one.ended_ns < state.until_ns
        ):
            found.broken(f"{where} and acknowledged {found.operation(one)}", one.began_ns)
