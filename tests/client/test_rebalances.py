"""A round in one sentence: who, why, how long, who held it up."""

import pytest

from muster import GroupIdNotFound
from muster.admin.rebalances import Rebalance, rebalances_of
from muster.v1.admin_pb2 import DescribeRebalancesResponse as Response
from muster.v1.log_pb2 import RemovalCause, Trigger


def who(member_id, instance_id=""):
    """A member of client c."""
    return Response.Who(member_id=member_id, client_id="c", group_instance_id=instance_id)


def names(enum):
    """Its values, without the one that says nothing."""
    return [value.name for value in enum.DESCRIPTOR.values if value.number]


def delay(how, member_id, after_ms, instance_id=""):
    """Somebody who held it up."""
    return Response.Delay(how=how, who=who(member_id, instance_id), after_ms=after_ms)


def read(**more) -> Rebalance:
    """One round, as a client reads it."""
    fields = {
        "round": 2,
        "started_wall_ms": 5,
        "generation": 2,
        "trigger": "member_joined",
        "culprit": who("m3"),
        "members_before": 2,
        "members_after": 3,
        "joining_ms": 250,
        "syncing_ms": 40,
        "ended": "stable",
        "leader": who("m1"),
    }
    message = Response.Rebalance(**{k: v for k, v in (fields | more).items() if v is not None})
    (one,) = rebalances_of(Response(rebalances=[message]))
    return one


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"delays": [delay("last_to_join", "m1", 250), delay("assignment", "m1", 40)]},
            (
                "m3 joined: 2 -> 3 members; waited 250 ms for m1 to join; "
                "40 ms for the assignment of m1"
            ),
        ),
        (
            {"initial": True, "joining_ms": 1_000, "delays": [delay("last_to_join", "m1", 400)]},
            (
                "m3 joined: 2 -> 3 members; waited 1.0 s for whoever else would come; "
                "40 ms for the assignment of m1"
            ),
        ),
        (
            {
                "trigger": "session_expiry",
                "reason": "silent",
                "joining_ms": 60_000,
                "missing_members": 9,
                "delays": [
                    delay("left", "m5", 100),
                    delay("not_rejoined", "m4", 60_000, "rack-4"),
                    delay("last_to_join", "m1", 90),
                ],
            },
            (
                "m3 fell silent (silent): 2 -> 3 members; waited 60.0 s for rack-4, which did not "
                "rejoin (and 8 more); 40 ms for the assignment of m1"
            ),
        ),
        (
            {
                "missing_members": 1,
                "delays": [delay("left", "m5", 100), delay("last_to_join", "m1", 250)],
            },
            (
                "m3 joined: 2 -> 3 members; waited 250 ms for m1 to join; without m5, which left; "
                "40 ms for the assignment of m1"
            ),
        ),
        (
            {"joining_ms": 7, "syncing_ms": None, "ended": "open", "trigger": "leader_rejoined"}
            | {"awaited_members": 10, "delays": [delay("awaited", f"m{n}", 7) for n in range(8)]},
            (
                "the group leader m3 asked for a new assignment: 2 -> 3 members; "
                "waits for m0 (and 9 more) to join, for 7 ms now"
            ),
        ),
        (
            {"joining_ms": 7, "syncing_ms": None, "ended": "open", "initial": True},
            "m3 joined: 2 -> 3 members; waits for whoever else will come to join, for 7 ms now",
        ),
        (
            {"joining_ms": 0, "ended": "open", "culprit": who("m3", "i"), "leader": who("m1", "j")},
            "i joined: 2 -> 3 members; waits for the assignment of j, for 40 ms now",
        ),
        (
            {"joining_ms": 0, "ended": "superseded", "missing_members": 1}
            | {"delays": [delay("not_synced", "m1", 40)]},
            "m3 joined: 2 -> 3 members; the assignment of m1 had not come after 40 ms",
        ),
        (
            {"joining_ms": 0, "missing_members": 1, "delays": [delay("not_synced", "m2", 90)]},
            "m3 joined: 2 -> 3 members; 40 ms for the assignment of m1; m2 did not sync",
        ),
        (
            {"trigger": "member_left", "members_after": 0, "joining_ms": 0, "syncing_ms": None}
            | {"ended": "emptied"},
            "m3 left: 2 -> 0 members",
        ),
        (
            {"trigger": "topics_changed", "culprit": None, "joining_ms": 0},
            "topics changed: 2 -> 3 members; 40 ms for the assignment of m1",
        ),
    ],
)
def test_a_round_reads_as_a_sentence(more, sentence):
    """The longest wait is the one that is told."""
    assert read(**more).sentence == sentence


@pytest.mark.parametrize("trigger", names(Trigger))
def test_every_trigger_has_words(trigger):
    """None is printed as an identifier."""
    assert "_" not in read(trigger=trigger.lower()).sentence


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"moved_partitions": {"balance": 2, "new": 1}, "moves": []},
            (
                "m3 joined: 2 -> 3 members; moves 2 (balance), 1 (new); planned after 250 ms; "
                "everybody had it 40 ms later"
            ),
        ),
        (
            {
                "ended": "open",
                "syncing_ms": 1500,
                "awaited_members": 2,
                "delays": [delay("awaited", "m7", 5)],
            },
            (
                "m3 joined: 2 -> 3 members; nothing moves; planned after 250 ms; "
                "waits for m7 (and 1 more) to release partitions, for 1.5 s now"
            ),
        ),
        (
            {"ended": "open", "generation": 0, "syncing_ms": None},
            "m3 joined: 2 -> 3 members; the plan is due, for 250 ms now",
        ),
        (
            {
                "ended": "superseded",
                "missing_members": 2,
                "delays": [delay("not_released", "m3", 0), delay("not_back", "m9", 0)],
            },
            (
                "m3 joined: 2 -> 3 members; without m9, which was away, and not back in time; "
                "nothing moves; planned after 250 ms; another plan was due 40 ms later"
            ),
        ),
        (
            {"ended": "emptied", "joining_ms": None, "syncing_ms": None},
            "m3 joined: 2 -> 3 members",
        ),
        (
            {"ended": "emptied", "trigger": "session_expiry", "reason": "was not back"},
            "m3 was removed (was not back): 2 -> 3 members",
        ),
    ],
)
def test_a_plan_reads_as_a_sentence(more, sentence):
    """What it moves and why, when it was made, and when everybody had it."""
    assert read(planned=True, **more).sentence == sentence


@pytest.mark.parametrize("cause", names(RemovalCause))
def test_every_cause_of_a_removal_is_told(cause):
    """Somebody who was missing is named, whatever the cause."""
    missing = {"missing_members": 1, "delays": [delay(cause.lower(), "m9", 250)]}
    assert "m9" in read(**missing).sentence


def test_what_is_not_known_is_none():
    """Nobody caused it, nobody led it, it never came to syncing."""
    one = read(culprit=None, leader=None, joining_ms=None, syncing_ms=None, ended="open")
    assert (one.culprit, one.leader, one.joining_ms, one.syncing_ms) == (None, None, None, None)
    assert one.sentence.startswith("member joined: ")


async def test_the_test_cluster_tells_why_a_group_rebalanced(open_cluster):
    """As the server does: who caused each round and how it ended, the newest first."""
    async with open_cluster(1) as (_, client):
        with pytest.raises(GroupIdNotFound):
            await client.rebalances("g")
        async with client.group("g", ["t"]) as first:
            first_id = (await first.next_assignment()).member_id
            async with client.group("g", ["t"]) as second:
                second_id = (await second.next_assignment()).member_id
                await first.next_assignment()
                newest, oldest = await client.rebalances("g")
                told = (oldest.trigger, oldest.culprit.member_id, oldest.ended, oldest.initial)
                assert told == ("member_joined", first_id, "stable", True)
                assert newest.culprit.member_id == second_id
                assert (newest.members_before, newest.members_after) == (1, 2)
                assert newest.new_member_ids == (second_id,)
                assert newest.leader.member_id == first_id
                assert {delay.how for delay in newest.delays} == {"last_to_join", "assignment"}
                assert newest.generation == newest.from_generation + 1
                assert f"{second_id} joined (first join): 1 -> 2 members" in newest.sentence
            await first.next_assignment()
            left = (await client.rebalances("g", 1))[0]
            assert (left.trigger, left.culprit.member_id) == ("member_left", second_id)
            await client.kick_members("g", [first_id], reason="test")
            rounds = await client.rebalances("g")  # the member may have joined again by now
            kicked = next(one for one in rounds if one.trigger == "member_kicked")
            assert kicked.reason == "kicked by operator: test"
