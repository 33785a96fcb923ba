"""What counts as evidence that a command of the user's broke something."""

import itertools

from muster.v1 import admin_pb2
from musterd.chaos.run import verification

Response = admin_pb2.DescribeClusterResponse


def view(node, *shards):
    """Of (leader, term) by shard."""
    made = Response(node_id=node)
    for shard, (leader, term) in enumerate(shards):
        role = "Leader" if leader == node else "Follower"
        made.shard_states.add(shard=shard, role=role, term=term, leader_id=leader)
    return made


def views(*shards, silent=()):
    """Three nodes that say the same."""
    return {node: view(node, *shards) for node in range(3) if node not in silent}


BEFORE = views((1, 4), (1, 4), (2, 4))


def looks(*told):
    """One after the other, the last one for ever."""
    answers = itertools.chain(told, itertools.repeat(told[-1]))
    return lambda: next(answers)


def seen(node, *told):
    """What shows it, without waiting."""
    return verification.seen(looks(*told), node, BEFORE, within_s=0.3)


def test_a_node_that_goes_on_as_before_was_not_hit():
    """Nor was one that missed one call, or that handed one shard of two over."""
    assert seen(1, BEFORE) == ""
    assert seen(1, views((1, 4), (1, 4), (2, 4), silent=[1]), BEFORE) == ""
    assert seen(1, views((0, 5), (1, 4), (2, 4))) == ""


def test_a_node_that_does_not_answer_was_hit():
    """Twice in a row."""
    assert seen(1, views((1, 4), (1, 4), (2, 4), silent=[1])) == "it does not answer"


def test_a_node_whose_shards_all_have_other_leaders_was_hit():
    """Also where it answers: it was cut off from its peers alone, or is back already."""
    assert seen(1, views((0, 5), (2, 5), (2, 4))) == "others lead the 2 shards that it led"


def test_a_follower_that_hears_of_no_leader_was_hit():
    """It leads nothing that others could take."""
    assert seen(0, {**BEFORE, 0: view(0, (-1, 4), (-1, 4), (-1, 4))}) == "it hears of no leader"


def test_kinds_of_the_users_own_are_not_judged():
    """What they do only the command knows."""
    known = ("kill_leader", "kill_follower", "pause_all", "isolate_leader", "stop_leader")
    assert all(map(verification.is_known, known))
    assert not any(map(verification.is_known, ("reboot_leader", "stop_the_world", "kill")))
