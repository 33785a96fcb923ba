"""How unit tests hunt a broken build: those that are named for it fail with it, and pass without.

For rules that neither the simulator nor real servers under faults can see. A test counts as failed
only by an assertion of its own: a build that breaks it in another way has shown nothing.

The tests are run by pytest in a process of its own, from a clone; `tests/broken_build.py` is the
plugin that installs the build there.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from musterd.chaos.child import command_with_parent
from musterd.chaos.mutants import (
    builds,
    of_frames,
    of_hung_sync,
    of_lives,
    of_quarantine,
    of_raft,
    of_room,
    of_sdk,
    of_service,
)
from musterd.chaos.mutants.build import Build
from musterd.chaos.mutants.hunt import Caught, Layer

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "CHAOS_UNIT_BUILD"
"""In the environment of pytest and of the processes that its tests start; "": the shipped build."""
PLUGIN = "tests.broken_build"
PASSED, FAILED = "passed", "failed"
SEED = 0
"""Of pytest-randomly: what a test draws is the same in every hunt."""
PLAY_S_MAX = 900.0

_QUARANTINE = "tests/coordinator/integrity/test_quarantine.py"
_REBUILD = "tests/raft/test_rebuild.py"
_LIVES = "tests/raft/test_lives.py"
_ROUNDS = "tests/raft/test_heartbeat_rounds.py"
_BAD_FRAMES = "tests/raft/test_bad_frames.py"
_SYNC_STALL = "tests/raft/test_sync_stall.py"
_ENDING = "tests/coordinator/node/test_process_end.py"
_GROWTH = "tests/coordinator/runtime/test_growth.py"
_ROOM = "tests/raft/test_disk_room.py"
_SUSPEND = "tests/client/test_suspend.py"
_UNTAKEN = "tests/coordinator/api/test_untaken_answers.py"
_HEARTBEATS = "tests/coordinator/runtime/test_heartbeats.py"
_SHARD_LIMITS = "tests/limits/test_shard.py"
_DOOR = "tests/coordinator/api/test_call_acceptor.py"
_DISCOVERY = "tests/client/test_discovery.py"
_FLEET = "tests/client/test_fleet.py"
_LIVENESS = "tests/coordinator/runtime/test_sessions.py"
_SERVICE = "tests/coordinator/api/test_group_service.py"
_OWN_ASSIGNORS = "tests/client/test_own_assignors.py"
_GROUP_METRICS = "tests/coordinator/metrics/test_groups.py"
_LARGE = "tests/coordinator/runtime/test_large_commits.py"
_RECEIVED = "tests/coordinator/api/test_requests_under_way.py"
_PAGES = "tests/coordinator/api/test_paging.py"
_LARGE_AT_ONCE = (
    "tests/coordinator/api/test_group_service.py::"
    "test_large_commits_are_read_and_answered_one_in_a_pass_of_the_loop"
)
_HERD = f"{_DOOR}::test_a_herd_of_joins_keeps_no_question_for_a_coordinator_out"
_UNTOLD = (
    "tests/client/test_compat.py::"
    "test_an_assignment_is_not_told_after_sleep_until_a_heartbeat_is_answered"
)
_TWO_OF_FIVE = (
    f"{_QUARANTINE}::test_of_five_nodes_the_two_that_differ_alike_take_the_state_of_the_three"
    "[wrong0]"
)
_NO_WITNESS = (
    f"{_QUARANTINE}::"
    "test_who_comes_back_behind_the_log_is_no_witness_for_a_leader_that_may_be_wrong"
)
_SETS_ASIDE = (
    f"{_QUARANTINE}::test_who_takes_a_state_that_differs_without_a_verdict_sets_its_own_aside"
)
_OLDER_AGREEMENT = f"{_QUARANTINE}::test_an_agreement_older_than_the_difference_does_not_end_it"
_LONG_QUEUE = (
    f"{_SHARD_LIMITS}::test_a_turn_closes_entries_over_a_part_of_a_long_queue_and_asks_for_the_next"
)
_GROWS = (
    "tests/coordinator/test_host.py"
    "::test_only_what_stays_and_comes_fast_counts_as_growth[100-0.5-True]"
)
_FIRST_HEARTBEAT = (
    "tests/coordinator/runtime/test_shard.py"
    "::test_members_that_start_with_many_have_longer_to_be_heard_for_the_first_time"
)
_DEAFENS = f"{_LIVES}::test_a_hello_that_was_on_its_way_when_the_life_changed_deafens_nobody"
_SIGTERM_ENDS = f"{_ENDING}::test_sigterm_ends_a_node_whose_sync_hangs"
_FAR_TERM = f"{_BAD_FRAMES}::test_a_term_that_nobody_comes_to_closes_the_connection"
_CONNECTIONS_END = (
    f"{_ENDING}::test_connections_end_and_new_ones_are_refused_while_the_kernel_keeps_the_process"
)

BUILDS: dict[str, Build] = {
    build.name: build
    for build in (
        *of_quarantine.BUILDS,
        *of_hung_sync.BUILDS,
        *of_lives.BUILDS,
        *of_room.BUILDS,
        *of_frames.BUILDS,
        *of_raft.UNIT_BUILDS,
        *of_sdk.UNIT_BUILDS,
        *of_service.BUILDS,
        *(
            builds.BUILDS[name]
            for name in ("loss_noted_by_all", "growth_unchecked", "work_uncounted")
        ),
    )
}

CAUGHT_BY: dict[str, tuple[str, ...]] = {
    "two_suffice": (
        _TWO_OF_FIVE,
        f"{_QUARANTINE}::test_without_a_majority_nobody_stops_and_all_say_so",
    ),
    "stale_votes": (
        f"{_QUARANTINE}::test_what_was_recorded_before_the_state_was_loaded_is_no_vote",
        f"{_QUARANTINE}::test_a_replica_that_loads_learns_or_is_in_quarantine_says_nothing",
    ),
    "wrong_state_sent": (f"{_REBUILD}::test_a_leader_whose_state_is_wrong_sends_it_to_nobody",),
    "copies_vote": (
        *(
            f"{_NO_WITNESS}[3-wrong0-{event}]"
            for event in ("none", "unjudged", "right_restarts", "leader_restarts", "unanswered")
        ),
        f"{_QUARANTINE}::test_copies_of_one_state_are_one_witness",
    ),
    "copy_forgotten": (
        f"{_NO_WITNESS}[3-wrong0-copy_restarts]",
        f"{_REBUILD}::test_a_restart_does_not_forget_whose_state_a_copy_is",
    ),
    "copies_of_copies_vote": (f"{_REBUILD}::test_a_copy_of_a_copy_names_where_the_state_is_from",),
    "own_state_dropped": (f"{_SETS_ASIDE}[False]", f"{_SETS_ASIDE}[True]"),
    "differing_forgotten": (_OLDER_AGREEMENT,),
    "unread_state_installed": (
        f"{_QUARANTINE}::test_a_state_that_cannot_be_read_replaces_nothing",
    ),
    "older_agreement_decides": (_OLDER_AGREEMENT,),
    "copies_confirm_each_other": (f"{_SETS_ASIDE}[False]", f"{_SETS_ASIDE}[True]"),
    "any_state_taken": (
        _TWO_OF_FIVE,
        f"{_REBUILD}::test_a_wrong_state_is_not_replaced_by_that_of_another_wrong_leader",
        f"{_REBUILD}::test_a_hand_over_to_one_that_is_not_trusted_is_ended",
    ),
    "quarantine_forgotten": (
        f"{_QUARANTINE}::test_a_restart_does_not_end_the_quarantine[False]",
        f"{_REBUILD}::test_a_restart_does_not_forget_that_the_state_is_wrong",
    ),
    "held_timeout_now": (
        f"{_SYNC_STALL}::test_a_follower_that_has_everything_is_asked_to_stand_at_once",
        f"{_SYNC_STALL}::test_a_drain_does_not_wait_for_a_sync_that_hangs",
    ),
    "sockets_open": (
        _CONNECTIONS_END,
        f"{_SIGTERM_ENDS}[kept]",
        f"{_ENDING}::test_a_second_signal_ends_a_node_that_still_drains",
    ),
    "sigterm_waits": (f"{_SIGTERM_ENDS}[free]", f"{_SIGTERM_ENDS}[kept]"),
    "readiness_stays": (f"{_ENDING}::test_a_node_whose_sync_hangs_is_not_ready",),
    "hung_for_ever": tuple(
        f"{_SYNC_STALL}::test_after_the_last_limit_the_disk_counts_as_lost[{nodes}]"
        for nodes in (1, 3)
    ),
    "own_stall_counts": (
        f"{_ROUNDS}::test_a_leader_does_not_count_what_it_stood_still_as_the_silence_of_others",
        f"{_ROUNDS}::test_a_follower_that_stood_still_does_not_stand_before_it_has_read_what_came",
    ),
    "hung_unseen": (f"{_SYNC_STALL}::test_the_age_is_that_of_the_oldest_write_that_is_not_synced",),
    "replaced_store_heard": (
        f"{_QUARANTINE}::test_only_the_newest_answer_of_the_store_that_a_node_lives_in_counts",
    ),
    "deafening_hello": (f"{_DEAFENS}[True]", f"{_DEAFENS}[False]"),
    "outdated_hello": (
        f"{_LIVES}::test_a_hello_of_an_earlier_life_of_the_same_process_is_turned_away",
    ),
    "absurd_life": (f"{_LIVES}::test_a_life_that_no_store_can_have_come_to_closes_the_connection",),
    "loss_noted_by_all": (
        f"{_LIVES}::test_what_a_later_leader_committed_is_not_outvoted_by_a_forgetful_one",
    ),
    "votes_kept": (f"{_LIVES}::test_a_candidate_leads_by_no_vote_of_a_life_that_is_over",),
    "growth_unchecked": tuple(
        f"{_GROWTH}::test_growth_ends_at_each_limit[{scope}]"
        for scope in ("group", "shard", "node")
    ),
    "growth_unreserved": (f"{_GROWTH}::test_a_burst_that_is_not_applied_counts",),
    "low_unheard": (
        f"{_ROOM}::test_a_leader_knows_what_a_majority_has_room_for",
        f"{_ROOM}::test_without_room_on_a_majority_nothing_commits_and_nobody_leaves",
    ),
    "empty_hard_batch": (
        f"{_LIVES}::test_a_restart_amid_an_admission_leaves_nothing_that_is_never_synced",
    ),
    "any_step": (
        f"{_FAR_TERM}[4611686018427387903-True]",
        f"{_BAD_FRAMES}::test_a_life_too_far_ahead_is_not_taken_from_a_peer",
    ),
    "any_kind": (
        f"{_BAD_FRAMES}::test_an_append_that_no_leader_sends_ends_nobody[unknown_kind-True]",
    ),
    "unread_answers": (
        f"{_UNTAKEN}::test_a_connection_that_takes_nothing_keeps_so_much_and_is_refused_more",
        f"{_UNTAKEN}::test_for_a_client_that_never_reads_one_answer_is_made_and_no_more",
    ),
    "reads_past_the_door": (
        f"{_UNTAKEN}::test_for_a_client_that_never_reads_one_answer_is_made_and_no_more",
    ),
    "unread_calls": (f"{_UNTAKEN}::test_a_call_whose_answer_is_not_taken_is_ended",),
    "strangers_held": (
        f"{_HEARTBEATS}::test_a_heartbeat_for_members_that_nobody_knows_is_never_held",
    ),
    "all_places_for_one": (
        f"{_HEARTBEATS}::test_one_connection_does_not_take_the_places_of_others",
    ),
    "work_uncounted": (
        f"{_SHARD_LIMITS}::test_partitions_of_an_entry[over]",
        f"{_SHARD_LIMITS}::test_deletions_fill_an_entry_by_the_offsets_that_go_with_them[6000-entries1]",
    ),
    "large_at_once": (
        _LARGE_AT_ONCE,
        f"{_PAGES}::test_of_large_reads_one_at_most_is_worked_on_in_a_pass_of_the_loop",
    ),
    "joins_unbounded": (f"{_DOOR}::test_so_many_joins_are_begun_whoever_takes_them",),
    "discovery_shed": (_HERD,),
    "parked_suspected": (f"{_FLEET}::test_a_parked_join_is_not_suspected",),
    "unknown_topic": (
        f"{_SERVICE}::test_a_node_whose_topics_are_behind_lets_nobody_share_out_without_them",
    ),
    "herd_unheeded": (f"{_LIVENESS}::test_scenario[herd_holds_first_rounds]",),
    "one_channel": (
        "tests/client/test_calls.py::test_a_process_may_have_more_members_than_a_connection_has_calls",
    ),
    "hangs_awaited": (
        "tests/client/test_discovery.py::test_the_askers_of_a_search_do_not_all_wait_for_one_quiet_node",
    ),
    "assignment_unlogged": (
        f"{_SERVICE}::test_a_join_may_bring_the_assignment_and_counts_as_the_sync",
    ),
    "assignment_apart": (
        f"{_SERVICE}::test_a_join_that_was_parked_for_long_brings_its_assignment_too",
    ),
    "member_held_by_all": (f"{_SHARD_LIMITS}::test_held_heartbeats_of_a_member[over]",),
    "places_for_many_connections": (
        f"{_HEARTBEATS}::test_many_connections_of_one_client_leave_places",
    ),
    "answers_kept": (f"{_SHARD_LIMITS}::test_bytes_of_answers_that_a_node_keeps[over]",),
    "turn_without_end": (_LONG_QUEUE,),
    "loaded_at_once": tuple(
        f"tests/coordinator/runtime/test_persist.py::test_loading_in_slices_gives_the_same_shard[{records}]"
        for records in (1, 3)
    ),
    "limits_unannounced": (
        "tests/coordinator/node/test_room_watch.py::test_80_percent_of_a_limit_are_logged_and_that_it_is_over",
    ),
    "growth_collected": (_GROWS,),
    "first_heartbeat_hurried": (
        f"{_LIVENESS}::test_scenario[held_members_have_time_to_be_heard]",
        _FIRST_HEARTBEAT,
    ),
    "fleet_unnoticed": (
        f"{_DOOR}::test_first_rounds_wait_while_joins_come_as_when_a_fleet_starts",
    ),
    "herds_without_end": (
        f"{_DOOR}::test_herds_stop_sessions_for_half_of_a_long_time_at_most[600-0]",
        f"{_DOOR}::test_herds_stop_sessions_for_half_of_a_long_time_at_most[59-1.05]",
    ),
    "parsed_at_once": (
        f"{_RECEIVED}::test_large_requests_that_come_together_are_parsed_one_in_a_pass",
    ),
    "large_unheld": (
        f"{_LARGE}::test_a_small_commit_passes_the_large_ones_that_wait",
        f"{_LARGE}::test_the_shards_of_a_node_take_turns_with_what_is_large",
    ),
    "requests_uncounted": (
        f"{_RECEIVED}::test_bytes_of_requests_that_a_connection_has_under_way[1]",
        f"{_RECEIVED}::test_bytes_of_requests_that_a_node_has_under_way[1]",
    ),
    "silence_of_the_unheard": tuple(
        f"{_SERVICE}::test_nobody_is_removed_while_its_call_waits_for_its_turn[{call}]"
        for call in ("Heartbeat", "SyncGroup", "JoinGroup")
    ),
    "shards_apart": (
        f"{_DISCOVERY}::test_what_is_learned_of_one_group_holds_for_all_of_its_shard",
        f"{_DISCOVERY}::test_groups_of_one_shard_have_one_search_and_one_key_in_its_questions",
    ),
    "busy_asked_as_often": (
        f"{_DISCOVERY}::test_a_node_that_does_not_answer_is_asked_ever_less_often",
    ),
    "topics_unshared": (
        f"{_FLEET}::test_members_of_one_client_look_for_their_topics_and_coordinators_together",
    ),
    "assignor_on_the_loop": (f"{_OWN_ASSIGNORS}::test_heartbeats_go_on_while_an_assignor_works",),
    "assignor_unlimited": (
        f"{_OWN_ASSIGNORS}::test_a_member_whose_assignor_takes_too_long_says_so_and_joins_again",
    ),
    "death_unseen": (
        f"{_GROUP_METRICS}::test_of_a_group_whose_workers_all_died_nothing_is_owned",
        f"{_GROUP_METRICS}::test_a_death_while_others_leave_is_a_death",
    ),
    "roundless": (
        f"{_SUSPEND}::test_after_sleep_no_work_begins_until_a_heartbeat_is_answered[3000-4.0]",
        f"{_SUSPEND}::test_a_leader_that_slept_for_longer_than_a_round_leads_no_more",
        f"{_SUSPEND}::test_a_task_waits_too_where_a_round_may_have_ended_while_it_slept",
        f"{_UNTOLD}[False]",
        f"{_UNTOLD}[True]",
    ),
}
"""By build, the tests that have to fail: all of them, each by its id as pytest writes it."""


def install_named() -> None:
    """Install the build that the environment names, if it names one. Raises KeyError."""
    if name := os.environ.get(VARIABLE, ""):
        BUILDS[name].install()


def lacks(_name: str) -> str:
    """Why this machine cannot hunt a build; "" where it can."""
    if not (ROOT / "tests" / "broken_build.py").is_file():
        return "muster's own tests are not installed: it takes a clone"
    return "" if find_spec("pytest") else "there is no pytest"


def hunt(name: str, _seeds: int) -> Caught:
    """Run the tests of a build on the shipped build, then on this one.

    Raises KeyError where no build has this name.
    """
    tests = CAUGHT_BY[name]
    began = time.monotonic()

    def ended(seed: int | None, what: str, promises: tuple[str, ...] = ()) -> Caught:
        seconds = time.monotonic() - began
        return Caught(name, LAYER.name, "pytest", seed, what, 1, seconds, promises)

    shipped = play(tests)
    if wrong := _other_than(PASSED, shipped):
        return ended(None, f"the shipped build fails: {wrong}")
    if missed := _other_than(FAILED, play(tests, name)):
        return ended(None, f"no assertion failed in {missed}")
    promises = tuple(test.rpartition("::")[2] for test in tests)
    return ended(SEED, ", ".join(promises), promises)


def play(tests: tuple[str, ...], build: str = "") -> dict[str, str]:
    """How each test ended: PASSED, FAILED (by an assertion), or what else became of it."""
    with tempfile.TemporaryDirectory(prefix="muster-hunt-") as folder:
        outcomes = Path(folder, "outcomes")
        outcomes.touch()
        options = [f"--outcomes={outcomes}", f"--randomly-seed={SEED}", "-p", "no:cacheprovider"]
        argv = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, *options, *tests]
        try:
            done = subprocess.run(
                command_with_parent(argv),
                check=False,
                cwd=ROOT,
                env={**os.environ, VARIABLE: build},
                capture_output=True,
                text=True,
                timeout=PLAY_S_MAX,
            )
            last = (done.stdout + done.stderr).strip().rpartition("\n")[2]
        except subprocess.TimeoutExpired:
            last = f"pytest did not end within {PLAY_S_MAX:.0f} s"
        told = dict(json.loads(line) for line in outcomes.read_text("utf-8").splitlines())
    return {test: told.get(test, f"not run: {last}") for test in tests}


def _other_than(wanted: str, outcomes: dict[str, str]) -> str:
    """The tests that ended otherwise, and how, in words."""
    return "; ".join(
        f"{test.rpartition('::')[2]} ({how})" for test, how in outcomes.items() if how != wanted
    )


LAYER = Layer(
    "unit",
    "by unit tests",
    {name: build.rule for name, build in BUILDS.items()},
    hunt,
    lacks,
)
