"""The scenarios in which a broken build is hunted on real servers.

Each is a short fixed schedule of faults. The probe and a fast pulse are at work in all of them, and
most need no more than the pulse's single attempts at every node; the others name their `work`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from musterd.chaos.mutants.hunt import Sought
from musterd.chaos.run.schedule import Schedule, Step
from musterd.chaos.workloads.catalog import SERVER, Disturbance, Job, Plan, Setting, plan

NODES = 3
PULSE_EVERY_S = 0.02
WATCHES_EVERY_S = 0.2


def _base_plan(setting: Setting, *workloads: str) -> Plan:
    made = plan(workloads, setting)
    _change(made, lambda job: job.kind == "pulse", {"every_s": PULSE_EVERY_S})
    return made


def _change(
    made: Plan, meant: Callable[[Job], bool], settings: Mapping[str, Any], **fields: Any
) -> None:
    """Give the jobs that are meant other settings, and other fields."""
    made.jobs = [
        replace(job, settings={**job.settings, **settings}, **fields) if meant(job) else job
        for job in made.jobs
    ]


def _is_w3(job: Job) -> bool:
    return job.name.startswith("W3-")


REREAD_KEYS = 64
REREAD = {"partitions": REREAD_KEYS, "clients": 4, "every_s": 0.05, "read_share": 0.8}
"""80 calls a second at the leader: a commit every 60 ms, each key read once a second."""


def _rereading(setting: Setting) -> Plan:
    """Also clients that read far oftener than they commit: what a crash took is read soon."""
    made = _base_plan(setting)
    group, topic = f"{setting.prefix}-reread", f"{setting.topics}-reread"
    made.topics[topic] = REREAD_KEYS
    made.keys[group] = (topic, REREAD_KEYS)
    made.jobs.insert(0, Job("reread", "simple", {"group": group, "topic": topic, **REREAD}))
    return made


OPERATES_EVERY_S = 0.03


def _operating(setting: Setting) -> Plan:
    """Also an operator in a hurry: W8 at ten times its pace, so that seconds are enough."""
    made = _base_plan(setting, "W8")
    _change(made, lambda job: job.kind == "admin", {"every_s": OPERATES_EVERY_S})
    return made


TURNS_S = (1.0, 2.0)


def _taking_turns(setting: Setting) -> Plan:
    """Also W4, whose static member changes its process every second or two."""
    made = _base_plan(setting, "W4")
    _change(made, lambda job: "back_s" in job.settings, {"back_s": TURNS_S})
    return made


SLOW_S = 1.5
STAYS_S, AWAY_S = (2.0, 3.0), (3.0, 4.0)


def _coming_and_going(setting: Setting) -> Plan:
    """Also W1, W11, and a cooperative group of two that stay and one that comes and goes.

    They are slow to give something up: a generation that takes something away lasts long enough for
    the watcher to see it, and nobody comes or goes meanwhile.
    """
    made = _base_plan(setting, "W1", "W3", "W11")
    _change(made, lambda job: job.kind == "watcher", {"every_s": WATCHES_EVERY_S})
    _change(made, _is_w3, {"slow_share": 1.0, "slow_s": SLOW_S}, disturbed=None)
    coming = {"stay_s": STAYS_S, "away_s": AWAY_S}
    _change(made, lambda job: job.name == "W3-killed-1", coming)
    return made


def _moving(setting: Setting) -> Plan:
    """The same members, of groups whose coordinator assigns: each partition moves by itself."""
    return _coming_and_going(replace(setting, assignment=SERVER))


SHORT_MS = 2_000


def _killed(setting: Setting) -> Plan:
    """Also W3 with short timeouts, two of whose processes are killed every few seconds."""
    made = _base_plan(setting, "W3")
    often = Disturbance("kill", (1.5, 3.0), (0.2, 0.5))
    _change(made, _is_w3, {"session_ms": SHORT_MS, "rebalance_ms": SHORT_MS})
    _change(made, lambda job: _is_w3(job) and job.disturbed is not None, {}, disturbed=often)
    made.expected = [
        replace(one, session_timeout_ms=SHORT_MS, rebalance_timeout_ms=SHORT_MS)
        for one in made.expected
    ]
    return made


ALWAYS = frozenset({"I1", "I2", "I3", "I6", "I13"})


@dataclass(frozen=True, slots=True)
class HuntScenario:
    """A fixed schedule, what it needs of the machine, and who is at work."""

    name: str
    steps: tuple[tuple[str, float], ...]
    """Kinds of faults, and for how many seconds each is held."""
    looks: frozenset[str] = ALWAYS
    """Invariants that must have looked at something, or the shipped build has not passed."""
    needs_links: bool = False
    needs_disks: bool = False
    needs_clocks: bool = False
    nodes: int = NODES
    work: Callable[[Setting], Plan] = _base_plan
    calm_s: float = 1.0
    """Before the first fault."""
    choice: int | None = None
    """The seed of what each fault chooses; None: by the run's."""
    quiet_s: float = 0.0
    """At the end, without a fault: for what has to come back by itself."""

    def schedule(self, seed: int) -> Schedule:
        """One after the other; each waits until the cluster has settled from the one before."""
        steps = [
            Step(
                self.calm_s + number,
                kind,
                hold_s,
                seed + number if self.choice is None else self.choice,
            )
            for number, (kind, hold_s) in enumerate(self.steps)
        ]
        return Schedule(seed, self.nodes, steps[-1].at_s / 60, tuple(steps))


CUTS = HuntScenario(
    "cuts",
    # Called at once, while it may believe to lead; and when it must know that it does not.
    (("isolate_leader", 0.0), ("isolate_leader", 2.0)),
    ALWAYS | {"I15"},
    needs_links=True,
)
# With this choice the bit is one of the durable mark (tests/chaos/run/test_hunting.py sees to it):
# the other files RocksDB looks at by itself, whatever the build does.
FLIP = HuntScenario("flip", (("flipped_byte", 0.5),), ALWAYS | {"I14"}, choice=7)
# A node that wrote its applied index too early has lost the last batch of each shard when it is
# killed. That shows only where the key is read before it is committed again. Pulse and probe commit
# to their few keys again at once: of five runs with four restarts two caught the build, so that one
# restart caught it in 12 % and five runs let it pass in 8 %. Of the calls that `_rereading` adds
# four in five are reads: a commit that is lost is read first in 80 %, and is lost in most restarts.
# With 70 % a run of four restarts misses it in 0.8 %; were it half of that, in 18 %, and all five
# runs in 0.02 %. It costs one process, and less time, since seldom a second run is needed.
CRASH = HuntScenario("crash", (("restart_all", 0.5),) * 4, work=_rereading)
NOTHING = (("transfer_leadership", 0.0),)
"""Nothing need break, and a schedule has a fault."""
# Of 20 things that the operator does in a second one sets and one reads: some ten of each by the
# end, half of the former set a value that the latter must find. What is read amid a fault says
# nothing, so the calm is long and the fault short.
OPERATOR = HuntScenario("operator", NOTHING, ALWAYS | {"I17"}, work=_operating, calm_s=6.0)
# Some ten turns by the end, all in one generation but for a pause of others.
TURNS = HuntScenario("turns", NOTHING, ALWAYS | {"I5", "I7"}, work=_taking_turns, calm_s=12.0)
# A group is made anew some five times.
RECREATED = replace(OPERATOR, name="recreated", looks=ALWAYS)
# A cooperative member comes and goes every six seconds, others of W11 oftener.
GROUPS = HuntScenario(
    "groups", NOTHING, ALWAYS | {"I4", "I9", "I11"}, work=_coming_and_going, calm_s=14.0
)
# Partitions move as often, and for 1.5 s whoever has one is to release it.
MODERN = HuntScenario("modern", NOTHING, ALWAYS | {"I4", "I5"}, work=_moving, calm_s=14.0)
# Members break. Nine seconds are allowed for all to be owned again.
KILLED = HuntScenario(
    "killed",
    NOTHING,
    ALWAYS | {"I8"},
    work=_killed,
    calm_s=8.0,
    quiet_s=2 * SHORT_MS / 1000 + 6.0,
)
POWER = HuntScenario("power", (("power_loss_all", 0.5),), needs_disks=True)
# Twenty seconds in which the node has to find out; the pulse asks it some ten times a second.
EIO = HuntScenario("eio", (("eio", 0.5),), ALWAYS | {"I16"}, needs_disks=True)
OLDER = HuntScenario("older", (("older_copy", 2.0),), ALWAYS | {"I14"})
LOST = HuntScenario("lost", (("lost_synced", 2.0),), ALWAYS | {"I14"})
# Who slept notices it as soon as it looks at the time.
SUSPEND = HuntScenario("suspend", (("suspend", 2.0),), ALWAYS | {"I15"}, needs_clocks=True)
# Nodes record what they hold every 10 s, and compare as often: the fault itself waits for that.
DIVERGING = HuntScenario("diverging", (("two_diverge", 0.5),), ALWAYS | {"I14"}, nodes=5)
# After 3 s it has to leave; by 5 s it is judged.
HUNG = HuntScenario("hung", (("leader_fsync_hangs", 12.0),), ALWAYS | {"I16"}, needs_disks=True)
_HUNTED = {
    "ack_before_commit": (CUTS, "I15 I6 I1 I2 I13"),
    "disk_error_ignored": (EIO, "I16"),
    "empty_assignment": (GROUPS, "I9"),
    "endless": (KILLED, "I8"),
    "forgotten_match": (LOST, "I14"),
    "generation_fence": (CUTS, "I6"),
    "generation_floor": (RECREATED, "I3"),
    "grant_reuses_token": (MODERN, "I5"),
    "grants_unreleased": (MODERN, "I4"),
    "hung_leader": (HUNG, "I16"),
    "kept_token": (TURNS, "I5 I7"),
    "losses": (OLDER, "I14"),
    "majority": (CUTS, "I15 I10 I1 I2 I13"),
    "mark_unread": (FLIP, "I14"),
    "read_round": (CUTS, "I15 I1 I2 I13"),
    "applied_ahead": (CRASH, "I1 I2 I13 I10"),
    "no_fsync": (POWER, "I1 I2 I13"),
    "shared_assignment": (GROUPS, "I4"),
    "silent_setting": (OPERATOR, "I17"),
    "sleepless_clock": (SUSPEND, "I15"),
    "two_suffice": (DIVERGING, "I14"),
    "unnoted_leave": (GROUPS, "I11"),
}
"""By build, its scenario, and the invariants that its missing rule is there to keep."""
_EACH_BY_ITSELF = frozenset({"kept_token"})
"""All of their invariants have to catch these: each checker has to see a real server by itself, and
the build breaks all of them at the same moment."""
SCENARIOS = {build: scenario for build, (scenario, _) in _HUNTED.items()}
SOUGHT = {
    build: Sought(scenario.name, tuple(promises.split()), all_of_them=build in _EACH_BY_ITSELF)
    for build, (scenario, promises) in _HUNTED.items()
}
