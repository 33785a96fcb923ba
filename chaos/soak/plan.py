"""How long a soak takes, when what happens, and who is in which group."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

TOPIC: Final = "soak"
PARTITIONS: Final = 12
SESSION_MS: Final = 10_000
COMMIT_EVERY_S: Final = 0.8
"""Of each member. The members together commit some 50 times a second."""

KINDS: Final = {
    "range": 6,
    "cooperative": 5,
    "static": 3,
    "partitions": 2,
    "polling": 1,
    "sync": 1,
    "election": 1,
    "tasks": 1,
}
"""Groups of each kind: eager, cooperative, static members, a task per partition, reading committed
offsets now and then, confluent-kafka's names, an election, named tasks."""
VISITS: Final = "visits"
"""A membership that makes a new group, and deletes it, whenever it is taken."""

NODES: Final = 3
STEADY: Final = 9
"""Processes that live as long as the run; these are judged."""
CHURNED: Final = 3
"""Processes that are killed, one after the other, and started again."""
MEMBERSHIPS: Final = 4
"""Memberships of each process."""
VISITOR: Final = "visitor"
JUDGED: Final = (
    *(f"node-{n}" for n in range(NODES)),
    *(f"worker-{n}" for n in range(STEADY)),
    VISITOR,
)
"""Names of the processes that live as long as the run."""

MINUTES_MAX: Final = 480
WARM_UP_S: Final = 1_200.0
WARM_UP_TOTAL_S: Final = 3_600.0
"""A shorter run has a shorter warm-up."""


@dataclass(frozen=True, slots=True)
class Membership:
    """One of a process; the group of one that visits is a new one each time."""

    group: str
    kind: str
    instance: str
    """Of a static member; "" for a dynamic one."""


def groups() -> list[tuple[str, str]]:
    """Name and kind of every group."""
    return [(f"soak-{kind}-{n}", kind) for kind, count in KINDS.items() for n in range(count)]


def memberships(process: int) -> list[Membership]:
    """Those of a process, each in another group; every group has two or three."""
    everyone = groups()
    found = []
    for number in range(process * MEMBERSHIPS, (process + 1) * MEMBERSHIPS):
        group, kind = everyone[number % len(everyone)]
        found.append(Membership(group, kind, f"member-{number}" if kind == "static" else ""))
    return found


@dataclass(frozen=True, slots=True)
class Window:
    """A time without joins, leaves and faults, in which states can be compared.

    It begins later, and takes as long, where members are not at rest when it is due.
    """

    number: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timetable:
    """When what happens; seconds since the load began."""

    total_s: float

    @property
    def warm_up_s(self) -> float:
        """What comes before is not judged: 20 minutes, or a sixth of a run of less than an hour.

        A quiet window begins here.
        """
        return WARM_UP_S if self.total_s >= WARM_UP_TOTAL_S else self.total_s / 6

    @property
    def window_s(self) -> float:
        """How long a quiet window is."""
        return min(60.0, max(8.0, self.total_s / 20))

    @property
    def calm_s(self) -> float:
        """Before a quiet window nobody comes, goes or is killed for so long.

        It is longer than a session, so that who was killed is gone.
        """
        return 1.5 * SESSION_MS / 1000

    @property
    def sample_s(self) -> float:
        """Between two samples: so many in a window that most are of a moment without a call."""
        return min(10.0, self.window_s / 20)

    def windows(self) -> Iterator[Window]:
        """The first is right after the warm-up, the last at the end."""
        last = self.total_s - self.window_s
        between = max(600.0, self.window_s + 4 * self.calm_s)
        count = max(1, int((last - self.warm_up_s) // between))
        for number in range(count + 1):
            begin_s = self.warm_up_s + (last - self.warm_up_s) * number / count
            yield Window(number, begin_s, begin_s + self.window_s)

    def is_calm(self, at_s: float) -> bool:
        """Whether nobody may come, go or be killed now."""
        return any(one.begin_s - self.calm_s <= at_s < one.end_s for one in self.windows())
