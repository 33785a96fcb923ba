"""Verifies that a fault of the user's own command had an effect on the nodes.

A command that exits with 0 and does nothing would be a fault that every cluster survives.
"""

import re
import time
from collections.abc import Callable

from musterd.chaos.world.views import Views

VERIFY_S = 10.0
"""How long after the command's end it may take until something is seen of it."""
EVERY_S = 0.1
SILENT_LOOKS = 2
"""So many in a row: one call of a busy node may be late."""
_KNOWN = re.compile(r"(kill|pause|isolate)_\w+|stop_leader")


def is_known(kind: str) -> bool:
    """Whether a fault of this name has to silence its node, or to cost it what it leads."""
    return _KNOWN.fullmatch(kind) is not None


def seen(look: Callable[[], Views], node: int, before: Views, within_s: float = VERIFY_S) -> str:
    """Return what shows that a node is gone, or cut off, for people; "" if nothing did in time."""
    deadline = time.monotonic() + within_s
    silent = 0
    while True:
        now = look()
        silent = 0 if node in now else silent + 1
        if silent >= SILENT_LOOKS:
            return "it does not answer"
        if node in now and (lost := _lost(node, before, now)):
            return lost
        if time.monotonic() >= deadline:
            return ""
        time.sleep(EVERY_S)


def _lost(node: int, before: Views, now: Views) -> str:
    """Of a node that answers: that others lead all that it led, or that it hears of no leader."""
    view = before.get(node)
    led = {} if view is None else {s.shard: s.term for s in view.shard_states if s.role == "Leader"}
    elsewhere = {
        state.shard
        for view in now.values()
        for state in view.shard_states
        if state.shard in led
        and state.term > led[state.shard]
        and state.leader_id not in (node, -1)
    }
    # All of it: single shards are handed over also where nothing is broken.
    if led and elsewhere == led.keys():
        return f"others lead the {len(led)} shards that it led"
    own = now[node].shard_states
    if own and all(state.leader_id == -1 for state in own):
        return "it hears of no leader"
    return ""
