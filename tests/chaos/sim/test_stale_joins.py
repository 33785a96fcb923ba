"""A Join that a proxy delivers again in a later round: the one overlap of owners that is excused.

In each world here member a holds partition 0 since generation 1, and generation 2 gives it to b.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from muster.net.calls import JOIN
from muster.v1 import group_pb2
from musterd.chaos.check import tokens
from musterd.chaos.history import Key, Outcome
from musterd.chaos.mutants.builds import BUILDS
from musterd.chaos.sim.checks.applied import Applied
from musterd.chaos.sim.checks.group_history import GroupHistory, judge, recorder
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.checks.stale_joins import NOTHING, StaleJoins
from musterd.chaos.sim.engine.rpc import PROXY_HOST
from musterd.chaos.sim.run import describe
from musterd.chaos.sim.scenario import NO_CLIENT_FAULTS
from musterd.chaos.sim.sdk_scenarios import SDK_COOPERATIVE
from musterd.chaos.sim.simulation import Simulation
from musterd.coordinator.api.rpcs import translate
from musterd.coordinator.machine.commands import Command
from musterd.coordinator.machine.events import (
    Event,
    GenerationFormed,
    MemberJoined,
    MemberRejoined,
    MemberRemoved,
    RemovalCause,
)
from musterd.coordinator.machine.shard_state import CommandResult

ITSELF = "10.9.0.1"


class World:
    """One group as its log tells of it, and what its members know."""

    def __init__(self) -> None:
        self.knows: dict[str, int] = {}
        self.checker = ShardChecker(0, 3)
        stale = StaleJoins(lambda _group, member: self.knows.get(member, NOTHING))
        self.owners = GroupHistory(self.checker, recorder(lambda: 0.0), stale)
        self._index = 0

    def sends(self, member: str, claim: bytes, instance: str = "") -> bytes:
        """A member sends a Join."""
        request = group_pb2.JoinGroupRequest(
            group_id="g",
            member_id=member,
            client_id=member,
            group_instance_id=instance,
            protocols=[group_pb2.JoinGroupRequest.Protocol(name="range", metadata=claim)],
        ).SerializeToString()
        self.owners.stale.sent(request)
        return request

    def counts(self, request: bytes, host: str = ITSELF) -> None:
        """A Join is applied and counts in the open round."""
        message = group_pb2.JoinGroupRequest.FromString(request)
        command = translate.join(message, host, "0" * 32)
        joined = MemberRejoined("g", command.member_id, 1, 1, command.protocols, (), 1)
        self.apply((joined,), command)

    def forms(self, generation: int, members: tuple[str, ...] = ("a", "b")) -> None:
        """A round ends."""
        formed = GenerationFormed("g", generation, generation, "range", "b", members, 0)
        self.apply((formed,))

    def apply(self, events: Iterable[Event], command: Command | None = None) -> None:
        """A node applies an entry."""
        self._index += 1
        result = CommandResult(command, tuple(events), None, ())  # type: ignore[arg-type]
        self.owners.watch(Applied(0, None, self._index, None, (result,)))  # type: ignore[arg-type]

    def first_round(self, *members: str) -> dict[str, bytes]:
        """Generation 1, of a, b and others, who know of it; what each of them sent for it."""
        names = ("a", "b", *members)
        requests = {name: self.sends(name, b"nothing") for name in names}
        for request in requests.values():
            self.counts(request)
        self.forms(1, names)
        self.knows = dict.fromkeys(names, 1)
        self.owners.take(Key("g", "t", 0), "a", 1, "pa", 1)
        return requests

    def gives_away(self, generation: int = 2, partition: int = 0) -> list[str]:
        """Member b is told that a's partition is its own; what the checker says of it."""
        self.knows["b"] = generation
        self.owners.take(Key("g", "t", partition), "b", generation, "pb", generation)
        return self.kinds()

    def kinds(self) -> list[str]:
        """What the checkers say of all of it; called once, at the end."""
        self.owners.finished()
        return sorted({one.invariant for one in judge(self.owners.log, Counter(), is_read=False)})


def overlapped() -> World:
    """A copy of a's Join for generation 1 came in the round of generation 2."""
    world = World()
    requests = world.first_round()
    world.counts(requests["a"], PROXY_HOST)
    world.forms(2)
    return world


def test_a_join_of_an_earlier_round_that_comes_again_excuses_an_overlap_and_is_counted() -> None:
    """It is the last thing that a sent, and older than what a holds: nobody can tell."""
    world = overlapped()
    assert world.gives_away() == []
    assert world.checker.counts.stale_join == 1


def test_a_join_that_comes_again_after_the_one_sent_for_this_round_excuses_too() -> None:
    """What a says now counted first, and the old claim took its place."""
    world = World()
    requests = world.first_round()
    world.counts(world.sends("a", b"partition 0"))
    world.counts(requests["a"], PROXY_HOST)
    world.forms(2)
    assert world.gives_away() == []
    assert world.checker.counts.stale_join == 1


def test_it_excuses_also_where_the_later_owner_is_told_first() -> None:
    """Member a is told of generation 1 after b was told of generation 2."""
    world = overlapped()
    world.owners.drop(Key("g", "t", 0), "pa", "revoked")
    world.owners.take(Key("g", "t", 0), "b", 2, "pb", 2)
    world.owners.take(Key("g", "t", 0), "a", 1, "pa", 1)
    assert world.kinds() == []
    assert world.checker.counts.stale_join == 1


def static(*, claims: bool) -> World:
    """Member a is static. It joined for generation 1 before it held anything, and again, or not.

    Then it misses the round of generation 2, which gives its partition away.
    """
    world = World()
    requests = {"a": world.sends("a", b"nothing", "i"), "b": world.sends("b", b"nothing")}
    for request in requests.values():
        world.counts(request)
    world.forms(1)
    world.knows = {"a": 1, "b": 1}
    world.owners.take(Key("g", "t", 0), "a", 1, "pa", 1)
    if claims:
        world.counts(world.sends("a", b"partition 0", "i"))
    world.counts(world.sends("b", b"nothing"))
    if claims:
        world.forms(2)
    return world


def test_a_static_member_that_missed_the_round_is_overlapped() -> None:
    """The group keeps it with what it said before it held the partition (sc-S25)."""
    world = static(claims=False)
    world.forms(2)
    assert world.gives_away() == []
    assert world.checker.counts.stale_join == 1


def test_a_static_member_whose_claim_the_group_has_is_not_overlapped() -> None:
    """It said what it holds, for generation 2, and misses that of generation 3."""
    world = static(claims=True)
    world.counts(world.sends("b", b"nothing"))
    world.forms(3)
    assert world.gives_away(3) == ["I4"]


def test_a_member_that_is_not_static_and_missed_the_round_is_not_excused() -> None:
    """The group has to remove it."""
    world = World()
    world.first_round()
    world.counts(world.sends("b", b"nothing"))
    world.forms(2)
    assert world.gives_away() == ["I4"]


def test_a_copy_of_what_the_member_would_still_say_does_not_excuse() -> None:
    """The claim was sent for this round: the group gave away what it was told of."""
    world = World()
    world.first_round()
    world.counts(world.sends("a", b"partition 0"), PROXY_HOST)
    world.forms(2)
    assert world.gives_away() == ["I4"]


def test_the_same_bytes_sent_again_for_this_round_do_not_excuse() -> None:
    """Members that claim nothing say the same in every round: the copy may be of the last one."""
    world = World()
    requests = world.first_round()
    assert world.sends("a", b"nothing") == requests["a"]
    world.counts(requests["a"], PROXY_HOST)
    world.forms(2)
    assert world.gives_away() == ["I4"]


def test_an_old_join_that_no_proxy_delivered_does_not_excuse() -> None:
    """The member's own connection: it or its node did that."""
    world = World()
    requests = world.first_round()
    world.counts(requests["a"])
    world.forms(2)
    assert world.gives_away() == ["I4"]


def test_a_join_that_comes_again_before_the_members_own_does_not_excuse() -> None:
    """What counted when the generation was formed is what a says now."""
    world = World()
    requests = world.first_round()
    world.counts(requests["a"], PROXY_HOST)
    world.counts(world.sends("a", b"partition 0"))
    world.forms(2)
    assert world.gives_away() == ["I4"]


def test_what_nobody_ever_sent_does_not_excuse() -> None:
    """Its bytes are none of a's."""
    world = World()
    requests = world.first_round()
    message = group_pb2.JoinGroupRequest.FromString(requests["a"])
    message.session_timeout_ms = 1
    world.counts(message.SerializeToString(), PROXY_HOST)
    world.forms(2)
    assert world.gives_away() == ["I4"]


def test_an_old_join_of_another_member_does_not_excuse() -> None:
    """The claim of c was old, and a's partition was given away."""
    world = World()
    requests = world.first_round("c")
    world.counts(requests["c"], PROXY_HOST)
    world.forms(2, ("a", "b", "c"))
    assert world.gives_away() == ["I4"]


def test_it_does_not_excuse_what_another_generation_gives_away() -> None:
    """Its own Join counts in generation 3, which it does not know yet."""
    world = overlapped()
    world.counts(world.sends("a", b"partition 0"))
    world.forms(3)
    assert world.gives_away(3) == ["I4"]


def test_it_does_not_excuse_a_partition_given_to_two_in_one_generation() -> None:
    """Member a was given partition 1 by generation 2, old claim or not."""
    world = overlapped()
    world.knows["a"] = 2
    world.owners.take(Key("g", "t", 1), "a", 2, "pa", 2)
    assert world.gives_away(2, partition=1) == ["I4", "I5"]


def test_a_member_that_knows_the_generation_has_yet_to_give_up_what_moves() -> None:
    """While it does so the cause is the same; once it knows the next generation it is not."""
    for knows, kinds in ((2, []), (3, ["I4"])):
        world = overlapped()
        world.forms(3)
        world.knows["a"] = knows
        assert world.gives_away() == kinds


def test_a_copy_of_the_present_claim_does_not_excuse_a_member_that_knows_the_generation() -> None:
    """Its claim was sent in generation 1, and generation 2 was formed on it."""
    world = World()
    world.first_round()
    world.counts(world.sends("a", b"partition 0"), PROXY_HOST)
    world.forms(2)
    world.knows["a"] = 2
    assert world.gives_away() == ["I4"]


def test_an_old_join_excuses_the_generation_alone_of_whose_round_it_was() -> None:
    """A static member joined by a copy, its own Join was lost, and is kept without another."""
    world = World()
    world.counts(world.sends("a", b"nothing"), PROXY_HOST)
    world.forms(1)
    world.knows["a"] = 1
    world.owners.take(Key("g", "t", 0), "a", 1, "pa", 1)
    world.forms(2)
    assert world.gives_away() == ["I4"]


def test_one_that_was_removed_and_is_back_is_not_excused_by_what_came_before() -> None:
    """The old claim went with the old membership."""
    world = overlapped()
    world.apply((MemberRemoved("g", "a", RemovalCause.SESSION_EXPIRED, "", 0),))
    again = MemberJoined("g", "a", "a", ITSELF, 1, 1, "", (), (), 1)
    world.apply((again,))
    assert world.gives_away() == ["I4"]


@pytest.mark.parametrize(
    ("member", "partition", "generation", "token", "kinds"),
    [("a", 0, 2, 1, ["I6"]), ("a", 0, 3, 3, []), ("a", 1, 2, 1, []), ("b", 0, 2, 2, [])],
)
def test_who_was_overlapped_may_not_commit_until_it_knows_a_later_generation(
    member: str, partition: int, generation: int, token: int, kinds: list[str]
) -> None:
    """inv-I6, by the token: only the partition that was given away."""
    owners, keys = overlapped().owners, [Key("g", "t", 0), Key("g", "t", 1)]
    owners.take(keys[1], "a", 1, "pa", 1)
    owners.take(keys[0], "b", 2, "pb", 2)
    number = owners.began(f"p{member}", "commit", keys[partition], 7, member_id=member, token=token)
    owners.log.end(number, Outcome.OK, generation=generation)
    owners.finished()
    assert [one.invariant for one in judge(owners.log, Counter(), is_read=False)] == kinds


SEED = 2
"""In about every second one it is in a commit that it stands still."""


class Proxied:
    """A world without a fault, but that one member stands still and its last Join comes again.

    Meanwhile another member comes, and the round waits for nobody else.
    """

    def __init__(self) -> None:
        nothing = NO_CLIENT_FAULTS
        calm = replace(SDK_COOPERATIVE, members=4, weights={}, life_s=0.0, client_faults=nothing)
        self.simulation = Simulation(calm, SEED)
        self._joins: dict[str, bytes] = {}
        members = self.simulation.members
        assert members is not None
        assert members.net is not None
        self._members, self._net = members, members.net
        self._net.watches.append(self._sent)
        self.simulation.schedule(5.0, self._strike)

    def _sent(self, path: str, request: bytes) -> None:
        if path == JOIN.path:
            self._joins[group_pb2.JoinGroupRequest.FromString(request).client_id] = request

    def _strike(self) -> None:
        world = self.simulation
        worker = next(
            one
            for one in self._members.workers
            if one.member_id and not one._group._machine.assignment.is_group_leader
        )
        worker.process.paused_until_s = world.now + 0.8
        self._members._bear(0, worker.group_id)
        join = self._joins[worker.process.name]
        for node in range(len(world.nodes)):
            world.schedule(0.4, self._net._arrive_again, node, JOIN.path, join)


def test_a_member_whose_old_join_came_again_is_overlapped_and_nothing_else_goes_wrong() -> None:
    """Its partition is given away while it stands still, and what it commits is refused."""
    result = Proxied().simulation.run()
    assert not result.violations, "\n".join(describe(result))
    assert result.counts.stale_join


@pytest.mark.parametrize("other_half", [True, False])
def test_a_coordinator_that_takes_commits_of_any_generation_is_caught_there(
    other_half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """inv-I6: what the member commits that was overlapped, by its token alone as well."""
    if not other_half:
        monkeypatch.setattr(tokens, "_look", lambda *_: None)
    with BUILDS["generation_fence"].installed():
        result = Proxied().simulation.run()
    assert "I6" in {one.invariant for one in result.violations}
