"""The machine: consumer groups as a pure function of their log (architecture section 3).

`decide` reads a group and returns events and an answer; `evolve` alone changes it. No clock, no
randomness, no I/O, no exception for an outcome, no iteration over sets: the live server, recovery,
the simulator and replay run this code and agree to the digest. Imports a listed few modules of the
standard library and nothing else.
"""

from coordinator.machine.decide import decide, heartbeat, would_refuse
from coordinator.machine.decide_join import is_noop_join
from coordinator.machine.decide_sync import is_noop_sync
from coordinator.machine.decision import Decision
from coordinator.machine.evolve import evolve
from coordinator.machine.state import DeadlineKey, deadlines

__all__ = [
    "DeadlineKey",
    "Decision",
    "deadlines",
    "decide",
    "evolve",
    "heartbeat",
    "is_noop_join",
    "is_noop_sync",
    "would_refuse",
]
