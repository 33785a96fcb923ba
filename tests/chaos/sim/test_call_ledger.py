"""Calls without an answer: what may be waited for is no violation, what gets lost is one."""

from ast import literal_eval
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest

from musterd.chaos.sim.checks.call_ledger import LOOK_S, AccountedShard, Place
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.coordinator.machine.commands import Command, CreateTopic
from musterd.coordinator.machine.replies import Joined, Synced
from musterd.coordinator.runtime.answers import NotHere
from musterd.coordinator.runtime.deposed_calls import DeposedCalls
from musterd.coordinator.runtime.proposer import Proposer
from musterd.coordinator.runtime.waiters import Waiters
from tests.coordinator.fakes import Rig, commit, id_of, join, sync


class World:
    """The clock of a simulation, and what it has to do later."""

    def __init__(self) -> None:
        self.now = 0.0
        self._later: list[tuple[float, Callable[..., None], tuple[object, ...]]] = []

    def schedule(self, delay_s: float, run: Callable[..., None], *args: object) -> None:
        self._later.append((self.now + delay_s, run, args))

    def run(self, seconds: float) -> None:
        """Everything that is due within so long."""
        end_s = self.now + seconds
        while due := [item for item in self._later if item[0] <= end_s]:
            first = min(due, key=lambda item: item[0])
            self._later.remove(first)
            self.now = first[0]
            first[1](*first[2])
        self.now = end_s


class Watched:
    """A shard that leads, and the checker of its calls."""

    def __init__(self) -> None:
        self.world = World()
        self.checker = ShardChecker(0, 3)
        self.node = SimpleNamespace(
            world=self.world, number=0, incarnation=1, alive=True, awake_s=-9.0, paused_until_s=-9.0
        )
        self.rig = Rig(make_shard=partial(AccountedShard, node=self.node, checker=self.checker))
        self.rig.log.lead()
        self.rig.turn()

    def kinds(self) -> list[tuple[str, str]]:
        return [(v.invariant, literal_eval(v.what)["place"]) for v in self.checker.violations]

    def look(self) -> list[tuple[str, str]]:
        """Three looks; what was found then."""
        self.world.run(3 * LOOK_S)
        return self.kinds()

    def generation(self) -> None:
        """`a` and `b` are in generation 1, whose assignment nobody has sent; `a` leads it."""
        for member in "ab":
            self.rig.ask(f"join {member}", join(member))
        self.rig.run(1_500)
        assert self.rig.shard.state.groups["g"].generation == 1
        assert self.kinds() == []


@pytest.fixture
def watched() -> Watched:
    """A shard of its own."""
    return Watched()


LOST = [("A-call-forgotten", Place.NOWHERE.value)]
OVER = [("A-parked-call-forgotten", Place.OVER.value)]


def left(place: Place) -> list[tuple[str, str]]:
    """What is found of a call that stays where it need not."""
    return [("A-call-left-waiting", place.value)]


def test_a_join_behind_the_formation_waits_for_the_next_generation(watched: Watched) -> None:
    """It comes before the generation forms, opens the next round, and is answered by that one."""
    watched.generation()
    rig = watched.rig
    rig.ask("again a", join("a", metadata=b"m2"))
    rig.turn()
    rig.ask("again b", join("b"))  # ends the round
    rig.ask("late a", join("a", metadata=b"m3"))  # behind it: opens another
    rig.turn()
    assert isinstance(rig.answers["again b"], Joined)
    assert rig.answers["again b"].generation == rig.answers["again a"].generation == 2
    assert watched.look() == []
    assert "late a" not in rig.answers
    rig.ask("last b", join("b"))
    rig.turn()
    assert rig.answers["late a"].generation == 3
    assert watched.look() == []


def test_a_join_that_no_formation_answers_is_noticed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: the round that it was parked for is over."""
    monkeypatch.setattr(Waiters, "consume", lambda *_: None)
    rig = watched.rig
    rig.ask("a", join("a"))
    rig.run(1_500)
    assert rig.shard.state.groups["g"].generation == 1
    assert watched.kinds() == OVER


def test_a_sync_that_no_assignment_answers_is_noticed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parked until its leader's comes; after that nothing else would answer it."""
    watched.generation()
    rig = watched.rig
    rig.ask("sync b", sync("b", 1))
    rig.turn()
    assert watched.look() == []
    monkeypatch.setattr(Waiters, "consume", lambda *_: None)
    rig.ask("sync a", sync("a", 1, {"a": b"1", "b": b"2"}))
    rig.turn()
    assert watched.kinds() == OVER


def test_calls_that_are_answered_leave_nothing(watched: Watched) -> None:
    """A whole round, commits, and an early refusal that a quorum confirms."""
    watched.generation()
    rig = watched.rig
    rig.ask("sync b", sync("b", 1))
    rig.ask("sync a", sync("a", 1, {"a": b"1", "b": b"2"}))
    rig.ask("commit", commit("a", 1, 7))
    rig.turn()
    rig.ask("old", commit("a", 4, 7))
    rig.log.run()
    assert isinstance(rig.answers["sync b"], Synced)
    assert {"commit", "old"} <= set(rig.answers)
    assert watched.look() == []


@pytest.mark.parametrize("command", [join("a"), CreateTopic("t", 1)], ids=["join", "topic"])
def test_a_call_that_nobody_keeps_is_noticed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """A Join, and as well what is no group's: somebody waits for it."""
    monkeypatch.setattr(Proposer, "offer", lambda *_: None)
    watched.rig.ask("call", command)
    assert watched.look() == LOST


def test_a_seat_whose_longest_park_does_not_run_is_none(watched: Watched) -> None:
    """Nobody would let go of whoever sits there."""
    rig = watched.rig
    rig.ask("a", join("a"))
    rig.turn()
    assert watched.kinds() == []
    rig.waiters._ends_ms.clear()
    assert watched.look() == LOST


def test_a_round_that_its_timer_does_not_close_is_noticed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deadline has passed in shard time, a quorum is heard, and nothing is under way."""
    monkeypatch.setattr(watched.rig.shard.sessions, "rounds_due", lambda *, many_joins: [])
    watched.rig.ask("a", join("a"))
    watched.rig.run(1_500)
    watched.rig.log.quorum_heard = False
    assert watched.look() == []
    watched.rig.log.quorum_heard = True
    assert watched.look() == left(Place.PARKED)


def test_a_quorum_that_is_heard_and_confirms_nothing_is_noticed(watched: Watched) -> None:
    """Without a quorum, and while the process slept, a call may wait for it."""
    watched.generation()
    rig = watched.rig
    rig.ask("old", commit("a", 4, 7))
    assert "old" not in rig.answers
    rig.log.quorum_heard = False
    assert watched.look() == []
    rig.log.quorum_heard = True
    watched.node.awake_s = watched.world.now + 3 * LOOK_S
    assert watched.look() == []
    assert watched.look() == left(Place.AT_QUORUM)


def test_a_queue_that_no_entry_takes_is_noticed(watched: Watched) -> None:
    """No turn comes, though entries could be made."""
    watched.rig.ask("a", join("a"))
    assert watched.look() == left(Place.QUEUED)


def test_a_deposed_call_is_told_soon_who_leads(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was parked or under way at a demotion is answered within moments, or it is noticed."""
    rig = watched.rig
    rig.ask("a", join("a"))
    rig.turn()
    rig.log.follow()
    rig.run(300)
    assert isinstance(rig.answers["a"], NotHere)
    assert watched.look() == []
    rig.log.lead()
    rig.turn()
    rig.ask("again", join("a", member_id=id_of("a")))
    rig.turn()
    monkeypatch.setattr(DeposedCalls, "turn", lambda *_: None)
    rig.log.follow()
    assert watched.look() == left(Place.DEPOSED)


def test_what_a_dead_process_owed_is_owed_no_more(watched: Watched) -> None:
    """Its callers have lost their connections."""
    watched.rig.ask("a", join("a"))
    watched.rig.proposer._queue.clear()
    watched.node.alive = False
    assert watched.look() == []
