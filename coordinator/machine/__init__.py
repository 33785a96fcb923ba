"""The machine: consumer groups as a pure function of their log (arch-3).

`decide` reads a group and returns events and an answer; `evolve` alone changes it. No clock, no
randomness, no I/O, no exception for an outcome, no iteration over sets: the live server, recovery,
the simulator and replay run this code and agree to the digest. Imports a listed few modules of the
standard library, three files of musterd/, and nothing else.
"""

from musterd.coordinator.machine.decide.decision import Decision
from musterd.coordinator.machine.decide.dispatch import decide, heartbeat, replans, would_refuse
from musterd.coordinator.machine.decide.join import is_noop_join
from musterd.coordinator.machine.decide.sync import is_noop_sync
from musterd.coordinator.machine.evolve import evolve
from musterd.coordinator.machine.state import DeadlineKey, deadlines

__all__ = [
    "DeadlineKey",
    "Decision",
    "deadlines",
    "decide",
    "evolve",
    "heartbeat",
    "is_noop_join",
    "is_noop_sync",
    "replans",
    "would_refuse",
]
