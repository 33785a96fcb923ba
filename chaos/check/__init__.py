"""The invariants of a history, one checker each (`musterd.chaos.verdict.Checker`).

They judge real runs and simulated ones. What no history can hold (logs, votes, queues, whatever is
true between two entries) the simulator's own checks judge as it happens (`chaos/sim/README.md`).
"""

from musterd.chaos.check import (
    cooperative,
    digests,
    disks,
    fences,
    generations,
    lost,
    minority,
    offsets,
    operators,
    owned_again,
    owners,
    stores,
    tokens,
)
from musterd.chaos.collector import without_collector
from musterd.chaos.history import History
from musterd.chaos.verdict import Checker, Verdict


def _watch(_history: History) -> Verdict:
    """inv-I12 does not apply yet."""
    return Verdict(
        "I12",
        "a watch has no gap, no duplicate, keeps the order, and resumes",
        0,
        applies=False,
        note="there is no Watch yet",
    )


CHECKERS: dict[str, Checker] = {
    "I1": lost.check_lost,
    "I2": offsets.check,
    "I3": generations.check,
    "I4": owners.check,
    "I5": fences.check,
    "I6": tokens.check,
    "I7": stores.check,
    "I8": owned_again.check,
    "I9": cooperative.check,
    "I10": digests.check_nodes,
    "I11": digests.check_history,
    "I12": _watch,
    "I13": lost.check_ghosts,
    "I14": disks.check_corrupt,
    "I15": minority.check,
    "I16": disks.check_errors,
    "I17": operators.check,
}
"""Every invariant's checker, in order."""


def check_all(history: History) -> list[Verdict]:
    """Each checker's verdict, in order. Raises ValueError where the history contradicts itself."""
    with without_collector():
        return [check(history) for check in CHECKERS.values()]
