"""The worlds in which each broken build is sought, and the promises that have to catch it.

Any violation would catch a build, but only the check that is made for the missing rule shows that
this check works. So a hunt counts the kinds that are named here and no other, on a seed that the
shipped build passes. A general check (an offset is lost, a commit is not on a majority of disks)
stands here only where no check of its own ever sees the build, or where it is the rule's own. A
world has three nodes alone (`@3`) where an odd seed catches the build with three as well: runs of
five take longer.
"""

from musterd.chaos.mutants.hunt import Sought

_LOST = (
    "H-acknowledged-command-lost",
    "H-leader-completeness",
    "H-commit-divergence",
    "I10",
)
"""Committed entries are gone, or others are in their place: what clients would see."""

_NOT_DURABLE = ("S-commit-without-durable-majority",)
"""Nothing is lost yet: that takes several crashes amid one sync, which no seed has."""

_OFFSET_LOST = ("I1", "I2")
_FENCED = ("I6",)
_EXPIRED = ("H-member-removed",)
_DISRUPTED = ("A-leader-disrupted",)
_STATE_DIFFERS = ("I10",)
_WRONGLY_JUDGED = ("H-right-state-in-quarantine",)
_FORGOTTEN = ("A-call-forgotten", "A-parked-call-forgotten", "A-call-left-waiting")
_NO_QUORUM = ("I15",)
_STOPPED = ("L-not-converged", "L-never-admitted")
"""Nothing need be lost: the cluster does not come to rest."""

_ABOVE_LEVEL = ("S-entry-above-level",)
"""A log has an entry that its node's build cannot read: it would end there."""

_TOKEN_NOT_TAKEN = ("H-group-invariant",)
"""A member has a token above the last one that its group took: it would be given out again."""

SOUGHT = {
    "truncation_guard": Sought("udp3", ("S-committed-entry-dropped",)),
    "snapshot_commit_cap": Sought("fifo3", ("H-commit-divergence", "S-commit-index-went-back"), 11),
    "majority": Sought("fifo3", _LOST),
    "pre_vote": Sought("returning-follower", _DISRUPTED),
    "sticky_voters": Sought("returning-follower", _DISRUPTED, 6),
    "log_comparison": Sought("fifo3", ("H-leader-completeness",), 3),
    "admission": Sought("forgetful3", _LOST),
    "two_suffice": Sought("quarantine", _WRONGLY_JUDGED),
    "stale_votes": Sought("quarantine", _WRONGLY_JUDGED),
    "any_state_taken": Sought("quarantine@5", _WRONGLY_JUDGED),
    "quarantine_forgotten": Sought("quarantine", ("H-quarantine-forgotten",)),
    "losses": Sought("forgetful3", (*_LOST, "H-voted-twice")),
    "last_start_only": Sought("forgetful3", (*_LOST, "H-voted-twice")),
    "loss_noted_by_all": Sought("forgetful5", ("H-admitted-too-early",)),
    "loss_log_held": Sought("forgetful5", ("H-admitted-too-early",)),
    "forgotten_match": Sought("forgetful3", _STOPPED, 13),
    "introduction": Sought("first-start@3", ("H-voted-twice", "H-two-leaders-in-a-term"), 2),
    "newcomer_vote": Sought("newcomer-away", _STOPPED),
    "replacement_order": Sought("replaced-again", _STOPPED),
    "read_round": Sought("lost-links@3", ("H-stale-read",), 5),
    "check_quorum": Sought("sdk-thaw-leader", _NO_QUORUM),
    "send_times": Sought("sdk-thaw-leader", _NO_QUORUM),
    "frame_checksum": Sought("lanes", ("S-garbage-taken",)),
    "sleepless_clock": Sought("sdk-suspend-leader", _NO_QUORUM),
    "no_fsync": Sought("fifo3", _LOST, 10),
    "message_hold": Sought("fifo3", _NOT_DURABLE),
    "durable_cap": Sought("fifo3", _NOT_DURABLE),
    "vote_durability": Sought("split-votes", ("H-voted-twice", "H-two-leaders-in-a-term"), 2),
    "applied_ahead": Sought("fifo3", _STATE_DIFFERS),
    "half_snapshot": Sought("fifo3", _STATE_DIFFERS),
    "hung_leader": Sought("hung-disks@3", ("I16",), 1),
    "hung_voter": Sought("hung-disks", ("A-pre-vote-with-hung-disk",)),
    "taken_without_room": Sought("full-disks", ("A-took-entry-without-room",)),
    "growth_unchecked": Sought("groups-state-full", ("A-state-above-limit",)),
    "work_uncounted": Sought("groups-large-commits", _DISRUPTED),
    "generation_fence": Sought("sdk-cooperative", _FENCED, 4),
    "commit_seq": Sought("sdk-eager", _OFFSET_LOST, 3),
    "static_fence": Sought("sdk-static", _OFFSET_LOST, 39),
    "generation_token": Sought("sdk-static", ("I5",)),
    "kept_token": Sought("sdk-static", ("I5",)),
    "generation_floor": Sought("groups-removals", ("I3",), 1),
    "deletion": Sought("groups-removals", ("I2",), 9),
    "retention": Sought("groups-removals", ("H-expired-early",), 1),
    "unsorted_deletion": Sought("groups-removals", ("H-events-diverged",)),
    "unsorted_history": Sought("groups-removals", _STATE_DIFFERS, 5),
    "silent_setting": Sought("sdk-operated", ("H-setting-not-taken", "I17")),
    "forward_only": Sought("sdk-operated", ("H-offset-fell",)),
    "timer_generation": Sought("sdk-eager", ("H-timer-acted-early",), 13),
    "join_dedupe": Sought("sdk-eager", ("H-joined-twice",), 1),
    "ack_before_commit": Sought("sdk-eager", _OFFSET_LOST),
    "parked_join": Sought("sdk-eager", _FORGOTTEN, 4),
    "session_start": Sought("groups-stalls", _EXPIRED),
    "deposed_expiry": Sought("groups-standstill", _EXPIRED, 5),
    "shard_time_cap": Sought("groups-blinks", _EXPIRED, 2),
    "extra_round": Sought("groups-blinks", _EXPIRED, 2),
    "shard_time_restart": Sought("sdk-eager", ("S-shard-time-went-back",)),
    "eager_keeps": Sought("sdk-eager", ("I4",)),
    "cooperative_gives_all": Sought("sdk-cooperative", ("I9",)),
    "withheld": Sought("sdk-cooperative", ("I4",)),
    "zombie_fence": Sought("sdk-operated", _FENCED, 17),
    "read_of_many": Sought("sdk-udp@3", _OFFSET_LOST, 77),
    "former_topic": Sought("sdk-deletions", ("H-commit-of-former-topic",), 1),
    "nameless_topic": Sought("sdk-deletions", ("H-commit-of-former-topic",), 10),
    "early_name": Sought("sdk-deletions", ("H-offset-of-former-topic",)),
    "kept_offsets": Sought("sdk-deletions", ("H-offset-outlived-topic",)),
    "doubtless": Sought("sdk-suspend-members", ("H-worked-after-sleep",), 1),
    "level_not_asked": Sought("levels", _ABOVE_LEVEL, 2),
    "level_of_the_leader": Sought("levels", _ABOVE_LEVEL),
    "level_by_majority": Sought("levels", _ABOVE_LEVEL, 1),
    "level_word_kept": Sought("levels", (*_ABOVE_LEVEL, "A-finalised-early"), 14),
    "level_not_followed": Sought("levels", ("L-level-not-everywhere",)),
    "level_not_recorded": Sought("levels", ("H-level-fell", *_STATE_DIFFERS)),
    "mass_break": Sought("sdk-break-heartbeats", _EXPIRED),
    "newcomer_keeps_tokens": Sought("sdk-modern-static", ("I5",)),
    "upgrade_forgets_tokens": Sought("sdk-conversions", ("I5",)),
    "grant_reuses_token": Sought("sdk-modern", ("I5",)),
    "downgrade_forgets_tokens": Sought("sdk-conversions", _TOKEN_NOT_TAKEN),
    "grants_unreleased": Sought("sdk-modern", ("I4",)),
    "news_untold": Sought("sdk-modern", ("I8", "L-not-settled")),
    "stale_token_commits": Sought("sdk-modern", _OFFSET_LOST, 33),
    "away_forgotten": Sought("sdk-modern", ("I8",), 46),
    "plan_forgotten": Sought("groups-hand-overs", ("I8", "L-not-settled")),
    "stream_answers_mixed": Sought("sdk-eager", ("A-worker-ended",)),
    "stream_push_lost": Sought("sdk-eager", ("I8",)),
    "stream_end_untold": Sought("sdk-cooperative", ("I4",)),
    "stream_silence_borne": Sought("sdk-cooperative", ("I4",)),
}
"""By build."""
