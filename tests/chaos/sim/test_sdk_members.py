"""Members that run the shipped SDK in the simulator: what must hold, and that it is noticed."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from musterd.chaos.history import Key, Outcome
from musterd.chaos.sim.checks.applied import Applied
from musterd.chaos.sim.checks.group_history import GroupHistory, judge, recorder
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.engine.coordinator_app import GroupsChecker
from musterd.chaos.sim.engine.node import SimNode
from musterd.chaos.sim.engine.wal import Op, cut, encode, recover
from musterd.chaos.sim.hunt.shrink import named_by
from musterd.chaos.sim.run import Totals, describe, run_one
from musterd.chaos.sim.scenario import Scenario
from musterd.chaos.sim.scenarios import SCENARIOS
from musterd.chaos.sim.sdk_scenarios import (
    SCRIPTED,
    SDK,
    SDK_COOPERATIVE,
    SDK_EAGER,
    SDK_TWO_SHARDS,
)
from musterd.chaos.sim.simulation import Simulation
from musterd.coordinator.machine.events import (
    Ending,
    Event,
    GenerationFormed,
    MemberJoined,
    MemberRemoved,
    OffsetRemoved,
    RemovalCause,
)
from musterd.coordinator.machine.shard_state import CommandResult
from musterd.storage.store import Family

pytestmark = pytest.mark.long

SEEDS = 1
FIRST_REFUSED = 8
"""Seeds before it have no refused commit; how many must be looked at changes with all that runs."""


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
    minima = replace(scenario.minima, faults=("client_reordering",))
    assert not totals.too_little(minima)


@pytest.mark.parametrize("scenario", SCRIPTED, ids=lambda s: s.name)
def test_a_schedule_that_must_be_run_removes_nobody(scenario: Scenario) -> None:
    """Jammed loops, SIGSTOP of all, slow fsyncs, reset peers, broken heartbeats."""
    result = run_one((scenario.name, 0))
    assert not result.violations, "\n".join(describe(result))
    totals = Totals()
    totals.add(result)
    assert not totals.too_little(scenario.minima)


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


# ---- what is written down


def _history(*events: Event) -> GroupHistory:
    history = GroupHistory(ShardChecker(0, 3), recorder(lambda: 0.0))
    _apply(history, 1, *events)
    return history


def _apply(history: GroupHistory, index: int, *events: Event) -> None:
    result = CommandResult(None, events, None, ())  # type: ignore[arg-type]
    history.watch(Applied(0, None, index, None, (result,)))  # type: ignore[arg-type]


def _joined(member: str, instance: str = "") -> MemberJoined:
    return MemberJoined("g", member, "", "", 1, 1, "", (), (), 1, instance)


REMOVED = MemberRemoved("g", "a", RemovalCause.SESSION_EXPIRED, "", 0)


def test_an_entry_counts_once_when_the_first_node_applies_it() -> None:
    """Another node applies the older one later; what is about each node is told of both."""
    history = _history()
    checker = GroupsChecker(history.shard, history)
    once: list[Applied] = []
    each: list[Applied] = []
    checker.firsts.append(once.append)
    checker.watches.append(each.append)
    told = [Applied(node, None, index, None, ()) for node, index in ((0, 1), (0, 2), (1, 1))]  # type: ignore[arg-type]
    for one in told:
        checker.applied(one)
    assert (once, each) == (told[:2], told)


def test_a_member_that_joins_again_is_removed_no_more() -> None:
    """Its first Join was repeated after its session: the same id is in the group again."""
    history = _history(REMOVED)
    _apply(history, 2, _joined("a"))
    _apply(history, 3, replace(REMOVED, member_id="b"))
    history.finished()
    back, gone = history.log.history().removals
    assert (back.member_id, gone.member_id, gone.until_ns) == ("a", "b", None)
    assert back.until_ns is not None
    assert back.from_ns < back.until_ns < gone.from_ns


def test_a_generation_and_its_owners_are_named_alike() -> None:
    """A static member by its instance id, whichever process it is."""
    formed = GenerationFormed("g", 1, 4, "range", "a", ("a", "b"), 0)
    history = _history(_joined("a"), _joined("b", "i"), formed)
    history.take(Key("g", "t", 0), "b", 4, "p", 4)
    written = history.log.history()
    assert [one.members for one in written.generations] == [("a", "instance:i")]
    assert [one.owner for one in written.ownerships] == ["instance:i"]


def test_an_offset_that_expired_may_be_read_as_gone() -> None:
    """And one that did not may not: inv-I1, inv-I2, inv-I13."""
    key = Key("g", "t", 0)
    for removed, kinds in (((OffsetRemoved("g", "t", 0, 7, Ending.EXPIRED),), set()), ((), ALL)):
        history = _history()
        history.log.end(history.began("p", "commit", key, 7), Outcome.OK)
        _apply(history, 2, *removed)
        history.log.end(history.reads("p", [key])[key], Outcome.OK, value=-1)
        assert {one.invariant for one in judge(history.log, Counter())} == kinds


ALL = {"I1", "I2", "I13"}


def test_what_is_judged_is_named_by_its_key_and_by_nothing_where_it_has_none() -> None:
    """Prose names nothing: a commit that is a ghost, and one that was not read at all."""
    key = Key("g", "t", 0)
    for value, names in ((-1, "g/t/0"), (None, "anything: it names no")):
        history = _history()
        history.log.end(history.began("p", "commit", key, 7), Outcome.OK)
        if value is not None:
            history.log.end(history.reads("p", [key])[key], Outcome.OK, value=value)
        told = {
            named_by(one).partition(" of ")[2].partition(" shard,")[0]
            for one in judge(history.log, Counter())
        }
        assert told == {names}


def test_a_commit_that_was_refused_is_written_down_as_refused() -> None:
    """As inv-I2 needs it, to tell of a refused one that took effect; under its token, as inv-I6.

    Few are: who is told by its heartbeat in time commits no more.
    """
    refused: list[Any] = []
    for seed in range(FIRST_REFUSED, FIRST_REFUSED + 60):
        world = Simulation(SDK_TWO_SHARDS, seed)
        world.run()
        assert world.members is not None
        commits = [one for one in world.members.log.history().commits() if one.numbered]
        assert all(one.token for one in commits)
        refused = [one.error for one in commits if one.outcome is Outcome.FAIL]
        if refused:
            break
    assert refused
    assert set(refused) <= {"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"}


def test_what_nobody_owns_is_named() -> None:
    """inv-I8: nobody's, and what two processes own."""
    history, keys = _history(), [Key("g", "t", partition) for partition in range(3)]
    for key, member in ((keys[0], "a"), (keys[1], "a"), (keys[1], "b")):
        history.take(key, member, 1, f"p{member}", 1)
    assert history.unowned(keys) == keys[1:]


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
        kinds |= {one.invariant for one in Simulation(scenario, seed).run().violations}
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
