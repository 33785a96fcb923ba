"""What is said of a fault: from made-up histories and tracks, times in whole seconds."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from musterd.chaos.history import Key
from musterd.chaos.run import judgement
from musterd.chaos.run.judgement import RunRequest, judge
from musterd.chaos.run.result import FaultRun
from musterd.chaos.run.runner import Played
from musterd.chaos.run.schedule import Schedule
from musterd.chaos.workloads.catalog import Setting, plan
from tests.chaos.check.made import S, commit, history, owns, read
from tests.chaos.report import made_up

END = 60
PLAN = plan(["W1"], Setting("p", "p", 3, 16, Path("nowhere")))
CALM = next(group for group, (topic, _) in PLAN.keys.items() if topic.endswith("-w1"))


def fault(began: int, kind: str = "kill_leader", target: str = "node-1") -> FaultRun:
    """Of 2 s, settled 2 s later."""
    healed, settled = (began + 2) * S, (began + 4) * S
    return FaultRun(kind, float(began), began * S, True, [target], True, healed, settled)


def led(at: float, nodes: dict[int, int]) -> dict[str, object]:
    """What the watcher saw: nodes by shard."""
    return {"what": "led", "at_ns": int(at * S), "led": sorted(nodes.items()), "silent": []}


def commits(group: str, *sent: float, took: float = 0.1) -> list[dict[str, object]]:
    """A probe's, each acknowledged after `took`."""
    ends = [(int(at * S), int((at + took) * S)) for at in sent]
    return [
        {"what": "probe", "group": group, "sent_ns": a, "ended_ns": b, "ok": True, "node": 1}
        for a, b in ends
    ]


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """A run with these faults, ownerships and lines of its tracks, as it is judged."""

    def of(faults, ownerships=(), lines=(), operations=(), *, notes=(), exported=False):
        (tmp_path / "tracks").mkdir()
        text = "".join(json.dumps(one) + "\n" for one in lines)
        (tmp_path / "tracks" / "made.track.jsonl").write_text(text)
        facts = {"ended_ns": END * S}
        seen = history(*operations, ownerships=list(ownerships), facts=facts)
        monkeypatch.setattr(judgement, "read_folder", lambda _: seen)
        request = RunRequest(
            datetime(2026, 11, 22, tzinfo=UTC),
            *(1, [], 3, 16),
            made_up.run().machine,
            own=True,
            skipped={},
        )
        played = Played(0, (END + 10) * S, "finished", faults, exported=exported)
        plan = replace(PLAN, notes=list(notes))
        return judge(request, plan, Schedule(1, 3, 1.0, ()), played, tmp_path)

    return of


def held(*spans: tuple[int, int | None], partition: int = 0, ended: str = "revoked"):
    """Who had a partition of W1's group, one after the other."""
    key = Key(CALM, "p-w1", partition)
    return [owns(f"m{n}", n, *span, ended=ended, key=key) for n, span in enumerate(spans)]


# ---- ownership


def test_a_partition_that_is_owned_again_has_its_time(judged):
    """The last of them; where none lost its owner it is 0."""
    run = judged(
        [fault(10), fault(30)],
        [*held((0, 12), (17, None)), *held((0, 11), (12, None), partition=1)],
    )
    first, second = run.faults
    assert (first.owned_ms, first.unowned) == (7_000.0, 0)
    assert (second.owned_ms, second.unowned) == (0.0, 0)
    assert run.notes == [one for one in run.notes if "owner" not in one]


def test_a_partition_that_is_never_owned_again_is_no_time_but_a_count(judged):
    """However fast the others were; the note says that it was for good."""
    run = judged([fault(10)], [*held((0, 12)), *held((0, 11), (12, None), partition=1)])
    (one,) = run.faults
    assert (one.owned_ms, one.unowned, one.never_owned, one.unowned_ms) == (None, 1, 1, 4_000.0)
    assert "kill_leader at 10 s: 1 partitions lost their owner" in run.notes[-1]
    assert "had none 4.0 s after it began, 1 of them for good" in run.notes[-1]


def test_a_partition_that_is_owned_only_after_the_next_fault_is_not_owned_until_it(judged):
    """It counts for the fault in which it was lost, and not for the next one."""
    run = judged([fault(10), fault(20)], held((0, 12), (25, None)))
    first, second = run.faults
    assert (first.owned_ms, first.unowned, first.never_owned) == (None, 1, 0)
    assert first.unowned_ms == 10_000.0
    assert (second.owned_ms, second.unowned) == (0.0, 0)


def test_members_that_leave_at_the_end_of_the_run_lost_nothing(judged):
    """Also where the last fault never settled."""
    last = fault(50)
    last.settled_ns = None
    run = judged([last], held((0, END + 1), ended="left"))
    assert (last.owned_ms, last.unowned) == (0.0, 0)
    assert not any("owner" in one for one in run.notes)


def test_without_groups_that_are_left_alone_nothing_is_said_of_ownership(judged):
    """It is not 0."""
    judged([one := fault(10)])
    assert (one.owned_ms, one.unowned) == (None, 0)


# ---- look-ups


@pytest.mark.parametrize("exported", [True, False])
def test_logs_that_should_be_there_and_have_nothing_fail_the_run(exported, judged):
    """The note of I1 counts the look-ups either way; a cluster of the user's has no such logs."""
    run = judged([], operations=[commit(5, 1, 2), read(5, 3, 4)], exported=exported)
    words = "0 of 1 acknowledged commits were looked up in the nodes' logs"
    assert next(one for one in run.verdicts if one.invariant == "I1").note.startswith(words)
    assert run.commits_looked_up == (0 if exported else None)
    assert (words in run.reasons) is exported


# ---- probes


def test_a_node_that_is_slow_to_answer_the_watcher_moves_no_probe(judged):
    """Its first look may miss shards; the number of them is the cluster's, not that of a look."""
    hit, other = PLAN.probes[1], PLAN.probes[2]  # in shards 1 and 2
    lines = [
        *(led(1, {0: 0, 1: 1, 2: 2}), led(2, {n: n % 3 for n in range(16)}), led(9, {2: 2})),
        *commits(hit, 9.5, 13, 15),
        *commits(other, 9.5, 10.5, 11.5, 12.5, 13.5),
    ]
    run = judged([one := fault(10)], lines=lines)
    assert (one.hit_ms, one.other_ms) == (3_100.0, 1_000.0)
    assert run.notes == []


def test_a_kind_without_a_figure_is_noted(judged):
    """It hit nodes and none of them led a probe's group; one of the kind that has one is enough."""
    lines = [led(1, {n: n % 3 for n in range(16)}), *commits(PLAN.probes[1], 9.5, 14, 22, 34)]
    faults = [
        fault(10, "eio", "node-2"),
        fault(20, "kill_leader", "node-2"),
        fault(30, "kill_leader", "node-1"),
        fault(40, "large_commits", "client-0"),
    ]
    run = judged(faults, lines=lines)
    assert [one.hit_ms is None for one in faults] == [True, True, False, True]
    (note,) = run.notes
    assert note.startswith("eio: no figure for groups of a hit node")
    assert "node-2" in note
    assert not any("no figure" in one for one in run.reasons), "it fails nothing"


def test_what_was_known_to_be_missing_before_the_run_is_noted_first(judged):
    """Before what its faults left open; it fails nothing."""
    run = judged([fault(10, "eio", "node-2")], notes=["W12 is left out: WHY"])
    assert run.notes[0] == "W12 is left out: WHY"
    assert len(run.notes) == 2
    assert not any("W12" in one for one in run.reasons)


def test_a_group_whose_leader_nobody_saw_is_neither_hit_nor_another(judged):
    """Nothing is said of it."""
    run = judged([one := fault(10)], lines=commits(PLAN.probes[1], 9.5, 13, 15))
    assert (one.hit_ms, one.other_ms) == (None, None)
    assert run.notes
