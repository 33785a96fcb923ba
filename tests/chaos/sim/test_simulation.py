"""The simulator within the test suite: a few seeds each of three networks, and one node.

`make sim` runs more of them, and every world. Where it has ten seeds of a world, or 400 runs in
all, it says what happened too rarely to prove anything.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from musterd.chaos.mutants.builds import BUILDS
from musterd.chaos.sim.actors.leader_kills import Open, Phases, goes_on
from musterd.chaos.sim.checks.group_history import JUDGED
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.engine.network import Network
from musterd.chaos.sim.engine.node import SimNode
from musterd.chaos.sim.faults.differing_states import is_undecided, may_be_lost
from musterd.chaos.sim.run import (
    ALL_SEEDS,
    FAULT_SEEDS,
    Job,
    Totals,
    describe,
    jobs,
    judge,
    run_one,
)
from musterd.chaos.sim.scenario import BY_SEED, Minima, Scenario
from musterd.chaos.sim.scenarios import (
    BLINKS,
    FIRST_START,
    FIVE_NODES,
    FORGETFUL,
    HAND_OVERS,
    KILLS,
    LANES,
    ONE_NODE,
    REMOVALS,
    RETURNING,
    SCENARIOS,
    STALLS,
    STANDSTILL,
    THREE_NODES,
    TWO_SHARDS,
    named,
)
from musterd.chaos.sim.sdk_scenarios import SDK_EAGER
from musterd.chaos.sim.simulation import Simulation
from musterd.coordinator.machine.commands import Assignment
from musterd.coordinator.machine.events import (
    AssignmentPublished,
    GenerationFormed,
    RebalanceStarted,
)
from musterd.coordinator.machine.state import Phase
from musterd.raft import codec
from musterd.raft.contract import Role

pytestmark = pytest.mark.long

SEEDS = 3


def _run(scenario: Scenario, seeds: range) -> Totals:
    totals, broken = Totals(), []
    for seed in seeds:
        result = run_one((scenario.name, seed))
        totals.add(result)
        if result.violations:
            broken += describe(result)
    assert not broken, "\n".join(broken)
    return totals


def _never(totals: Totals, minima: Minima) -> set[str]:
    """What these runs never did, of what they have to do or of faults that have to happen."""
    return {one for one in minima.per_seed if not totals.counts[one]} | {
        one for one in minima.faults if not totals.faults[one]
    }


@pytest.mark.parametrize("scenario", THREE_NODES, ids=lambda s: s.name)
def test_three_nodes_keep_every_promise_under_faults(scenario: Scenario) -> None:
    """No violation in any seed, and the runs elected, crashed, committed and read."""
    totals = _run(scenario, range(SEEDS))
    assert _never(totals, scenario.minima) <= {*scenario.minima.faults}


def test_one_node_keeps_every_promise_under_faults() -> None:
    """A cluster of one loses nothing that it acknowledged, whenever the power fails."""
    totals = _run(ONE_NODE, range(10))
    assert not totals.too_little(ONE_NODE.minima)


def test_disks_that_are_lost_before_and_after_the_first_start_lose_nothing() -> None:
    """One node is started late, others are wiped and come back as if nothing were."""
    totals = _run(FIRST_START, range(SEEDS))
    assert _never(totals, FIRST_START.minima) == set()


def test_runs_that_did_too_little_do_not_pass() -> None:
    """Every scenario that minima are required of is refused when it did nothing."""
    idle = {name: Totals(seeds=10) for name in SCENARIOS}
    problems = judge(idle, SCENARIOS)
    for scenario in (*THREE_NODES, ONE_NODE, FIRST_START):
        assert any(f"{scenario.name}: commits: 0" in one for one in problems)
        assert any(f"{scenario.name}: no fault of kind crash" in one for one in problems)
    assert any(f"{REMOVALS.name}: deleted: 0" in one for one in problems)
    assert any(f"{KILLS.name}: no fault of kind preparing_1_of_3" in one for one in problems)
    assert len(judge({}, SCENARIOS)) >= len(SCENARIOS)


@pytest.mark.parametrize("kind", ["eio", "client_reset", "preparing_2_of_3", "replace"])
def test_a_kind_of_fault_that_never_happened_is_named(kind: str) -> None:
    """In a whole run of hundreds; a few seeds need not have had every kind."""
    wanted = {one for scenario in SCENARIOS.values() for one in scenario.weights}
    wanted |= {one for scenario in SCENARIOS.values() for one in scenario.minima.faults}
    faults = Counter(dict.fromkeys(wanted - {kind}, 1))

    def never(seeds: int) -> list[str]:
        each = -(-seeds // len(SCENARIOS))
        totals = {name: Totals(seeds=each, faults=faults) for name in SCENARIOS}
        return [one for one in judge(totals, SCENARIOS) if one.endswith("in any run")]

    assert never(ALL_SEEDS) == [f"no fault of kind {kind} in any run"]
    assert never(ALL_SEEDS // 2) == []


@pytest.mark.parametrize(
    ("how", "kind"), [("it raises", "X-RuntimeError"), ("nodes stay down", "L-node-down")]
)
def test_a_run_that_does_not_come_to_rest_is_judged_up_to_its_end(
    how: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is read or owned at the end nothing is said; what came first stands first."""

    def fail() -> None:
        raise RuntimeError

    def kinds() -> list[str]:
        world = Simulation(SDK_EAGER, 3)  # in which nobody owns what it is told too late
        if how == "it raises":
            world.schedule(9.0, fail)
        else:
            monkeypatch.setattr(world, "_restart", lambda *_: None)
        return list(dict.fromkeys(one.invariant for one in world.run().violations))

    assert kinds() == [kind]
    with BUILDS["eager_keeps"].installed():
        assert kinds() == ["I4", kind]


def test_what_was_deleted_stays_deleted_and_nothing_else_is_lost() -> None:
    """Groups and offsets go by an operator or with time, and groups come back.

    inv-I1, inv-I3: acknowledged commits stand unless deleted, deleted ones never come back,
    generations rise across deletion. Atomic and comparing commits, static members and ids that are
    handed out are among what is done.
    """
    totals = _run(REMOVALS, range(10, 10 + SEEDS))
    assert _never(totals, REMOVALS.minima) <= {"expired"}  # seed 15 has that: test_sdk_operator.py


def test_a_round_that_does_not_go_on_is_noticed() -> None:
    """The one that was open is lost by another round, another generation or another member."""
    opened = Open(7, "g", Phase.PREPARING_REBALANCE, 3, 2, frozenset({"a", "b"}))
    formed = GenerationFormed("g", 3, 3, "range", "a", ("a", "b"), 0)
    assert goes_on(opened, formed)
    assert not goes_on(opened, replace(formed, round=4))
    assert not goes_on(opened, replace(formed, member_ids=("a",)))
    awaited = replace(opened, phase=Phase.COMPLETING_REBALANCE, generation=3)
    assignments = (Assignment("a", b""), Assignment("b", b""))
    published = AssignmentPublished("g", 3, assignments)
    assert goes_on(awaited, published)
    assert not goes_on(awaited, replace(published, generation=4))
    assert not goes_on(awaited, formed)
    for event, lost in ((formed, 0), (RebalanceStarted("g", 4, 2, *[None] * 6), 1)):
        checker = ShardChecker(0, 3)
        phases = Phases(Simulation(KILLS, 0), checker)
        phases.open.append(opened)
        phases.check(8, event)
        assert [v.invariant for v in checker.violations] == ["H-round-lost"] * lost


def test_only_who_is_not_in_quarantine_may_take_a_state_that_differs() -> None:
    """Whoever else lags behind takes its leader's state, and differs then, too: no violation."""
    checker = ShardChecker(0, 5)
    checker.differs(3, 7)
    checker.applied(0, 1, 7, b"", b"right")
    checker.applied(3, 1, 7, b"", b"wrong")
    checker.reloaded(1, 7, b"wrong", snapshot=True)
    assert set(checker.differing) == {3, 1}
    assert checker.violations == []
    checker.turned(3, 1, _replica(distrusted=True), lambda *_: 5)
    checker.reloaded(3, 7, b"wrong", snapshot=True)
    assert set(checker.differing) == {1}, "what it has is noted again, and judged: I10"
    checker.reloaded(1, 7, b"right", snapshot=True)
    assert checker.differing == {}
    assert [(one.node, one.found) for one in checker.node_states] == [
        (3, "repaired"),
        (1, "repaired"),
    ]


def test_every_invariant_that_simulated_runs_judge_looks_at_something() -> None:
    """No other one does. A whole run in which one of them had nothing to look at is refused."""
    worlds = ("sdk-operated", 0), ("sdk-cooperative", 0), ("quarantine", 1), ("hung-disks", 1)
    totals = {name: Totals() for name in SCENARIOS}
    for job in worlds:
        totals[job[0]].add(run_one(job))
    assert {one for total in totals.values() for one in total.looked_at} == JUDGED
    totals["hung-disks"] = Totals(seeds=ALL_SEEDS)
    problems = [one for one in judge(totals, SCENARIOS) if one.endswith("to look at")]
    assert problems == ["I16 had nothing to look at"]


def test_no_disk_is_lost_but_of_a_minority_with_the_states_that_differ() -> None:
    """Unconfirmed copies count as well, but only while some state differs."""
    world = _differing(five=[None] * 5, wrong={3: 7})
    world.nodes[4].wrong_after = {0: 7}
    assert [number for number in range(5) if may_be_lost(world, number)] == [3, 4]
    world = _differing(five=[None, None, 0, 0, 0], wrong={})
    assert all(may_be_lost(world, number) for number in range(5))
    world = _differing(five=[None, None, None, None, 0], wrong={3: 7})
    assert [number for number in range(5) if may_be_lost(world, number)] == [3, 4]


def test_states_may_differ_for_good_only_where_the_right_ones_are_copies_and_all_say_so() -> None:
    """Not where one node's alert is off, or three of five are right of their own."""
    world = _differing(five=[None, 0, None, 0, None], wrong={4: 7})
    assert is_undecided(world, 0)
    world.nodes[1].sees_conflict = lambda _: False
    assert not is_undecided(world, 0)
    assert not is_undecided(_differing(five=[None, None, None, 0, None], wrong={4: 7}), 0)
    assert not is_undecided(_differing(five=[0] * 5, wrong={}), 0)


def _differing(five: list[int | None], wrong: dict[int, int]) -> Any:
    """Five nodes, of whose state each has a copy, and since when some differ."""
    nodes = [
        SimpleNamespace(
            number=number,
            wrong_after={},
            is_witness=lambda _, origin=origin: origin is None,
            sees_conflict=lambda _: True,
            replica=lambda _, origin=origin: SimpleNamespace(copy_of=origin),
        )
        for number, origin in enumerate(five)
    ]
    return SimpleNamespace(nodes=nodes, checkers=[SimpleNamespace(differing=wrong)])


def _replica(*, distrusted: bool) -> Any:
    return SimpleNamespace(role=Role.FOLLOWER, term=1, commit_index=0, distrusted=distrusted)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        *((one.name, 0) for one in FIVE_NODES),
        *((TWO_SHARDS.name, 2), ("replacements", 2), ("split-votes", 2)),
        *((KILLS.name, 1), (HAND_OVERS.name, 5)),
    ],
)
def test_other_clusters_keep_every_promise_under_faults(name: str, seed: int) -> None:
    """Five nodes, two shards on one disk, replaced nodes, split votes, kills in phases.

    These are seeds that `.ci/run` does not have in `make sim`. A coordinator dies with 2 of 3
    joined, after the group leader's sync, and in a commit; in seed 0, which `make sim` has, before
    the sync: the round that was open is the next to close, with the same members. Where it assigns,
    it dies in each phase of a hand-over but that of seed 0, in which grants are pushed and not
    read: nobody who stays loses a partition.
    """
    _run(SCENARIOS[name], range(seed, seed + 1))


def test_garbage_after_a_hello_and_dead_bulk_connections_harm_nobody() -> None:
    """Garbage and flipped bits end a connection, which comes back; control goes on beside bulk."""
    totals = _run(LANES, range(SEEDS))
    assert _never(totals, LANES.minima) == set()


def test_a_peer_that_takes_garbage_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads as a frame of no messages what is none, and leaves the connection open."""
    decode = codec.decode_frame

    def lenient(frame: bytes) -> tuple[codec.Sender, list[tuple[int, codec.Message]]]:
        try:
            return decode(frame)
        except codec.CodecError:
            return codec.Sender(0, 0, 0), []

    monkeypatch.setattr(codec, "decode_frame", lenient)
    kinds = [one.invariant for one in run_one((LANES.name, 0)).violations]
    assert kinds == ["S-garbage-taken"]


def test_a_checksum_that_nobody_looks_at_lets_replicas_diverge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the simulator flips bits where it matters, and its other checks see what comes of it."""

    def deliver(self: SimNode, src: int, frame: bytes, fault: str) -> None:
        try:
            self.running.receive(src, frame)
        except codec.CodecError:
            self.world.schedule(0.0, self.world.hang_up, src, self.number, fault)

    monkeypatch.setattr(SimNode, "_deliver_garbage", deliver)
    flips = replace(LANES, weights={"flipped_bit": 1}, pause_s=0.02)
    with BUILDS["frame_checksum"].installed():
        found = Simulation(flips, 0).run()
    assert "H-commit-divergence" in {one.invariant for one in found.violations}
    assert Simulation(flips, 0).run().violations == []


def test_a_peer_that_is_not_let_in_again_after_garbage_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever refuses every later hello of a peer that sent garbage once."""
    spoken: set[tuple[int, int]] = set()
    hang_up, greets = Simulation.hang_up, SimNode.greets

    def remember(self: Simulation, src: int, dst: int, fault: str) -> None:
        spoken.add((dst, src))
        hang_up(self, src, dst, fault)

    def unforgiving(self: SimNode, peer: SimNode) -> bool:
        return (self.number, peer.number) not in spoken and greets(self, peer)

    monkeypatch.setattr(Simulation, "hang_up", remember)
    monkeypatch.setattr(SimNode, "greets", unforgiving)
    assert "A-peer-shut-out" in {one.invariant for one in run_one((LANES.name, 0)).violations}


def test_a_dead_bulk_connection_carries_nothing_and_control_does() -> None:
    """In both directions, until its time is over or the world is healed."""
    clock, received = [0.0], []
    todo: list[tuple[Callable[..., None], tuple[object, ...]]] = []
    end = SimpleNamespace(
        alive=True,
        receive=lambda _src, frame: received.append(frame),
        greets=lambda _: True,
        connected=lambda _: None,
    )
    net = Network(
        "fifo",
        Random(1),
        lambda: clock[0],
        lambda _s, run, *a: todo.append((run, a)),
        [end, end],
        Counter(),
    )
    net.connect(0, 1)
    net.kill_bulk(0, 1, 2.0)

    def sent(frame: bytes, *, bulk: bool) -> bool:
        net.send(1, 0, frame, bulk=bulk)
        run, arguments = todo.pop()
        run(*arguments)
        return frame in received

    assert not sent(b"a", bulk=True)
    assert sent(b"b", bulk=False)
    assert net.counts["dead_bulk"] == 1
    clock[0] = 2.5
    assert sent(b"c", bulk=True)
    net.kill_bulk(0, 1, 2.0)
    net.heal()
    assert sent(b"d", bulk=True)


def _sizes(runs: list[Job]) -> dict[str, Totals]:
    """What is known of runs before they are run."""
    totals: dict[str, Totals] = {}
    for name, seed in runs:
        total = totals.setdefault(name, Totals())
        total.seeds += 1
        total.nodes[SCENARIOS[name].nodes_of(seed)] += 1
    return totals


def _said_of_sizes(totals: dict[str, Totals]) -> list[str]:
    return [one for one in judge(totals, SCENARIOS) if "nodes are too few" in one]


@pytest.mark.parametrize("seeds", [60, ALL_SEEDS])
def test_five_nodes_are_simulated_as_often_as_three(seeds: int) -> None:
    """Over all runs, and of every scenario whose size is the seed's, thinned or not."""
    totals = _sizes(jobs(seeds, ()))
    assert not _said_of_sizes(totals)
    by_seed = [name for name, one in SCENARIOS.items() if one.nodes == BY_SEED]
    assert len(by_seed) > len(SCENARIOS) / 2
    assert all(totals[name].nodes[size] for name in by_seed for size in (3, 5))


def test_runs_that_are_nearly_all_of_one_size_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario that is run on even seeds alone is named; so are all runs without five nodes."""
    monkeypatch.setitem(SCENARIOS, KILLS.name, replace(KILLS, every=10))
    totals = _sizes(jobs(ALL_SEEDS, ()))
    said = f"{KILLS.name}: runs on some number of nodes are too few: 40 on 3, 0 on 5 nodes"
    assert _said_of_sizes(totals) == [said]
    for five in (*FIVE_NODES, FORGETFUL[1]):
        totals[five.name] = Totals(seeds=ALL_SEEDS)
    assert any(one.startswith("runs on some number") for one in _said_of_sizes(totals))
    few = _sizes([(KILLS.name, 2 * seed) for seed in range(FAULT_SEEDS - 1)])
    assert not any("too few" in one for one in judge(few, [KILLS.name]))


def test_a_run_can_be_asked_for_with_its_number_of_nodes() -> None:
    """`WORLD@3:SEED` is the run of an even seed, and on an odd one what it was with three nodes."""
    same, other = run_one(("groups-blinks", 2)), run_one(("groups-blinks@3", 2))
    assert (same.nodes, same.events, same.counts) == (3, other.events, other.counts)
    assert run_one(("groups-blinks@3", 3)).nodes == 3
    assert run_one(("groups-blinks", 3)).nodes == 5
    for wrong in ("fifo3@5", "groups-blinks@4", "groups-blinks@", "nowhere@3", "nowhere"):
        with pytest.raises(KeyError):
            named(wrong)


@pytest.mark.parametrize(
    "scenario", [RETURNING, BLINKS, STALLS, STANDSTILL], ids=lambda scenario: scenario.name
)
def test_nobody_suffers_from_what_nobody_may_suffer_from(scenario: Scenario) -> None:
    """No leader falls over followers that come back or links that break, no session over a jam."""
    totals = _run(scenario, range(SEEDS))
    assert _never(totals, scenario.minima) == set()


def test_one_seed_is_one_run() -> None:
    """The same seed gives the same run, event for event."""
    first = Simulation(THREE_NODES[2], 7).run()
    again = Simulation(THREE_NODES[2], 7).run()
    assert (first.events, first.counts, first.faults) == (again.events, again.counts, again.faults)
