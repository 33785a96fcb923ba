"""What a fault's facts say of a node whose disk was not sound."""

import pytest

from musterd.chaos.check import digests, disks, minority
from musterd.chaos.history import Checkpoint, Replayed
from musterd.chaos.run.states import ENDED_S, LEAVES_S, states_of
from tests.chaos.check.made import S, commit, history


@pytest.mark.parametrize(
    ("kind", "outcome", "found", "passes"),
    [
        ("flipped_byte", "refused", "refused", True),
        ("flipped_byte", "serves", "running", False),
        ("flipped_byte", "silent", "silent", False),
        ("torn_tail", "refused", "refused", True),
        ("torn_tail", "serves", "repaired", True),
        ("torn_tail", "silent", "silent", False),
    ],
)
def test_a_node_on_damaged_files_refuses_or_is_repaired(kind, outcome, found, passes):
    """One that hangs has done neither; a torn last record may be dropped."""
    (state,) = states_of(kind, {"node": 1, "at_ns": 5, "outcome": outcome}, 9)
    assert (state.node, state.kind, state.found) == (1, "corrupt", found)
    assert (state.from_ns, state.until_ns) == (5, 9)
    assert disks.check_corrupt(history(node_states=[state])).passed is passes


def test_a_node_that_lacks_what_its_durable_mark_vouches_for_has_to_refuse():
    """However it looks: a crash does not take what was on the disk for a second."""
    facts = {"node": 1, "at_ns": 5, "outcome": "serves", "vouched": True}
    (state,) = states_of("torn_tail", facts, 9)
    assert state.found == "running"
    assert not disks.check_corrupt(history(node_states=[state])).passed
    (state,) = states_of("torn_tail", {**facts, "outcome": "refused"}, 9)
    assert disks.check_corrupt(history(node_states=[state])).passed


@pytest.mark.parametrize(("code", "passes"), [(1, True), (None, False)])
def test_a_node_on_a_disk_that_fails_has_to_end(code, passes):
    """By itself."""
    (state,) = states_of("eio", {"node": 1, "at_ns": 5, "exit_code": code}, 9)
    assert disks.check_errors(history(node_states=[state])).passed is passes


@pytest.mark.parametrize(
    ("losses", "outcome", "found", "passes"),
    [
        (2, "serves", "repaired", True),
        (0, "serves", "running", False),
        (2, "silent", "silent", False),
        (0, "silent", "silent", False),
        (2, "behind", "behind", False),
        (2, "refused", "refused", False),
    ],
)
@pytest.mark.parametrize("kind", ["older_copy", "lost_synced"])
def test_a_node_that_forgot_is_found_out_and_serves_again(kind, losses, outcome, found, passes):
    """By others, who had heard of what it forgot."""
    facts = {"node": 1, "at_ns": 5, "outcome": outcome, "losses": losses, "heard": True}
    (state,) = states_of(kind, facts, 9)
    assert (state.kind, state.found) == ("forgot", found)
    assert disks.check_corrupt(history(node_states=[state])).passed is passes


def test_a_copy_that_nobody_could_know_to_be_older_says_nothing():
    """The fault had no effect, and says so."""
    facts = {"node": 1, "at_ns": 5, "outcome": "serves", "losses": 0, "heard": False}
    assert states_of("older_copy", facts, 9) == []


@pytest.mark.parametrize(("leads", "passes"), [([], True), ([0, 3], False)])
def test_a_node_whose_syncs_have_hung_for_long_leads_nothing(leads, passes):
    """What others have made durable it may have acknowledged meanwhile."""
    facts = {"node": 1, "at_ns": 5 * S, "unsynced_s": LEAVES_S, "leads": leads}
    (state,) = states_of("leader_fsync_hangs", facts, 9 * S)
    served = commit(1, 6, 7, node=1)
    assert disks.check_errors(history(served, node_states=[state])).passed is passes


@pytest.mark.parametrize(
    ("unsynced_s", "code", "found", "passes"),
    [
        (ENDED_S, 1, "left", True),
        (ENDED_S, None, "running", False),
        (ENDED_S, 0, "failed", False),
        (ENDED_S, -11, "failed", False),
        (ENDED_S - 0.1, None, "left", True),
        (ENDED_S - 0.1, 0, "left", True),
    ],
)
def test_a_node_whose_syncs_have_hung_for_longer_still_ends_with_1(unsynced_s, code, found, passes):
    """Whoever supervises it has to see that it failed; until then it may run on."""
    facts = {"node": 1, "at_ns": 5 * S, "unsynced_s": unsynced_s, "leads": [], "exit_code": code}
    (state,) = states_of("leader_fsync_hangs", facts, 9 * S)
    assert state.found == found
    assert disks.check_errors(history(node_states=[state])).passed is passes


def test_a_node_whose_syncs_hang_has_some_seconds_to_leave():
    """Held for a shorter time, or not healed: nothing is said."""
    facts = {"node": 1, "at_ns": 5, "unsynced_s": LEAVES_S - 0.1, "leads": [0]}
    assert states_of("leader_fsync_hangs", facts, 9) == []
    assert states_of("leader_fsync_hangs", {"node": 1, "at_ns": 5}, 9) == []


def test_other_faults_and_those_that_got_nowhere_say_nothing():
    """A fault that damages no disk; one that failed before it hit a node."""
    assert states_of("kill_leader", {"node": 1, "at_ns": 5}, 9) == []
    assert states_of("flipped_byte", {}, 9) == []
    assert states_of("flipped_byte", {"node": 1}, 9) == []


@pytest.mark.parametrize(("after", "passes"), [(4, True), (3, False)])
def test_a_node_whose_machine_slept_gives_up_what_it_led(after, passes):
    """Each shard that it led is in a later term, or inv-I15 is broken."""
    facts = {"node": 1, "at_ns": 5, "terms": {"0": 3, "2": 1}, "terms_after": {"0": after, "2": 2}}
    (state,) = states_of("suspend", facts, 9)
    verdict = minority.check(history(node_states=[state]))
    assert (verdict.passed, verdict.looked_at) == (passes, 1)


def test_a_node_that_does_not_read_the_clock_that_jumped_says_nothing():
    """The fault had no effect, and says so."""
    assert states_of("suspend", {"node": 1, "at_ns": 5, "terms": {"0": 3}}, 9) == []


DIVERGED = {"nodes": [1, 2], "shard": 3, "from_index": 10, "until_index": 20, "at_ns": 5}


@pytest.mark.parametrize(
    ("outcome", "passes"), [("repaired", True), ("running", False), ("believed", False)]
)
@pytest.mark.parametrize("kind", ["one_diverges", "two_diverge"])
def test_nodes_that_store_another_state_take_that_of_a_majority(kind, outcome, passes):
    """They alone, or inv-I14 is broken."""
    states = states_of(kind, {**DIVERGED, "outcome": outcome, "detail": "so"}, 9)
    assert [one.node for one in states] == [1, 2]
    verdict = disks.check_corrupt(history(node_states=states))
    assert (verdict.passed, verdict.looked_at) == (passes, 2)


@pytest.mark.parametrize(
    ("node", "shard", "index", "passes"),
    [
        (1, 3, 11, True),
        (2, 3, 20, True),
        (1, 3, 10, False),
        (2, 3, 21, False),
        (0, 3, 15, False),
        (1, 2, 15, False),
    ],
)
def test_what_a_fault_changed_differs_nowhere_else_and_at_no_other_time(node, shard, index, passes):
    """Digests are compared of all but those nodes, and of those before and after that."""
    states = states_of("two_diverge", {**DIVERGED, "outcome": "repaired", "detail": "so"}, 9)
    told = [Checkpoint(node, shard, index, "bad"), Checkpoint(4, shard, index, "good")]
    replayed = [Replayed("python", shard, index, "good")]
    made = history(node_states=states, checkpoints=told, replays=replayed)
    for verdict in (digests.check_nodes(made), digests.check_history(made)):
        assert bool(verdict.violations) is not passes
