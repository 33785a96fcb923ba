"""inv-I7, inv-I10, inv-I11, inv-I14, inv-I15, inv-I16, and the list of all."""

import re
from pathlib import Path

import pytest

from musterd.chaos.check import CHECKERS, check_all, digests, disks, minority, stores
from musterd.chaos.history import (
    Checkpoint,
    Key,
    NodeState,
    Outcome,
    Replayed,
    Round,
    Side,
    StoreWrite,
)
from tests.chaos.check.made import KEY, OTHER, S, commit, history, only, op, owns, read, told

# -- inv-I7


def write(token, at, client="a", sequence=0, accepted=True, fenced=True, key=KEY):
    """A store's decision."""
    return StoreWrite(client, key, token, sequence or at, at * S, accepted, fenced)


def test_a_store_whose_tokens_rise_passes_and_tells_what_the_fence_prevents():
    """What the unfenced one took of stale writes is information."""
    verdict = stores.check(
        history(
            store_writes=[
                write(1, 0),
                write(1, 1),
                write(2, 2, "b"),
                write(1, 3, accepted=False),
                write(2, 2, "b", fenced=False),
                write(1, 3, fenced=False),
                write(1, 5, key=OTHER),
            ],
            ownerships=[owns("a", 1, 0, None), owns("b", 2, 2, None)],
        )
    )
    assert verdict.passed
    assert verdict.counts == {"refused": 1, "unfenced": 2, "stale": 1}
    assert verdict.looked_at == 4
    assert verdict.note == (
        "the fenced store refused 1 stale writes; the one without a fence took 1 stale ones of 2"
    )


def test_a_stale_write_that_the_fenced_store_took_is_told():
    """Its token is below one that the store had seen."""
    made = history(store_writes=[write(2, 1, "b"), write(1, 2, "a")])
    assert only(stores.check(made)) == (
        "g/t/0: write 2 of a under token 1 (+1.000000 s) was accepted after "
        "write 1 of b under token 2 (+0.000000 s)"
    )


def test_a_fenced_store_that_refuses_what_is_not_stale_is_told():
    """Else a store that is shut would pass."""
    after = [owns("b", 3, 0, None)]
    assert "was refused, and was the first" in only(
        stores.check(history(store_writes=[write(1, 1, accepted=False)], ownerships=after))
    )
    refused = [write(1, 1), write(2, 2, accepted=False)]
    made = history(store_writes=refused, ownerships=after)
    assert "was refused, and no later token was there" in only(stores.check(made))


def test_two_clients_under_one_token_are_told():
    """The store cannot tell them apart; whoever hands tokens out must."""
    made = history(store_writes=[write(1, 1, "a"), write(2, 2, "b"), write(2, 3, "a")])
    assert only(stores.check(made)) == (
        "g/t/0: write 3 of a under token 2 (+2.000000 s) has the token of "
        "write 2 of b under token 2 (+1.000000 s)"
    )


def test_an_owner_that_nobody_followed_and_whose_token_is_refused_is_told():
    """It was given a lower token than somebody before it, or somebody else a higher one."""
    writes = [write(5, 1, "b"), write(4, 3, "a", accepted=False)]
    before = [owns("b", 3, 0, 2), owns("a", 4, 2, None)]
    made = history(store_writes=writes, ownerships=before)
    assert "nobody had been given the partition with a later token" in only(stores.check(made))
    late = history(store_writes=writes, ownerships=[*before, owns("b", 5, 4, None)])
    assert not stores.check(late).passed


def test_a_refused_process_was_followed_by_one_with_a_later_token_in_its_generation():
    """Two processes of one static member: the number of their generation says nothing."""
    writes = [write(4, 1, "a1"), write(5, 3, "a2"), write(4, 4, "a1", accepted=False)]
    before = [
        owns("a1", 4, 0, 5, "lost", instance_id="i", token=4),
        owns("a2", 4, 2, None, instance_id="i", token=5),
    ]
    assert stores.check(history(store_writes=writes, ownerships=before)).passed
    alone = history(store_writes=writes, ownerships=before[:1])
    assert "nobody had been given the partition with a later token" in only(stores.check(alone))


def test_the_writes_of_one_client_under_one_token_that_change_places_are_told():
    """A fence does not keep a duplicate out: the store's log shows it."""
    made = history(store_writes=[write(1, 1, sequence=2), write(1, 2, sequence=1)])
    assert "was accepted after its own write 2" in only(stores.check(made))


def test_an_unfenced_store_alone_shows_nothing():
    """It has not passed; what it took is counted by what it had seen itself."""
    taken = [write(2, 0, "b", fenced=False), write(1, 1, fenced=False)]
    verdict = stores.check(history(store_writes=taken))
    assert not verdict.passed
    assert "the one without a fence took 1 stale ones of 2" in verdict.note


# -- inv-I10 and inv-I11


def test_equal_digests_at_equal_places_pass():
    """Places at which one node alone was asked are not counted."""
    verdict = digests.check_nodes(
        history(
            checkpoints=[
                Checkpoint(0, 1, 10, "a"),
                Checkpoint(1, 1, 10, "a"),
                Checkpoint(0, 1, 20, "b"),
                Checkpoint(0, 2, 10, "c"),
            ]
        )
    )
    assert verdict.passed
    assert verdict.looked_at == 1
    assert not digests.check_nodes(history(checkpoints=[Checkpoint(0, 1, 10, "a")])).passed


def test_two_digests_at_one_place_are_told_with_their_nodes():
    """Also of one node that was asked twice."""
    made = history(
        checkpoints=[
            Checkpoint(0, 1, 10, "a"),
            Checkpoint(1, 1, 10, "b"),
            Checkpoint(2, 1, 10, "a"),
        ]
    )
    assert only(digests.check_nodes(made)) == (
        "shard 1: index 10: a on node-0, node-2, b on node-1"
    )
    twice = history(checkpoints=[Checkpoint(0, 1, 10, "a"), Checkpoint(0, 1, 10, "b")])
    assert "a on node-0, b on node-0" in only(digests.check_nodes(twice))


def rounds(*pairs, source="node-0"):
    """Recorded rounds: (generation, cause)."""
    return [Round("g", generation, cause, source) for generation, cause in pairs]


def test_one_cause_for_each_generation_passes():
    """What is older than the record, or newer, is not missing from it; two sources may agree."""
    made = history(
        rounds=rounds((3, "member_joined"), (4, "member_left"))
        + rounds((4, "member_left"), source="export"),
        generations=[told(n, "a", n) for n in (1, 3, 4, 5)],
    )
    verdict = digests.check_history(made)
    assert verdict.passed
    assert verdict.looked_at == 3
    assert verdict.note == "no replays are in this history"


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (
            history(rounds=rounds((3, "member_joined"), (4, ""))),
            "g: generation 4 has no recorded cause (from node-0)",
        ),
        (
            history(rounds=rounds((3, "member_left"), (3, "member_left"))),
            "g: generation 3 is recorded twice by node-0: member_left and member_left",
        ),
        (
            history(rounds=rounds((3, "a")) + rounds((3, "b"), source="node-1")),
            "g: generation 3 has two causes: a (node-0) and b (node-1)",
        ),
        (
            history(rounds=rounds((3, "a"), (5, "a")), generations=[told(4, "a", 0)]),
            "g: members were told of generation 4, and node-0 has no rebalance that formed it",
        ),
        (
            history(
                checkpoints=[Checkpoint(0, 1, 10, "a")], replays=[Replayed("python", 1, 10, "b")]
            ),
            "shard 1: index 10: a of node-0, b of python",
        ),
        (
            history(replays=[Replayed("python", 1, 10, "a"), Replayed("spark", 1, 10, "b")]),
            "shard 1: index 10: a of python, b of spark",
        ),
        (
            history(replays=[Replayed("python", 1, 10, "a"), Replayed("python", 1, 10, "b")]),
            "shard 1: index 10: python has two digests: a and b",
        ),
    ],
)
def test_a_rebalance_or_a_replay_that_is_not_the_recorded_one_is_told(made, says):
    """Each rule breaks alone."""
    assert only_or_first(digests.check_history(made)) == says


def only_or_first(verdict):
    """One violation; not passed, also where there was nothing to compare with."""
    assert not verdict.passed
    return verdict.violations[0].what


def test_a_replay_that_nothing_can_be_compared_with_is_not_counted():
    """It has not passed."""
    verdict = digests.check_history(history(replays=[Replayed("python", 1, 10, "a")]))
    assert verdict.looked_at == 0
    assert not verdict.passed


# -- inv-I15

CUT = Side((1,), 10 * S, 20 * S)


def test_what_a_minority_refuses_or_leaves_open_passes():
    """And what it had begun before, or answered after, is not its."""
    made = history(
        commit(1, 9, 11, node=1),
        commit(2, 11, 12, node=1, outcome=Outcome.FAIL),
        commit(3, 12, None, node=1),
        commit(4, 13, 21, node=1),
        commit(5, 13, 14, node=0),
        read(5, 15, 16, node=2),
        minorities=[CUT],
    )
    verdict = minority.check(made)
    assert verdict.passed
    assert verdict.looked_at == 2


@pytest.mark.parametrize("kind", ["commit", "read", "delete", "reset"])
def test_what_a_minority_acknowledges_is_told(kind):
    """Writes and linearizable reads, from the first moment."""
    made = history(op(kind, 5, 10.001, 11, node=1), minorities=[CUT])
    assert only(minority.check(made)) == (
        "node-1 could not reach a majority (-0.001000 s .. +9.999000 s), and acknowledged "
        f"{kind} 5 by w (+0.000000 s .. +0.999000 s, node-1)"
    )


def test_a_heartbeat_may_be_answered_for_four_tenths_of_a_second_after_the_last_word_was_heard():
    """By check quorum, without a round of its own; a busy node hears up to 1 s late."""
    group = Key("g", "", -1)
    early = op("heartbeat", None, 11.4, 12, node=1, key=group)
    late = op("heartbeat", None, 11.401, 12, node=1, key=group)
    assert not minority.check(history(early, minorities=[CUT])).violations
    assert "acknowledged heartbeat by w" in only(minority.check(history(late, minorities=[CUT])))


def test_without_a_cut_nothing_was_looked_at():
    """Nor where nobody asked the nodes that were cut off."""
    assert minority.check(history(commit(1, 0, 1, node=0))).note == (
        "no node was cut off from the majority"
    )
    assert not minority.check(history(commit(1, 11, 12, node=0), minorities=[CUT])).passed


# -- inv-I14 and inv-I16


def state(kind, found, **fields):
    """From 10 to 20 s."""
    return NodeState(1, kind, 10 * S, 20 * S, found, **fields)


@pytest.mark.parametrize("found", ["refused", "repaired"])
def test_damaged_files_that_are_refused_or_repaired_pass(found):
    """A repaired node serves again."""
    served = [commit(1, 11, 12, node=1)] if found == "repaired" else []
    verdict = disks.check_corrupt(history(*served, node_states=[state("corrupt", found)]))
    assert verdict.passed
    assert verdict.looked_at == 1


def test_damaged_files_that_are_served_are_told():
    """With what was done to them."""
    made = history(
        commit(1, 10, 12, node=0),
        node_states=[state("corrupt", "running", detail="bit in the WAL")],
    )
    assert only(disks.check_corrupt(made)) == (
        "node-1 had damaged files (+0.000000 s .. +10.000000 s) and was found running, not refused "
        "or repaired: bit in the WAL"
    )


def test_an_acknowledgement_by_a_node_that_refused_is_told():
    """Refusing and serving is serving."""
    made = history(commit(1, 11, 12, node=1), node_states=[state("corrupt", "refused")])
    assert "and acknowledged commit 1" in only(disks.check_corrupt(made))


def test_a_disk_error_that_stops_its_node_passes():
    """What was under way at that moment, and others' answers, are no violation."""
    made = history(
        commit(1, 9, 11, node=1),
        commit(2, 11, 12, node=0),
        commit(3, 11, None, node=1),
        commit(4, 19, 21, node=1),
        node_states=[state("disk_error", "stopped")],
    )
    assert disks.check_errors(made).passed
    assert not disks.check_corrupt(made).passed


def test_a_node_that_goes_on_after_a_disk_error_is_told():
    """Even if nobody asked it anything."""
    made = history(node_states=[state("disk_error", "running")])
    assert "was found running, not stopped" in only(disks.check_errors(made))


def test_an_acknowledgement_after_a_disk_error_is_told():
    """Even if the node ended later."""
    made = history(commit(1, 11, 12, node=1), node_states=[state("disk_error", "stopped")])
    assert "node-1 had a failed disk" in only(disks.check_errors(made))


# -- all of them


def test_every_invariant_has_a_checker_that_names_itself():
    """I1 to I17, in order."""
    verdicts = check_all(history())
    assert [verdict.invariant for verdict in verdicts] == [f"I{n}" for n in range(1, 18)]
    assert list(CHECKERS) == [f"I{n}" for n in range(1, 18)]


def test_an_empty_history_passes_nothing():
    """No checker is content with nothing; those that do not apply say why."""
    verdicts = check_all(history())
    assert not any(verdict.passed for verdict in verdicts)
    assert [v.invariant for v in verdicts if not v.applies] == ["I12"]
    assert all(verdict.note for verdict in verdicts if not verdict.applies)


def test_many_violations_are_counted_and_the_first_are_listed():
    """A verdict has a stated size."""
    reads = [read(5, 0, 1, key=Key("g", "t", number)) for number in range(60)]
    verdict = CHECKERS["I2"](history(*reads))
    assert len(verdict.violations) == 50
    assert verdict.note == "10 more violations are not listed"
    assert verdict.violations_count == len(verdict.violations) + 10


def test_every_checker_is_named_in_a_test_of_its_own():
    """By the id of its invariant."""
    texts = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    named = set(re.findall(r"inv-(I\d+)", texts))
    assert named >= CHECKERS.keys() - {"I12"}
