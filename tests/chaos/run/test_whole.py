"""A whole run on a real cluster; and runs that must not pass, made from its history."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from musterd.chaos.check.lost import look_up
from musterd.chaos.history import Key, Operation, Outcome
from musterd.chaos.history_files import read_folder
from musterd.chaos.recording import LINES, OperationLine, adapter
from musterd.chaos.run import result as results
from musterd.chaos.run import schedule as schedules
from musterd.chaos.run.judgement import RunRequest, judge
from musterd.chaos.run.result import RunResult
from musterd.chaos.run.runner import Played
from musterd.chaos.workloads.catalog import Setting, plan

pytestmark = [
    *(pytest.mark.processes, pytest.mark.faults, pytest.mark.one_run),
    pytest.mark.usefixtures("netns_works"),
]

RUN_S_MAX = 240.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with two faults and two workloads."""
    return tmp_path_factory.mktemp("chaos") / "run"


@pytest.fixture(scope="module")
def run(folder: Path, users_modules: Path) -> tuple[int, dict[str, object], RunResult]:
    """Exit code, what it printed, and its result."""
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "muster.cli", "chaos", "run", "--minutes", "0.35"),
            *("--seed", "3", "--to", str(folder), "-o", "json"),
            *("--fault", "kill_leader", "--fault", "isolate_leader"),
            *("--workload", "W1", "--workload", "W4"),
        ],
        capture_output=True,
        timeout=RUN_S_MAX,
        check=False,
        cwd=users_modules,
        env={**os.environ, "PYTHONPATH": str(users_modules)},
    )
    assert done.stdout, done.stderr.decode()
    return done.returncode, json.loads(done.stdout), results.read(folder)


def test_a_run_breaks_a_cluster_and_finds_what_it_promised(run):
    """Exit code 0, every fault injected, every checker that applies looked at something."""
    code, told, result = run
    assert (code, result.reasons) == (0, [])
    assert result.passed
    assert told["passed"] is True
    assert {one.kind for one in result.faults} == {"kill_leader", "isolate_leader"}
    assert all(one.injected and one.settled_ns for one in result.faults)
    verdicts = {one.invariant: one for one in result.verdicts}
    for invariant in ("I1", "I2", "I3", "I4", "I6", "I7", "I8", "I10", "I11", "I13", "I15"):
        assert verdicts[invariant].passed, verdicts[invariant]
    assert not verdicts["I14"].applies
    assert (result.commits_lost, result.keys_unread) == (0, 0)
    assert result.calm_ms is not None
    assert result.build is not None
    assert result.build.version == result.machine.muster


def test_a_run_measures_what_the_faults_cost(run):
    """The group that the killed node led was unavailable for a while, and served again."""
    _, _, result = run
    for one in result.faults:
        assert one.hit_ms is not None
        assert one.hit_ms > 0
        assert one.first_commit_ms is not None
        assert one.latency_during.count > 0
    assert {one.kind for one in result.classes} == {"kill_leader", "isolate_leader"}
    assert result.commits.ok > 100
    assert {one.name for one in result.workloads} == {"W1", "W4", "probe", "pulse"}
    assert all(one.counts["commit"].ok for one in result.workloads)


def test_a_node_that_is_cut_off_is_called_for_sure(run, folder: Path):
    """Commits, reads and heartbeats, while it is cut off: the runner waits until they ended."""
    assert run
    history = read_folder(folder / "history")
    (side,) = history.minorities
    calls = [
        one
        for one in history.operations
        if one.client == "pulse"
        and one.node in side.nodes
        and side.from_ns < one.began_ns
        and (one.ended_ns or side.until_ns) < side.until_ns
    ]
    assert {one.kind for one in calls} == {"commit", "read", "heartbeat"}
    assert all(one.outcome != "ok" for one in calls if one.kind != "heartbeat")


def test_every_group_of_the_pulse_has_several_whole_generations_of_the_server(run, folder: Path):
    """However calm the run was: two before it began."""
    assert run
    history = read_folder(folder / "history")
    told: dict[str, set[int]] = {}
    for one in history.generations:
        if one.whole and one.source.startswith("node-") and "-pulse-" in one.group:
            told.setdefault(one.group, set()).add(one.generation)
            assert len(one.members) == 1
    assert len(told) == 3
    assert all(len(generations) >= 2 for generations in told.values()), told


def test_a_run_replays_what_its_nodes_have_in_their_logs(run, folder: Path):
    """At the places of which the nodes told a digest, and of many of them."""
    _, _, result = run
    history = read_folder(folder / "history")
    places = {(one.shard, one.index) for one in history.checkpoints}
    replayed = {(one.shard, one.index) for one in history.replays}
    assert {one.source for one in history.replays} == {"python"}
    assert len(replayed & places) > 16
    looked_up = list(look_up(history))
    assert len(looked_up) > 100
    assert all(there for _, _, there in looked_up)
    # Nothing is missing of the logs of so short a run.
    assert {one.first for one in history.logs} == {1}
    assert len(history.logs) == result.shards
    assert len(looked_up) == result.commits_looked_up == result.commits.ok
    assert not (folder / "replay").exists()


def test_the_schedule_of_a_run_is_kept(run, folder: Path):
    """To run it again."""
    _, _, result = run
    steps = schedules.read(folder / schedules.FILE).steps
    assert [one.kind for one in steps] == [one.kind for one in result.faults]


def judged_again(
    folder: Path, to: Path, result: RunResult, *, without: str = "", planted: str = ""
) -> RunResult:
    """The run's files, less one or some lines, or with more lines, judged anew."""
    (to / "tracks").mkdir(parents=True)
    (to / "history").mkdir()
    for path in (folder / "tracks").iterdir():
        (to / "tracks" / path.name).write_bytes(path.read_bytes())
    for path in (folder / "history").iterdir():
        if path.name == without:
            continue
        lines = path.read_bytes().splitlines(keepends=True)
        kept = [one for one in lines if not without or without.encode() not in one]
        (to / "history" / path.name).write_bytes(b"".join(kept))
    if planted:
        path = to / "history" / "probe.history.jsonl"
        path.write_bytes(path.read_bytes() + planted.encode() + b"\n")
    steps = schedules.read(folder / schedules.FILE)
    made = plan(
        ["W1", "W4"], Setting("muster-chaos", "muster-chaos", 3, result.shards, Path("/nowhere"))
    )
    played = Played(result.began_ns, result.ended_ns, "finished", list(result.faults))
    request = RunRequest(
        datetime.fromisoformat(result.started_at),
        result.seed,
        [],
        3,
        result.shards,
        result.machine,
        own=True,
        skipped={},
    )
    return judge(request, made, steps, played, to)


def test_the_same_files_are_judged_the_same(run, folder: Path, tmp_path: Path):
    """What the tests below change is all that is different in them."""
    _, _, result = run
    again = judged_again(folder, tmp_path / "again", result)
    assert (again.passed, again.reasons) == (True, [])
    assert again.verdicts == result.verdicts


def test_a_stale_read_fails_the_run(run, folder: Path, tmp_path: Path):
    """A read, at the end, of an offset that others have long been committed after."""
    _, _, result = run
    history = read_folder(folder / "history")
    acked = [
        one
        for one in history.commits()
        if one.client == "probe" and one.outcome == "ok" and one.ended_ns is not None
    ]
    key, value = acked[0].key, acked[0].value
    planted = answered("read", key, result.ended_ns, value=value)
    broken = judged_again(folder, tmp_path / "stale", result, planted=planted)
    assert not broken.passed
    broken_ones = {one.invariant for one in broken.verdicts if one.violations_count}
    assert broken_ones == {"I1", "I2"}, broken.reasons
    mine = [one for one in acked if one.key == key and one.began_ns > acked[0].ended_ns]
    assert broken.commits_lost == len(mine) > 50
    assert broken.keys_unread == 0


def line(name: str, record: object) -> str:
    """As it stands in a file of a history."""
    return json.dumps({name: json.loads(adapter(LINES[name]).dump_json(record))})


def answered(kind: str, key: Key, before_ns: int, **known: int) -> str:
    """An operation that ended a moment before then: the lines of its begin and its end."""
    began = Operation("x", kind, key, before_ns - 2000)
    ended = replace(began, ended_ns=before_ns - 1000, outcome=Outcome.OK, **known)
    return "\n".join(line("operation", OperationLine(900001, one)) for one in (began, ended))


def test_a_zombie_that_is_served_fails_the_run(run, folder: Path, tmp_path: Path):
    """A heartbeat in the first generation, answered at the end of the run."""
    _, _, result = run
    history = read_folder(folder / "history")
    group = next(one.group for one in history.generations if "-pulse-" in one.group)
    first = min(one.generation for one in history.generations if one.group == group)
    planted = answered("heartbeat", Key(group, "", -1), result.ended_ns, generation=first)
    broken = judged_again(folder, tmp_path / "zombie", result, planted=planted)
    assert {one.invariant for one in broken.verdicts if one.violations_count} == {"I6"}


def test_a_minority_that_answers_heartbeats_fails_the_run(run, folder: Path, tmp_path: Path):
    """Long after it last heard from a majority."""
    _, _, result = run
    (side,) = read_folder(folder / "history").minorities
    planted = answered("heartbeat", Key("g", "", -1), side.until_ns, node=side.nodes[0])
    broken = judged_again(folder, tmp_path / "minority", result, planted=planted)
    assert {one.invariant for one in broken.verdicts if one.violations_count} == {"I15"}


def test_a_replay_that_reaches_another_digest_fails_the_run(run, folder: Path, tmp_path: Path):
    """At a place where the nodes agree."""
    _, _, result = run
    place = read_folder(folder / "history").replays[0]
    planted = line("replays", replace(place, source="spark", digest="0" * 32))
    broken = judged_again(folder, tmp_path / "replay", result, planted=planted)
    assert {one.invariant for one in broken.verdicts if one.violations_count} == {"I11"}


def test_a_run_without_final_reads_does_not_pass(run, folder: Path, tmp_path: Path):
    """Nothing shows then that the last commits are there."""
    _, _, result = run
    broken = judged_again(folder, tmp_path / "unread", result, without="final.history.jsonl")
    assert not broken.passed


def test_a_run_without_digests_does_not_pass(run, folder: Path, tmp_path: Path):
    """A checker that looked at nothing has not passed."""
    _, _, result = run
    broken = judged_again(folder, tmp_path / "blind", result, without='{"checkpoints"')
    assert any("I10: nothing was looked at" in one for one in broken.reasons), broken.reasons


def test_a_fault_that_was_not_injected_fails_the_run(run, folder: Path, tmp_path: Path):
    """Also where nothing else is wrong."""
    _, _, result = run
    fault = result.faults[0]
    fault.injected, fault.error = False, "no leader to kill"
    try:
        broken = judged_again(folder, tmp_path / "fault", result)
    finally:
        fault.injected, fault.error = True, ""
    assert any("was not injected: no leader to kill" in one for one in broken.reasons)
