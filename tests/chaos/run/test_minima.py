"""Workloads that did nothing fail their run, and so do faults of which nothing was ever seen."""

from dataclasses import replace
from pathlib import Path

import pytest

from musterd.chaos.history import Generation, Key, Outcome, Round
from musterd.chaos.run.minima import (
    CHURN_PER_MINUTE,
    COMMITS_PER_MINUTE,
    FAULTS,
    LOOKED_UP_ENOUGH,
    PAUSES,
    PURPOSE,
    PURPOSE_MINUTES,
    expired,
    too_little,
    unseen,
)
from musterd.chaos.run.result import Counts, WorkloadResult, fault_classes
from musterd.chaos.workloads.catalog import SERVER, Setting, plan
from tests.chaos.check.made import commit, history
from tests.chaos.check.test_places import write
from tests.chaos.report import made_up

MINUTES = 2.0
SETTING = Setting("p", "p", 3, 16, Path("nowhere"), many_groups=10)


def did(name, ok=int(COMMITS_PER_MINUTE * MINUTES), **figures):
    """A workload's line."""
    return WorkloadResult(name, "", 1, 1, {"commit": Counts(ok, 5, 5)}, figures)


def missing(*workloads, of=None, minutes=MINUTES, setting=SETTING):
    """What is said of a run of these workloads."""
    run = made_up.run(workloads=list(workloads), minutes=minutes)
    names = [one.name for one in workloads if one.name.startswith("W")]
    return list(too_little(run, plan(names, setting), of or history()))


@pytest.mark.parametrize("name", ["W1", "W8", "probe", "pulse"])
def test_a_workload_that_commits_too_little_is_named(name):
    """By how much; a run of seconds needs one commit."""
    assert missing(did(name)) == []
    assert missing(did(name, ok=9)) == [f"{name}: 9 acknowledged commits, of 10 at least"]
    assert missing(did(name, ok=1), minutes=0.1) == []
    assert missing(did(name, ok=0), minutes=0.1) != []
    reads = WorkloadResult(name, "", 1, 1, {"read": Counts(100, 0, 0)})
    assert missing(reads) == [f"{name}: 0 acknowledged commits, of 10 at least"]


@pytest.mark.parametrize(
    ("name", "purpose"), [(name, one) for name, each in PURPOSE.items() for one in each]
)
def test_a_workload_that_never_did_what_it_is_for_is_named(name, purpose):
    """Commits alone are not it; a short run may have had no time for it."""
    rest = {one: 1.0 for one in PURPOSE[name] if one != purpose}
    worked = did(name, ok=100, **rest)
    assert missing(worked, minutes=PURPOSE_MINUTES) == [
        f"{name}: no {purpose.replace('_', ' ')} in the whole run"
    ]
    assert missing(worked, minutes=PURPOSE_MINUTES - 1) == []
    assert missing(did(name, ok=100, **rest, **{purpose: 1.0}), minutes=PURPOSE_MINUTES) == []
    worked.counts[purpose] = Counts(1, 0, 0)
    assert missing(worked, minutes=PURPOSE_MINUTES) == []


def test_members_that_never_went_away_are_named_where_the_coordinator_assigns():
    """Nobody else can."""
    worked = did("W6", ok=100, slow_revocations=1.0)
    modern = replace(SETTING, assignment=SERVER)
    named = missing(worked, minutes=PURPOSE_MINUTES, setting=modern)
    assert named == ["W6: no away in the whole run"]
    assert missing(worked, minutes=PURPOSE_MINUTES) == []
    worked.figures["away"] = 1.0
    assert missing(worked, minutes=PURPOSE_MINUTES, setting=modern) == []


@pytest.mark.parametrize("what", CHURN_PER_MINUTE)
def test_a_soak_in_which_members_stop_to_come_and_go_is_named(what):
    """By the length of the run; and so is one whose visits are refused."""
    enough = {name: per_minute * 100 for name, per_minute in CHURN_PER_MINUTE.items()}
    assert missing(did("soak", ok=500, **enough), minutes=100) == []
    (named,) = missing(did("soak", ok=500, **enough | {what: enough[what] - 1}), minutes=100)
    assert named.startswith(f"soak: {what} ")
    enough["refused_visits"] = enough["visits"] + 1
    assert missing(did("soak", ok=500, **enough), minutes=100) == [
        "soak: 101 visits were refused, more than went well"
    ]


def test_groups_that_never_commit_are_counted():
    """Nine of ten groups of W10 must; a refused commit is none, nor is another workload's."""

    def of(count, **fields):
        names = [f"p-w10-{n % 2}-{n // 2}" for n in range(count)]
        return history(*(commit(1, 0, 1, key=Key(name, "p-w10", 0), **fields) for name in names))

    assert missing(did("W10"), of=of(9)) == []
    assert missing(did("W10"), of=of(8)) == ["W10: 8 of 10 groups committed anything"]
    assert missing(did("W10"), of=of(9, outcome=Outcome.FAIL)) != []
    assert missing(did("W10"), minutes=1.0) == []


def test_a_zombie_that_never_writes_and_a_replayer_that_never_replays_are_named():
    """The first one only after many pauses: one alone may be noticed before it writes."""
    assert missing(did("W4", pause=PAUSES - 1)) == []
    assert missing(did("W4", pause=PAUSES)) == ["W4: no stale write was tried"]
    refused = history(store_writes=[write(1, 1, accepted=False)])
    assert missing(did("W4", pause=PAUSES), of=refused) == []
    assert missing(did("W12")) == ["W12: no request was sent twice"]
    assert missing(did("W12", requests_copied=1)) == []


@pytest.mark.parametrize(("looked_up", "too_few"), [(0, True), (9, True), (10, False)])
def test_a_run_whose_logs_have_next_to_nothing_is_named(looked_up, too_few):
    """Where logs were exported: else nothing can be looked up, and the note of I1 says so."""
    run = made_up.run(commits_looked_up=looked_up, commits=Counts(100, 5, 5), workloads=[])
    named = list(too_little(run, plan([], SETTING), history()))
    told = f"{looked_up} of 100 acknowledged commits were looked up in the nodes' logs"
    assert named == ([told] if too_few else [])
    run.commits_looked_up = None
    assert list(too_little(run, plan([], SETTING), history())) == []
    # A run of days has dropped nearly all of it.
    run.commits_looked_up, run.commits = LOOKED_UP_ENOUGH, Counts(20 * LOOKED_UP_ENOUGH, 0, 0)
    assert list(too_little(run, plan([], SETTING), history())) == []


def test_a_session_that_ends_of_a_member_that_is_well_is_named():
    """One of the pulse's; other workloads' members are killed, and theirs have to end."""
    made = plan(["W3"], SETTING)
    pulse, killed = made.told[0], made.watched[0]
    rounds = [
        Round(pulse, 2, "leader_rejoined", "node-0"),
        Round(killed, 3, "session_expiry", "node-0"),
    ]
    formed = [
        Generation(pulse, 3, (), 5, "node-0", whole=False),
        Generation(pulse, 4, (), 11, "node-0", whole=False),
    ]
    facts = {"ended_ns": 10}
    assert list(expired(made, ["pause_all"], history(rounds=rounds, generations=formed))) == []
    rounds.append(Round(pulse, 3, "session_expiry", "node-0"))
    # Members leave at the end, and a leave may be lost.
    rounds.append(Round(pulse, 4, "session_expiry", "node-0"))
    told = history(rounds=rounds, generations=formed, facts=facts)
    (named,) = expired(made, ["pause_all"], told)
    assert named.startswith(f"{pulse}: a session ended in round 3")


def test_a_session_that_ends_where_every_fault_spares_members_is_named():
    """One of W1's, whose members nobody kills. Another fault may keep them from their node."""
    made = plan(["W1", "W3"], SETTING)
    group, killed = made.watched
    rounds = [
        Round(group, 2, "session_expiry", "node-0"),
        Round(killed, 2, "session_expiry", "node-0"),
    ]
    spared = ["pause_all", "reset_peer_connections", "reset_client_connections", "clock_back"]
    formed = [Generation(one, 2, (), 5, "node-0", whole=False) for one in (group, killed)]
    told = history(rounds=rounds, generations=formed)
    (named,) = expired(made, spared, told)
    assert named.startswith(f"{group}: a session ended in round 2")
    assert list(expired(made, [*spared, "kill_leader"], told)) == []


def never_seen(*unreal, kind="slow_link"):
    """What is said of a run with a fault of a kind for each of these sights."""
    faults = [made_up.fault(kind, 10.0 * number, 5.0) for number in range(len(unreal))]
    for fault, why in zip(faults, unreal, strict=True):
        fault.unreal = why
    run = made_up.run(faults=[*faults, made_up.fault("kill_leader", 90.0, 5.0)])
    run.classes = fault_classes(run.faults)
    assert sum(one.unseen for one in run.classes) == sum(map(bool, unreal))
    return list(unseen(run))


def test_a_kind_of_fault_that_never_had_a_visible_effect_is_named():
    """With the last sight of it."""
    (named,) = never_seen(*["delayed: 0"] * (FAULTS - 1), "nothing")
    assert named == "slow_link: 3 times injected, never with a visible effect (nothing)"


def test_a_fault_of_the_users_own_is_told_like_any_other():
    """No catalog knows it."""
    assert never_seen(*["nothing"] * (FAULTS - 1), kind="reboot_rack") == []
    assert never_seen(*["nothing"] * FAULTS, kind="reboot_rack")


def test_a_fault_that_met_nobody_once_or_twice_fails_no_run():
    """One of many was seen, or there were few: a link may be idle."""
    assert never_seen(*["delayed: 0"] * 5, "") == []
    assert never_seen(*["delayed: 0"] * (FAULTS - 1)) == []


@pytest.mark.parametrize("kind", ["clock_slow", "slow_disk", "cpu_starvation"])
def test_a_fault_that_hits_a_node_at_work_is_seen_the_first_time(kind):
    """It does not hang on chance; one of several is enough all the same."""
    (named,) = never_seen("nothing", kind=kind)
    assert named == f"{kind}: 1 times injected, never with a visible effect (nothing)"
    assert never_seen("nothing", "", kind=kind) == []
