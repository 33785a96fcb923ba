"""inv-I15: nodes that cannot reach a majority acknowledge nothing."""

from collections import defaultdict

from musterd.chaos.check.disks import look_at_states
from musterd.chaos.check.findings import Findings
from musterd.chaos.check.setup import HEARD_NS, QUORUM_NS
from musterd.chaos.history import History, Operation, Outcome, Side
from musterd.chaos.verdict import Verdict

CLOCK_NS = 3_000_000
"""What looking at a simulated clock costs in between."""


def check(history: History) -> Verdict:
    """No call that began on the minority's side after the cut is acknowledged before it is healed.

    Writes and linearizable reads need a majority after they were asked, so they have no tolerance;
    heartbeats have 0.4 s after the node last heard from one, which may be up to 1 s after the cut:
    it hears when it reads. A call that was under way at the cut may have had its majority before.
    A node whose machine slept cannot know whom it would still reach: it gives up what it led.
    Where the history says how long the node had not heard from a majority, the 0.4 s are all.
    Looks at: calls to a cut-off node that ended within the cut, however they ended, and calls that
    were never answered by it; heartbeats of which that is known; nodes that slept.
    """
    found = Findings(history, "I15", "a minority acknowledges nothing")
    sides: dict[int, list[Side]] = defaultdict(list)
    for side in history.minorities:
        for node in side.nodes:
            sides[node].append(side)
    if not sides:
        found.note("no node was cut off from the majority")
    look_at_states(found, history, {"slept": "had a machine that slept"})
    for one in history.operations:
        if one.quiet_ns is not None:
            found.looked_at += 1
            if one.quiet_ns > QUORUM_NS + CLOCK_NS:
                found.broken(
                    "",
                    f"node-{one.node} had not heard from a majority for "
                    f"{one.quiet_ns / 1e9:.3f} s, and answered {found.operation(one)}",
                    one.began_ns,
                )
        for side in sides.get(one.node, ()) if one.node is not None else ():
            if _is_inside(one, side):
                found.looked_at += 1
                if one.outcome is Outcome.OK:
                    others = ", ".join(f"node-{node}" for node in side.nodes)
                    found.broken(
                        "",
                        f"{others} could not reach a majority ("
                        f"{found.span(side.from_ns, side.until_ns)}), and acknowledged "
                        f"{found.operation(one)}",
                        one.began_ns,
                    )
    return found.verdict()


def _is_inside(one: Operation, side: Side) -> bool:
    allowed = QUORUM_NS + HEARD_NS if one.kind == "heartbeat" else 0
    if not side.from_ns + allowed < one.began_ns < side.until_ns:
        return False
    if one.outcome is Outcome.OK:
        return one.ended_ns is not None and one.ended_ns < side.until_ns
    return True
