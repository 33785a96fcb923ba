"""Members that run the shipped SDK in the simulator: what must hold, and that it is noticed."""

import os
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest

from musterd.chaos.sim.checks.ownership_checks import Ownerships
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.engine.node import SimNode
from musterd.chaos.sim.engine.wal import Op, cut, encode, recover
from musterd.chaos.sim.run import MINIMA, Totals, describe, run_one
from musterd.chaos.sim.scenario import Scenario
from musterd.chaos.sim.scenarios import SCENARIOS
from musterd.chaos.sim.sdk_scenarios import SCRIPTED, SDK, SDK_COOPERATIVE, SDK_EAGER
from musterd.chaos.sim.simulation import Simulation
from musterd.coordinator.machine.events import (
    Event,
    GenerationFormed,
    MemberJoined,
    MemberRemoved,
    RemovalCause,
)
from musterd.coordinator.machine.shard_state import CommandResult
from musterd.storage.store import Family

SEEDS = 3


@pytest.mark.parametrize("scenario", SDK, ids=lambda s: s.name)
def test_members_that_run_the_sdk_are_kept_every_promise(scenario: Scenario) -> None:
    """Eager, cooperative and static members under all faults keep every promise made to them.

    These are inv-I1, inv-I3, inv-I4, inv-I6, inv-I8, inv-I9 and inv-I13.
    """
    totals = Totals()
    broken: list[str] = []
    for seed in range(SEEDS):
        result = run_one((scenario.name, seed))
        totals.add(result)
        broken += describe(result) if result.violations else ()
    assert not broken, "\n".join(broken)
    minima = replace(MINIMA[scenario.name], faults=("client_reordering",))
    assert not totals.too_little(minima)


@pytest.mark.parametrize("scenario", SCRIPTED, ids=lambda s: s.name)
def test_a_schedule_that_must_be_run_removes_nobody(scenario: Scenario) -> None:
    """Jammed loops, SIGSTOP of all, slow fsyncs, reset peers, broken heartbeats."""
    result = run_one((scenario.name, 0))
    assert not result.violations, "\n".join(describe(result))
    totals = Totals()
    totals.add(result)
    assert not totals.too_little(MINIMA[scenario.name])


def test_one_seed_is_one_run_whatever_the_hash_seed() -> None:
    """Two processes with other hash seeds see every frame, count and fault alike."""
    program = (
        "from musterd.chaos.sim.sdk_scenarios import SDK_COOPERATIVE as s\n"
        "from musterd.chaos.sim.simulation import Simulation\n"
        "sim = Simulation(s, 4); lines = []; sim.trace = lines.append; r = sim.run()\n"
        "print(r.events, r.counts, sorted(r.faults.items())); print('\\n'.join(lines))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "77")
    ]
    assert runs[0] == runs[1]
    assert len(runs[0].splitlines()) > 500


# ---- the checker


def _owners(*events: Event) -> tuple[ShardChecker, Ownerships]:
    checker = ShardChecker(0, 3)
    owners = Ownerships(checker)
    _apply(owners, 1, *events)
    return checker, owners


def _apply(owners: Ownerships, index: int, *events: Event) -> None:
    result = CommandResult(None, events, None, ())  # type: ignore[arg-type]
    owners.watch(0, None, index, None, (result,))  # type: ignore[arg-type]


def _removed(member: str) -> MemberRemoved:
    return MemberRemoved("g", member, RemovalCause.SESSION_EXPIRED, "", 0)


def _kinds(checker: ShardChecker) -> list[str]:
    return [one.kind for one in checker.violations]


def test_two_owners_that_the_group_counts_are_noticed() -> None:
    """inv-I4: whatever their generations, and not where the first has let go."""
    checker, owners = _owners()
    owners.take("g", 0, "a", 1, "p1", 1)
    owners.take("g", 1, "a", 1, "p1", 1)
    owners.drop("g", 1, "p1", "revoked")
    owners.take("g", 1, "b", 2, "p2", 2)
    assert _kinds(checker) == []
    owners.take("g", 0, "b", 2, "p2", 2)
    assert _kinds(checker) == ["H-owners-overlap"]


def test_two_processes_that_had_one_token_are_noticed() -> None:
    """inv-I5: also where the first is long gone, and in one generation."""
    checker, owners = _owners()
    owners.take("g", 0, "a", 1, "p1", 1)
    owners.take("g", 1, "a", 1, "p1", 1)
    owners.drop_all("p1", "died")
    owners.take("g", 0, "b", 1, "p2", 2)
    assert _kinds(checker) == []
    owners.take("g", 1, "b", 1, "p2", 1)
    assert _kinds(checker) == ["H-token-shared"]


def test_a_token_of_a_later_generation_that_is_smaller_is_noticed() -> None:
    """inv-I5: in whatever order the processes hear of them."""
    checker, owners = _owners()
    owners.take("g", 0, "b", 2, "p2", 3)
    owners.drop_all("p2", "died")
    owners.take("g", 0, "a", 1, "p1", 2)
    owners.drop_all("p1", "died")
    assert _kinds(checker) == []
    owners.take("g", 0, "c", 1, "p3", 4)
    assert _kinds(checker) == ["H-token-fell"]


@pytest.mark.parametrize("removed", ["a", "b"])
def test_a_zombie_may_overlap_and_may_not_commit(removed: str) -> None:
    """inv-I6: the one that the group removed, whether it was told first or last."""
    checker, owners = _owners(_removed(removed))
    owners.take("g", 0, "a", 1, "p1", 1)
    owners.take("g", 0, "b", 2, "p2", 2)
    assert _kinds(checker) == []
    assert owners.is_removed("g", removed)
    owners.acknowledged("g", 0, "p", sent_as_zombie=owners.is_removed("g", removed))
    assert _kinds(checker) == ["H-zombie-committed"]


def test_a_member_that_joins_again_is_no_zombie() -> None:
    """Its first Join was repeated after its session: the same id is in the group again."""
    joined = MemberJoined.__new__(MemberJoined)
    object.__setattr__(joined, "group_id", "g")
    object.__setattr__(joined, "member_id", "a")
    _, owners = _owners(_removed("a"))
    _apply(owners, 2, joined)
    assert not owners.is_removed("g", "a")
    _apply(owners, 1, _removed("a"))  # another node applies the older entry later
    assert not owners.is_removed("g", "a")


def test_a_partition_that_comes_back_for_nothing_is_noticed() -> None:
    """inv-I9: taken by one round and given back by the next, with the same members in both."""
    for members, kinds in ((("a", "b"), ["H-revoked-in-vain"]), (("a",), [])):
        formed = [
            GenerationFormed("g", 1, 4, "range", "a", ("a", "b"), 0),
            GenerationFormed("g", 2, 5, "range", "a", members, 0),
        ]
        checker, owners = _owners(*formed)
        owners.moves("g", 0, "a", 4)
        owners.take("g", 0, "a", 5, "p1", 5)
        assert _kinds(checker) == kinds


def test_what_nobody_owns_is_named() -> None:
    """inv-I8: nobody's, and what two processes own."""
    _, owners = _owners(_removed("a"))
    owners.take("g", 0, "a", 1, "p1", 1)
    owners.take("g", 1, "a", 1, "p1", 1)
    owners.take("g", 1, "b", 2, "p2", 2)
    assert owners.unowned({"g": 3}) == [("g", 1), ("g", 2)]


# ---- the disk


def _epochs(count: int) -> list[tuple[int, list[Op]]]:
    return [
        (number, [(0, Family.LOG, bytes([number]), b"v" * number), (1, Family.META, b"k", b"")])
        for number in range(1, count + 1)
    ]


def test_a_torn_tail_leaves_the_whole_records_before_the_cut() -> None:
    """At whatever byte the power was cut, with zeros behind the cut or without."""
    epochs = _epochs(5)
    log, rng = encode(epochs), Random(1)
    whole, torn = set(), 0
    for _ in range(300):
        found = recover(cut(log, rng))
        assert list(found.epochs) == epochs[: len(found.epochs)]
        whole.add(len(found.epochs))
        torn += found.torn
    assert whole >= {0, 1, 2, 3, 4}
    assert 0 < torn < 300


def test_a_flipped_byte_ends_recovery() -> None:
    """Nothing behind a record that does not match its checksum is believed."""
    log = bytearray(encode(_epochs(3)))
    log[len(encode(_epochs(1))) + 12] ^= 1
    assert len(recover(bytes(log)).epochs) == 1


def test_a_node_that_ignores_a_failed_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """inv-I16: it goes on as if the disk had what it wrote."""

    def ignore(self: SimNode) -> None:
        store = self.store
        self._sync_fails = self._syncing = False
        store._synced = store.written_epoch
        for told in list(store._callbacks):
            told(store.written_epoch)

    monkeypatch.setattr(SimNode, "_sync_failed", ignore)
    scenario = replace(SDK_EAGER, weights={"eio": 10, "crash": 3}, pause_s=0.2)
    kinds: set[str] = set()
    for seed in range(4):
        kinds |= {one.kind for one in Simulation(scenario, seed).run().violations}
        if kinds:
            break
    assert any(kind.startswith(("H-", "S-", "X-")) for kind in kinds)


def test_every_kind_of_client_fault_happens() -> None:
    """Where they are drawn often, each is counted under its own name, the disk's too."""
    kinds = ("client_cut", "client_one_way", "client_reset", "client_pause", "eio", "disk_full")
    scenario = replace(SDK_COOPERATIVE, weights=dict.fromkeys((*kinds, "crash"), 10), pause_s=0.15)
    totals = Totals()
    for seed in range(4):
        totals.add(Simulation(scenario, seed).run())
    wanted = (*kinds, "client_loss", "client_duplicate", "client_late_duplicate", "torn_tail")
    assert [kind for kind in (*wanted, "lost_unsynced") if not totals.faults[kind]] == []
    assert {scenario.name for scenario in SDK} <= SCENARIOS.keys()
