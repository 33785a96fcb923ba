"""What each panel's query does when load and faults come, told apart from noise.

The bounds are far from what a window merely happens to hold: while idle nothing is proposed, and
load means hundreds of commits a second, a lost majority, a zombie, a flood (load.py).
"""

import statistics
from dataclasses import dataclass

Values = dict[tuple, list[float]]
"""Labels -> what was seen in a window, without NaN."""


def every(series: Values) -> list[float]:
    """All values of all series."""
    return [value for values in series.values() for value in values]


@dataclass(frozen=True)
class Rises:
    """The highest value under load is at least `to`, and `factor` times the highest while idle."""

    to: float
    factor: float = 3.0

    def holds(self, idle: Values, load: Values) -> bool:
        """The comparison."""
        highest = max(every(idle), default=0.0)
        return max(every(load)) >= max(self.to, self.factor * highest)


@dataclass(frozen=True)
class Falls:
    """While idle no value is below `idle`; under load one is at most `to`."""

    idle: float
    to: float

    def holds(self, idle: Values, load: Values) -> bool:
        """The comparison."""
        return min(every(idle)) >= self.idle and min(every(load)) <= self.to


@dataclass(frozen=True)
class Shrinks:
    """The lowest value under load is below the lowest while idle by at least `by`."""

    by: float

    def holds(self, idle: Values, load: Values) -> bool:
        """The comparison."""
        return min(every(idle)) - min(every(load)) >= self.by


@dataclass(frozen=True)
class Typically:
    """The median of all values under load is `factor` times that while idle, and more by `by`."""

    factor: float
    by: float

    def holds(self, idle: Values, load: Values) -> bool:
        """The comparison."""
        now, before = statistics.median(every(load)), statistics.median(every(idle))
        return now >= max(self.factor * before, before + self.by)


@dataclass(frozen=True)
class Stays:
    """There are values while idle and under load, and each is at least 0 and less than `below`.

    For what is bad from there on, and mostly 0 when it is looked at.
    """

    below: float

    def holds(self, idle: Values, load: Values) -> bool:
        """The comparison."""
        seen = every(idle) + every(load)
        return bool(every(idle)) and all(0 <= value < self.below for value in seen)


@dataclass(frozen=True)
class Appears:
    """A series that has no value while idle has some under load, none below `at_least`.

    `label` is a value that one of its labels must have.
    """

    at_least: float = 0.0
    label: str = ""

    def holds(self, idle: Values, load: Values) -> bool:
        """The comparison."""
        new = {
            key: values
            for key, values in load.items()
            if key not in idle and (not self.label or self.label in dict(key).values())
        }
        return any(min(values) >= self.at_least for values in new.values())


@dataclass(frozen=True)
class Returns:
    """While idle every value is 0, and under load the last of each series is, whatever was between.

    For what a node that starts again passes through, perhaps between two looks.
    """

    def holds(self, idle: Values, load: Values) -> bool:
        """The comparison."""
        return set(every(idle)) == {0.0} and all(values[-1] == 0.0 for values in load.values())


Expected = Rises | Falls | Shrinks | Typically | Appears | Stays | Returns

EXPECTED: dict[str, Expected] = {
    # the cluster
    "Shards without a leader / A": Rises(to=16),
    "Nodes answering / A": Falls(idle=3, to=1),
    "Groups / A": Rises(to=15),
    "Members / A": Rises(to=6),
    "Commits / A": Rises(to=50),
    # raft
    "Shards led by each node / A": Falls(idle=1, to=0),
    "Leader of each shard / A": Appears(1),
    "Term of each shard / A": Rises(to=2, factor=1.01),
    "Leader changes / A": Rises(to=1),
    "Elections / A": Rises(to=3),
    "Entries proposed / A": Rises(to=50),
    "Entries waiting / A": Rises(to=2),
    "Commit duration / A": Appears(1e-4),
    "Commit duration / B": Appears(1e-4),
    "Follower lag / A": Rises(to=1),
    "Connections between nodes / A": Falls(idle=1, to=0),
    "Entries applied / A": Rises(to=50),
    "Shards that are loading / A": Returns(),  # two nodes are killed and started
    # the disk
    "Nodes that sync before they acknowledge / A": Falls(idle=3, to=1),
    "Fsync duration / A": Appears(1e-5),
    "Fsync duration / B": Appears(1e-5),
    "Apply duration / A": Appears(1e-5),
    "Apply duration / B": Appears(1e-5),
    "Log on disk / A": Rises(to=1e5, factor=10),
    "Disk free / A": Shrinks(by=5e6),
    "Entries kept in the log / A": Rises(to=1_000, factor=10),
    # calls
    "Calls / A": Rises(to=50),
    "Calls that failed / A": Rises(to=0.5),
    "Call duration p99 / A": Appears(1e-4, label="OffsetCommit"),
    "Turn lag / A": Typically(factor=1.25, by=2e-4),
    "Turn lag / B": Typically(factor=1.5, by=2e-3),
    "Queue time / A": Appears(1e-5),
    "Queue time / B": Appears(1e-5),
    "Commands in the shards' queues / A": Rises(to=2),
    "Calls open / A": Rises(to=4),
    "Calls open / B": Rises(to=1),
    "Calls open / C": Rises(to=4),
    "Requests refused for overload / A": Rises(to=0.1),
    "Heartbeat calls / A": Rises(to=1.5),
    # the process
    "CPU / A": Rises(to=0.1, factor=2),
    "Memory / A": Rises(to=9e7, factor=1.1),  # 26 MB of groups come (load.KEPT_GROUPS)
    # groups
    "Groups by state / A": Rises(to=10),
    "Rebalances in the last hour, top 10 / A": Rises(to=2, factor=2),
    "Rebalances by group, top 10 / A": Rises(to=0.2),
    "Rebalances by trigger / A": Rises(to=0.2),
    "Rebalance duration / A": Appears(1e-5),
    "Rebalance duration / B": Appears(1e-5),
    "Partitions that moved / A": Rises(to=0.2),
    "Partitions nobody owns / A": Rises(to=3),
    "Members, top 10 / A": Rises(to=4),
    "Idle members / A": Rises(to=1),
    "Sessions that timed out / A": Rises(to=0.2),
    "Generation / A": Rises(to=3),
    "Offset commits / A": Rises(to=50),
    "Oldest write that is not synced / A": Stays(below=3.0),
    "Offset commit duration / A": Appears(1e-4),
    "Offset commit duration / B": Appears(1e-4),
    "Fenced requests / A": Rises(to=0.2),
    "Age of the last commit, top 10 / A": Appears(at_least=-1),  # read after its sample's time
    "Lag, top 10 / A": Appears(25),
    # modern groups: while idle there are none
    "Modern groups by state / A": Rises(to=1),
    "Modern groups whose plan is not carried out / A": Appears(1, label="fleet"),
    "Partitions of modern groups nobody owns / A": Appears(1, label="away"),
    "Plans by trigger / A": Rises(to=0.1),
    "Plans in the last hour, top 10 / A": Rises(to=2),
    "Partitions that plans moved / A": Rises(to=0.2),
    "Partitions claimed by two / A": Stays(below=0.01),
    "Plans that failed / A": Stays(below=0.01),
    "Members of modern groups, top 10 / A": Rises(to=2),
    "Epoch of modern groups, top 10 / A": Rises(to=3),
    # backup, quotas and audit
    "Age of the last backup / A": Appears(at_least=-1),  # read after its sample's time
    "Calls over a quota / A": Rises(to=0.2),
    "Streams of clients / A": Rises(to=1),
    "Frames of clients' streams / A": Rises(to=10),
    "Audit entries that wait / A": Rises(to=1),
}
"""By panel and query of deploy/grafana/cluster.json."""

CONSTANT = {
    "Audit entries lost / A": "0: never do 1,000 wait, and each is taken",
    "Calls that the rules refused / A": "0: there are no rules",
    "JWTs looked at / A": "0: the nodes take no JWTs",
    "Keys of JWTs / A": "0: the nodes take no JWTs",
    "Looks at the keys of JWTs that failed / A": "0: the nodes take no JWTs",
    "Calls passed to other nodes / A": "0: the nodes forward nothing",
    "Passed calls that wait / A": "0: the nodes forward nothing",
    "Nodes without a way for calls / A": "0: the nodes forward nothing",
    "Calls that did not wait for a leader / A": "0: fewer than 8,192 calls wait",
    "Connections ended / A": "0: no host has as many connections as it may",
    "Stores that forgot / A": "0: no disk forgets; that takes an older copy of one",
    "Shards with learners / A": "0: every node counts in every shard",
    "Nodes that do not reach themselves / A": "0: every node answers at its clients' address",
    "Replicas in quarantine / A": "0: no replica differs; that takes damage on disk",
    "Groups without series of their own / A": "0: the load has fewer than 200 groups per node",
}
"""Queries whose value does not move between idle and load, with the reason."""
