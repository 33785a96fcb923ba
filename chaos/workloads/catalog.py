"""Every workload: its processes, its groups and topics, and how it is disturbed.

The sizes are for a cluster of three nodes and its clients on two cores: about 300 operations per
second in all, of which the probe has 60.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from musterd.chaos.history import Expected
from musterd.chaos.workloads.admin import PARTITIONS_MAX
from musterd.coordinator.runtime.routing import shard_of

SESSION_MS = 5_000
REBALANCE_MS = 8_000
MANY_SESSION_MS = 30_000
PROBES_PER_NODE = 2
CLIENT, SERVER = "client", "server"
"""Who assigns in the groups of a run's workloads: members in rounds, or the coordinator."""
SERVER_ASSIGNORS = {"range": "range", "cooperative-sticky": "uniform"}
"""By the assignor that a workload's members have where they assign, the coordinator's."""
OTHERS = {
    "probe": "one commit after the other, timed",
    "pulse": "members that beat, commit and read at every node, also at those that are cut off",
}
"""What every run has beside its workloads; names as workloads' are, with their titles."""
DUPLICATED = "W12"
"""The workload that only a cluster of the run's own can have."""
NO_COPIES = "requests are sent twice by a proxy that a run has before nodes of its own alone"
"""Why."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A disturbance that a workload's process gets again and again; spans in seconds."""

    how: str
    """`kill` (kill -9, started again: chaos-W3), `restart` (told to end, started again: chaos-W5),
    `pause` (SIGSTOP), `bounce` (one of its members leaves and comes back)."""
    every_s: tuple[float, float]
    for_s: tuple[float, float]
    """How long it is away."""

    @property
    def ends(self) -> bool:
        """Whether the process is another one afterwards."""
        return self.how in ("kill", "restart")


@dataclass(frozen=True, slots=True)
class Job:
    """One worker process of a plan and what is done to it."""

    name: str
    """Begins with the workload's name and a dash."""
    kind: str
    settings: dict[str, Any]
    disturbed: Disturbance | None = None
    beside: bool = False
    """At addresses that no fault cuts, from where the runner is."""
    duplicated: bool = False
    """Behind the proxy that sends requests twice."""
    last: bool = False
    """Ended after all others that are not: it serves them."""


@dataclass(slots=True)
class Plan:
    """Processes, topics and groups of one run."""

    jobs: list[Job] = field(default_factory=list)
    topics: dict[str, int] = field(default_factory=dict)
    """Partitions by name."""
    keys: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Topic, and number of partitions that are committed to, by group."""
    expected: list[Expected] = field(default_factory=list)
    """Groups that have members at the end."""
    watched: list[str] = field(default_factory=list)
    """Groups whose whole generations are looked at."""
    planned: list[str] = field(default_factory=list)
    """Groups whose coordinator assigns, in place of those: an epoch has no whole generation."""
    told: list[str] = field(default_factory=list)
    """Groups of which the server is asked at the end why they rebalanced, besides both."""
    operated: list[tuple[str, str]] = field(default_factory=list)
    """(group, topic) whose settings and partitions an operator changes: read at the end."""
    titles: dict[str, str] = field(default_factory=dict)
    probes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is left out, and why; who assigns, where the coordinator does."""

    @property
    def modern(self) -> frozenset[str]:
        """Groups whose coordinator assigns."""
        return frozenset(one.group for one in self.expected if one.modern)


@dataclass(frozen=True, slots=True)
class Setting:
    """The cluster and folder that a plan is made for."""

    prefix: str
    """Of groups."""
    topics: str
    """Of topics: those of an installation of the user's stay, so they have the same each time."""
    nodes: int
    shards: int
    folder: Path
    copies: bool = True
    """Whether something sends requests twice."""
    many_groups: int = 1_000
    assignment: str = CLIENT
    """`CLIENT` or `SERVER`."""

    @property
    def is_modern(self) -> bool:
        """True where the coordinator assigns."""
        return self.assignment == SERVER


Build = Callable[[Plan, Setting], None]
_WORKLOADS: dict[str, tuple[str, Build]] = {}


def workload(name: str, title: str) -> Callable[[Build], Build]:
    """Decorator: enter a workload in the catalog."""

    def enter(build: Build) -> Build:
        _WORKLOADS[name] = (title, build)
        return build

    return enter


def names() -> list[str]:
    """All of them, in order."""
    return sorted(_WORKLOADS, key=lambda name: int(name[1:]))


def title(name: str) -> str:
    """Return the workload's purpose in a line."""
    return _WORKLOADS[name][0]


def plan_of(named: Sequence[str], setting: Setting) -> Plan:
    """The plan for the workloads that are named, else for all that there can be."""
    if named or setting.copies:
        return plan(named or names(), setting)
    made = plan([one for one in names() if one != DUPLICATED], setting)
    made.notes.append(f"{DUPLICATED} is left out: {NO_COPIES}")
    return made


def plan(wanted: Iterable[str], setting: Setting) -> Plan:
    """The plan for these workloads, with probe, pulse and watcher. Raises KeyError."""
    made = Plan()
    for name in sorted(set(wanted), key=lambda one: int(one[1:])):
        made.titles[name], build = _WORKLOADS[name]
        build(made, setting)
    return _with_others(made, setting)


def _with_others(made: Plan, setting: Setting, probe_every_s: float = 0.1) -> Plan:
    if made.modern:
        made.notes.append(
            "the coordinator assigns in the groups of the workloads; those of the pulse are classic"
        )
    _probe(made, setting, probe_every_s)
    _pulse(made, setting)
    watched = {"groups": tuple(made.watched), "modern": tuple(made.planned)}
    made.jobs.append(Job("watcher", "watcher", watched, beside=True, last=True))
    return made


def _group(made: Plan, setting: Setting, name: str, partitions: int) -> dict[str, Any]:
    """A group with a topic of its own, watched; the settings of a worker on it."""
    group, topic = f"{setting.prefix}-{name}", f"{setting.topics}-{name}"
    made.topics[topic] = partitions
    made.keys[group] = (topic, partitions)
    return {"group": group, "topic": topic}


def _member_group(
    made: Plan,
    setting: Setting,
    name: str,
    partitions: int,
    *,
    assignor: str = "range",
    left_alone: bool = False,
) -> dict[str, Any]:
    """One with members, some of which stay until the end of the run; watched."""
    settings = _group(made, setting, name, partitions)
    _watch(made, setting, settings["group"])
    made.expected.append(
        Expected(
            settings["group"],
            ((settings["topic"], partitions),),
            SESSION_MS,
            REBALANCE_MS,
            cooperative=assignor == "cooperative-sticky" and not setting.is_modern,
            left_alone=left_alone,
            modern=setting.is_modern,
        )
    )
    timeouts = {"session_ms": SESSION_MS, "rebalance_ms": REBALANCE_MS}
    return {**settings, **timeouts, **_assigned(setting, assignor)}


def _watch(made: Plan, setting: Setting, group: str) -> None:
    """Look at what it goes through: whole generations, or plans."""
    (made.planned if setting.is_modern else made.watched).append(group)


def _assigned(setting: Setting, assignor: str) -> dict[str, str]:
    """The settings of members that say who assigns, and how."""
    if setting.is_modern:
        assignor = SERVER_ASSIGNORS[assignor]
    return {"assignment": setting.assignment, "assignor": assignor}


def _come_and_go(made: Plan, setting: Setting, group: str, topic: str, session_ms: int) -> None:
    """Say of a group that may be without members that it is modern, where it is."""
    if setting.is_modern:
        topics = ((topic, made.topics[topic]),)
        one = Expected(group, topics, session_ms, REBALANCE_MS, lasting=False, modern=True)
        made.expected.append(one)


def _probe(made: Plan, setting: Setting, every_s: float) -> None:
    """Groups in shards that different nodes lead when all is well."""
    topic = f"{setting.topics}-probe"
    made.topics[topic] = 1
    shards = range(PROBES_PER_NODE * setting.nodes)
    made.probes += _groups_in(f"{setting.prefix}-probe", shards, setting.shards)
    for group in made.probes:
        made.keys[group] = (topic, 1)
    settings = {"groups": made.probes, "topic": topic, "every_s": every_s}
    made.jobs.append(Job("probe", "probe", settings))


def _pulse(made: Plan, setting: Setting) -> None:
    """A group for each node, in a shard that it leads when all is well."""
    topic = f"{setting.topics}-pulse"
    made.topics[topic] = 1
    groups = _groups_in(f"{setting.prefix}-pulse", range(setting.nodes), setting.shards)
    for group in groups:
        made.keys[group] = (topic, 1)
    made.told += groups
    made.jobs.append(Job("pulse", "pulse", {"groups": groups, "topic": topic}, beside=True))


def _groups_in(prefix: str, shards: Iterable[int], of: int) -> list[str]:
    """A group's name in each of these shards, all different."""
    found: list[str] = []
    number = 0
    for shard in shards:
        while shard_of(f"{prefix}-{number}", of) != shard % of:
            number += 1
        found.append(f"{prefix}-{number}")
        number += 1
    return found


# ---- the workloads


@workload("W1", "unique commits, by members of a group and by clients outside of one")
def _w1(made: Plan, setting: Setting) -> None:
    of_members = _member_group(made, setting, "w1", 8, left_alone=True)
    made.jobs += [
        Job(f"W1-members-{n}", "members", {**of_members, "members": 2, "every_s": 0.08})
        for n in range(2)
    ]
    simple = _group(made, setting, "w1-simple", 4)
    made.jobs.append(
        Job("W1-simple", "simple", {**simple, "partitions": 4, "clients": 4, "every_s": 0.1})
    )


@workload("W2", "commit, then linearizable reads at every node")
def _w2(made: Plan, setting: Setting) -> None:
    own = _group(made, setting, "w2", 4)
    others = [(group, *of) for group, of in made.keys.items() if group != own["group"]]
    settings = {**own, "partitions": 4, "clients": 1, "every_s": 0.25, "read_share": 0.0}
    settings |= {"everywhere": True, "others": others}
    made.jobs.append(Job("W2-reads", "simple", settings))


@workload("W3", "members that join, and are killed with kill -9")
def _w3(made: Plan, setting: Setting) -> None:
    settings = _member_group(made, setting, "w3", 6, assignor="cooperative-sticky")
    often = Disturbance("kill", (8.0, 20.0), (0.5, 8.0))
    made.jobs += [
        Job("W3-steady", "members", settings),
        *(Job(f"W3-killed-{n}", "members", settings, often) for n in range(2)),
    ]


@workload("W4", "work written to a store that checks fencing tokens, and to one that does not")
def _w4(made: Plan, setting: Setting) -> None:
    path = str(setting.folder / "store")
    made.jobs.append(Job("W4-store", "stores", {"path": path}, last=True))
    settings = {**_member_group(made, setting, "w4", 4), "store": path}
    # Longer than its session: another one owns its partitions when it goes on.
    zombie = Disturbance("pause", (12.0, 25.0), (SESSION_MS / 1000 + 4, SESSION_MS / 1000 + 8))
    made.jobs += [
        Job("W4-owner", "members", settings),
        Job("W4-zombie", "members", settings, zombie),
    ]
    # Two processes that have one instance id in turns: the other one takes over, also from one that
    # stands still within its session. The member is the same, in the same generation. A coordinator
    # that assigns lets it take over once the one that stands still is heard no more.
    turns = {**settings, "instance": "worker", "back_s": (4.0, 9.0)}
    longer_s = 4 if setting.is_modern else 0
    for_s = SESSION_MS / 1000 - 3 + longer_s, SESSION_MS / 1000 - 1 + longer_s
    still = Disturbance("pause", (5.0, 10.0), for_s)
    made.jobs += [Job(f"W4-static-{n}", "members", turns, still) for n in range(2)]


@workload("W5", "static members through rolling restarts")
def _w5(made: Plan, setting: Setting) -> None:
    settings = _member_group(made, setting, "w5", 6)
    rolling = Disturbance("restart", (10.0, 25.0), (0.0, 0.5))
    made.jobs += [
        Job(f"W5-static-{n}", "members", {**settings, "instance": f"worker-{n}"}, rolling)
        for n in range(2)
    ]


@workload("W6", "members that are slower than their rebalance timeout now and then")
def _w6(made: Plan, setting: Setting) -> None:
    settings = _member_group(made, setting, "w6", 4)
    slow = {"slow_share": 0.3, "slow_s": REBALANCE_MS / 1000 + 2, "members": 2}
    coming: dict[str, Any] = {"stay_s": (4.0, 8.0), "away_s": (3.0, 6.0)}
    if setting.is_modern:
        coming["back_in_s"] = (2.0, 7.0)
    made.jobs += [
        Job("W6-slow", "members", {**settings, **slow}),
        Job("W6-coming", "members", {**settings, **coming}),
    ]


@workload("W8", "operators: reset, delete, grow, change settings, kick; a group made anew")
def _w8(made: Plan, setting: Setting) -> None:
    settings = _group(made, setting, "w8", 4)
    members, topic = f"{settings['group']}-members", settings["topic"]
    made.keys[members] = (topic, PARTITIONS_MAX)
    _watch(made, setting, members)
    _come_and_go(made, setting, members, topic, SESSION_MS)
    made.operated.append((members, topic))
    timeouts = {"session_ms": SESSION_MS, "rebalance_ms": REBALANCE_MS}
    of_members = {**timeouts, **_assigned(setting, "range")}
    made.jobs.append(
        Job("W8-operator", "admin", {**settings, "partitions": 4, "of_members": of_members})
    )
    recreated = {"group": f"{setting.prefix}-w8-recreated"}
    made.jobs.append(Job("W8-recreated", "recreated", recreated))


@workload("W10", "many groups of one member each")
def _w10(made: Plan, setting: Setting) -> None:
    topic = f"{setting.topics}-w10"
    made.topics[topic] = 2
    processes = 2
    for n in range(processes):
        group, count = f"{setting.prefix}-w10-{n}", setting.many_groups // processes
        for number in range(count):
            made.keys[f"{group}-{number}"] = (topic, 2)
            _come_and_go(made, setting, f"{group}-{number}", topic, MANY_SESSION_MS)
        settings = {
            "group": group,
            "topic": topic,
            "groups": count,
            "session_ms": MANY_SESSION_MS,
            "rebalance_ms": REBALANCE_MS,
            "every_s": count / 15,
            **_assigned(setting, "range"),
        }
        made.jobs.append(Job(f"W10-many-{n}", "members", settings))


@workload("W11", "members that leave within 100 ms after they began to join")
def _w11(made: Plan, setting: Setting) -> None:
    settings = _member_group(made, setting, "w11", 4)
    flapping = {"stay_s": (0.0, 0.1), "away_s": (0.5, 2.0)}
    made.jobs += [
        Job("W11-steady", "members", settings),
        Job("W11-flapping", "members", {**settings, **flapping}),
    ]


@workload("W12", "members whose requests arrive twice, the second time seconds later")
def _w12(made: Plan, setting: Setting) -> None:
    settings = _member_group(made, setting, "w12", 4)
    made.jobs.append(Job("W12-members", "members", {**settings, "members": 2}, duplicated=True))


# ---- hours of moderate load

LEAVES = Disturbance("bounce", (4.0, 10.0), (0.0, 0.0))
VISITS = Disturbance("bounce", (8.0, 12.0), (0.0, 0.0))
DIES = Disturbance("kill", (30.0, 90.0), (0.5, 8.0))


def soak_plan(setting: Setting) -> Plan:
    """Members of every kind that leave and come back; with the probe some 50 commits a second."""
    made = Plan(titles={"soak": "members of every kind that leave and come back"})
    for name, assignor, instance in (
        ("range", "range", ""),
        ("cooperative", "cooperative-sticky", ""),
        ("static", "range", "worker"),
    ):
        settings = {
            **_member_group(made, setting, f"soak-{name}", 12, assignor=assignor),
            "every_s": 0.3,
        }
        made.jobs += [
            Job(
                f"soak-{name}-{n}",
                "members",
                {**settings, "members": 2, "instance": instance and f"{instance}-{n}"},
                LEAVES,
            )
            for n in range(2)
        ]
        if not instance:
            made.jobs.append(Job(f"soak-{name}-killed", "members", settings, DIES))
    topic = f"{setting.topics}-soak"
    made.topics[topic] = 12
    others = {"group": f"{setting.prefix}-soak", "topic": topic, "session_ms": SESSION_MS}
    kinds = {**others, "kinds": ("partitions", "sync", "election", "tasks")}
    made.jobs += [Job(f"soak-kinds-{n}", "memberships", kinds, LEAVES) for n in range(2)]
    made.jobs.append(Job("soak-visitor", "memberships", {**others, "kinds": ("visit",)}, VISITS))
    return _with_others(made, setting, probe_every_s=0.5)
