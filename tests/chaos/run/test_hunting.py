"""Broken builds on real processes: how a hunt judges, and that real servers are caught."""

import dataclasses
import queue
import time
from random import Random
from types import SimpleNamespace

import pytest

from musterd.chaos.check import CHECKERS
from musterd.chaos.faults.contract import create
from musterd.chaos.mutants.__main__ import LAYERS
from musterd.chaos.mutants.builds import PROCESS_BUILDS
from musterd.chaos.mutants.installed import BrokenBuild
from musterd.chaos.report.invariants import INVARIANTS
from musterd.chaos.run import hunt, hunt_scenarios
from musterd.chaos.workloads.admin import AdminSettings
from musterd.chaos.workloads.catalog import Setting
from musterd.chaos.workloads.offsets import SimpleSettings
from musterd.chaos.world import damage
from musterd.coordinator.node.loopback import ClusterError
from musterd.storage.rocks import RocksStore
from musterd.storage.store import CorruptStoreError, Family
from tests.chaos.report import made_up

FINE = tuple(made_up.verdict(f"I{n}") for n in (1, 2, 3, 6, 13, 15))
FAULTS = [made_up.fault("isolate_leader", 8.0, 500.0), made_up.fault("isolate_leader", 20.0, 500.0)]


def played(*verdicts, **changes):
    """A run of the cuts."""
    return made_up.run(*(verdicts or FINE), **{"faults": FAULTS, **changes})


@pytest.fixture
def plays(monkeypatch):
    """What `play` gives, by build ("" is the shipped one); every call is noted."""
    results, calls = {"": played(), "majority": played()}, []

    def play(scenario, seed, build=""):
        calls.append((scenario.name, seed, build))
        return results[build]

    monkeypatch.setattr(hunt, "play", play)
    hunt.try_shipped.cache_clear()
    yield results, calls
    hunt.try_shipped.cache_clear()


def test_a_build_that_breaks_a_promise_is_caught_by_its_invariant(plays) -> None:
    """The shipped build plays the same schedule and seed before it."""
    results, calls = plays
    results["majority"] = played(*FINE[:-1], made_up.verdict("I15", "a minority acknowledged"))
    caught = hunt.LAYER.hunt("majority", 200)
    assert (caught.seed, caught.layer, caught.world) == (1, "process", "cuts")
    assert caught.what.startswith("I15")
    assert caught.promises == ("I15",)
    assert calls == [("cuts", 1, ""), ("cuts", 1, "majority")]


def test_a_build_that_breaks_nothing_has_survived(plays) -> None:
    """Also where its cluster fell apart: only a broken promise catches."""
    results, calls = plays
    results["majority"] = played(ended="broken: node 1 ended", reasons=["node 1 ended"])
    caught = hunt.LAYER.hunt("majority", 200)
    assert caught.seed is None
    assert caught.tried == hunt.ATTEMPTS_MAX
    assert "node 1 ended" in caught.what
    assert len(calls) == 2 * hunt.ATTEMPTS_MAX


def test_a_build_is_caught_by_a_promise_that_is_named_for_it_and_by_no_other(plays) -> None:
    """Another invariant says nothing of the checker that the missing rule is for."""
    results, _ = plays
    results["majority"] = played(*FINE, made_up.verdict("I17", "a setting was lost"))
    caught = hunt.LAYER.hunt("majority", 1)
    assert (caught.seed, caught.promises) == (None, ())
    assert "I15 or I10" in caught.what


def test_a_build_of_which_two_invariants_are_demanded_is_hunted_until_both_are_broken(
    plays,
) -> None:
    """In whichever runs: the checker that is quicker hides no other."""
    results, calls = plays
    looked = tuple(made_up.verdict(f"I{n}") for n in (1, 2, 3, 5, 6, 7, 13))
    faults = [made_up.fault("transfer_leadership", 12.0, 500.0)]
    results[""] = played(*looked, faults=faults)
    fifth, seventh = made_up.verdict("I5", "one token of two"), made_up.verdict("I7", "stale")
    results["kept_token"] = played(fifth, faults=faults)
    caught = hunt.LAYER.hunt("kept_token", 200)
    assert (caught.seed, caught.tried) == (None, hunt.ATTEMPTS_MAX)
    assert caught.what.startswith("I7 was not broken")
    results["kept_token"] = played(fifth, seventh, faults=faults)
    caught = hunt.LAYER.hunt("kept_token", 200)
    assert (caught.seed, caught.promises) == (1, ("I5", "I7"))
    assert calls[-1] == ("turns", 1, "kept_token")


ALONE = ("I3", "I4", "I7", "I8", "I9", "I11")
"""Each of these checkers has to see a broken server by itself."""


def test_every_invariant_that_another_could_hide_is_demanded_of_a_real_server() -> None:
    """It alone is named for a build, or with others that all have to catch it."""
    all_of_them = [one.promises for one in hunt.SOUGHT.values() if one.all_of_them]
    alone = [one.promises for one in hunt.SOUGHT.values() if len(one.promises) == 1]
    assert {one for promises in all_of_them + alone for one in promises} >= set(ALONE)
    for name, one in hunt.SOUGHT.items():
        assert not one.all_of_them or set(one.promises) <= hunt.SCENARIOS[name].looks


def test_every_build_names_invariants_that_there_are() -> None:
    """What the scenario looks at for sure is among them, or nothing could be found broken."""
    assert set(hunt.SOUGHT) == set(hunt.SCENARIOS)
    for name, one in hunt.SOUGHT.items():
        assert set(one.promises) <= set(CHECKERS)
        assert set(one.promises) & hunt.SCENARIOS[name].looks


def test_every_promise_that_applies_is_broken_by_a_real_server() -> None:
    """No checker has met made-up histories alone."""
    promised = {promise for one in hunt.SOUGHT.values() for promise in one.promises}
    assert promised == {one.id for one in INVARIANTS if not one.waits_for}


def test_what_a_crash_took_is_read_oftener_than_it_is_committed_again(tmp_path) -> None:
    """A commit on the same key would hide that the one before is lost; all are read at the end."""
    setting = Setting("group", "topic", 3, 16, tmp_path)
    made = hunt.SCENARIOS["applied_ahead"].work(setting)
    (job,) = [one for one in made.jobs if one.kind == "simple"]
    settings = SimpleSettings.model_validate(job.settings)
    assert settings.read_share > 0.5
    assert made.keys[settings.group] == (settings.topic, settings.partitions)
    assert made.topics[settings.topic] == settings.partitions
    assert {"probe", "pulse", "watcher"} < {one.kind for one in made.jobs}


def test_an_operator_is_at_work_before_anything_breaks(tmp_path) -> None:
    """What is read amid a fault says nothing of a setting."""
    scenario = hunt.SCENARIOS["silent_setting"]
    made = scenario.work(Setting("group", "topic", 3, 16, tmp_path))
    (job,) = [one for one in made.jobs if one.kind == "admin"]
    calm_s = scenario.schedule(1).steps[0].at_s
    assert calm_s / AdminSettings.model_validate(job.settings).every_s >= 100
    assert made.operated


class _Stopped:
    """A world of nodes that end at once when they are started; every file of a node is there."""

    def __init__(self, folder) -> None:
        for name in ("db/000010.log", "db/000008.sst", "db/MANIFEST-000005", "db/CURRENT", "mark"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(name.encode() * 9)
        self.probed = frozenset()
        node = SimpleNamespace(data_dir=folder, running=False, process=None)
        self.nodes = dict.fromkeys(range(hunt_scenarios.NODES), node)

    def running(self):
        return list(self.nodes)

    def kill(self, node_id) -> None:
        """Nothing runs."""

    def start(self, node_id) -> None:
        """It ends."""

    def reap(self, node_id) -> int:
        return 1

    def log_tail(self, node_id) -> str:
        return ""


def test_the_bit_that_is_flipped_is_one_of_the_mark(tmp_path) -> None:
    """In every attempt: a build that does not look at the mark refuses all other damage."""
    for seed in range(1, hunt.ATTEMPTS_MAX + 1):
        (step,) = hunt.SCENARIOS["mark_unread"].schedule(seed).steps
        injected = create(step.kind).inject(_Stopped(tmp_path), Random(step.seed))
        assert injected.facts["part"] == "mark"


def test_a_build_that_does_not_look_at_the_mark_opens_what_the_shipped_one_refuses(
    tmp_path,
) -> None:
    """The damage is one bit of the mark, as the scenario makes it."""

    def opened() -> None:
        RocksStore(tmp_path, lambda _: None, time.monotonic, lambda _: None).close()

    store = RocksStore(tmp_path, lambda _: None, time.monotonic, lambda _: None, create=True)
    store.batch.put(Family.META, b"key", b"value")
    store.close()
    damage.flip(tmp_path, damage.Part.MARK, Random(1))
    with pytest.raises(CorruptStoreError, match="mark"):
        opened()
    with PROCESS_BUILDS["mark_unread"].installed():
        opened()


class _Refusing:
    """A database on a disk that takes nothing any more."""

    def __init__(self, inner) -> None:
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def write(self, *what) -> None:
        """EIO."""
        raise OSError("Input/output error")

    def flush_wal(self, sync) -> None:
        """EIO."""
        raise OSError("Input/output error")


def test_a_build_that_ignores_disk_errors_says_that_what_failed_is_synced(tmp_path) -> None:
    """It neither raises nor calls for its end: the node would go on and acknowledge."""
    posted, fatal = queue.Queue(), []
    with PROCESS_BUILDS["disk_error_ignored"].installed():
        store = RocksStore(tmp_path, posted.put, time.monotonic, fatal.append, create=True)
        store._db._inner = _Refusing(store._db._inner)
        store.batch.put(Family.META, b"key", b"value")
        epoch = store.write()
        while store.synced_epoch < epoch:
            posted.get(timeout=10.0)()
        assert fatal == []
        store.close()


def test_keys_that_nobody_could_read_are_no_lost_commits(plays) -> None:
    """A cluster that fell apart before the last reads has not lost anything that is known of."""
    results, _ = plays
    unread = made_up.verdict("I1", "4 keys were not read after their last acknowledged commit")
    results["majority"] = played(unread, *FINE[1:], keys_unread=4)
    assert hunt.LAYER.hunt("majority", 200).seed is None
    results["majority"] = played(unread, *FINE[1:], keys_unread=4, commits_lost=1)
    caught = hunt.LAYER.hunt("majority", 200)
    assert caught.seed == 1
    assert caught.what.startswith("I1")


def test_nothing_is_caught_where_the_shipped_build_breaks_the_promise_too(plays) -> None:
    """It is no proof, and no other seed is tried: that is a bug of the shipped build."""
    results, calls = plays
    results[""] = results["majority"] = played(*FINE[:-1], made_up.verdict("I15", "oh"))
    caught = hunt.LAYER.hunt("majority", 200)
    assert caught.seed is None
    assert "the shipped build fails seed 1: I15" in caught.what
    assert len(calls) == 1


@pytest.mark.parametrize(
    "shipped",
    [
        played(ended="broken: not settled"),
        played(faults=FAULTS[:1]),
        played(faults=[FAULTS[0], dataclasses.replace(FAULTS[1], error="no such leader")]),
        played(*FINE[:-1], made_up.verdict("I15", looked_at=0)),
        played(keys_unread=1),
    ],
    ids=["broke off", "fault missing", "fault failed", "looked at nothing", "unread"],
)
def test_a_schedule_that_shows_nothing_with_the_shipped_build_is_drawn_again(
    plays, shipped
) -> None:
    """A machine may stand still; five times in a row is something else, and proves nothing."""
    results, calls = plays
    results[""] = shipped
    results["majority"] = played(*FINE[:-1], made_up.verdict("I15", "a minority acknowledged"))
    caught = hunt.LAYER.hunt("majority", 200)
    assert caught.seed is None
    assert "is of no use" in caught.what
    assert calls == [("cuts", seed, "") for seed in range(1, hunt.ATTEMPTS_MAX + 1)]


def test_builds_on_real_processes_are_those_of_the_launcher() -> None:
    """At least five; each says what it lacks; what needs a disk or a clock may be skipped."""
    layer = LAYERS["process"]
    assert set(layer.sought) == set(hunt.SCENARIOS) <= set(PROCESS_BUILDS)
    assert len(layer.sought) >= 5
    on_disks = {name for name in layer.sought if hunt.SCENARIOS[name].needs_disks}
    assert on_disks == {"disk_error_ignored", "hung_leader", "no_fsync"}
    assert not layer.lacks("majority")


def test_only_serve_is_launched_as_the_broken_build() -> None:
    """Whatever wraps it stays; a name that is no build and another command are refused."""
    kit = BrokenBuild("majority")
    argv = ["python", "wrap.py", "-m", "muster.cli", "serve", "--listen=x"]
    assert kit.command(0, argv) == [
        *("python", "wrap.py", "-m", "musterd.chaos.mutants.serve", "majority", "--"),
        *("serve", "--listen=x"),
    ]
    with pytest.raises(ClusterError, match="not started by"):
        kit.command(0, ["python", "-m", "other"])
    with pytest.raises(ClusterError, match="no build 'nothing'"):
        BrokenBuild("nothing")


@pytest.mark.processes
@pytest.mark.faults
def test_real_servers_that_count_no_majority_are_caught() -> None:
    """The shipped build passes the same schedule first."""
    hunt.try_shipped.cache_clear()
    caught = hunt.LAYER.hunt("majority", hunt.ATTEMPTS_MAX)
    assert caught.seed is not None, caught.what
    assert "I15" in caught.what
