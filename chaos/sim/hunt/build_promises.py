"""By which broken promise the simulator has to catch each broken build.

Any violation would catch a build, but only the check that is made for the missing rule shows that
this check works. So a hunt counts the kinds that are named here and no other. A general check (an
offset is lost, a commit does not lie on a majority of disks) stands here only where no check of its
own ever sees the build, or where it is the rule's own.
"""

_LOST = (
    "H-acknowledged-command-lost",
    "H-leader-completeness",
    "H-commit-divergence",
    "H-state-machine-divergence",
)
"""Committed entries are gone, or others are in their place: what clients would see."""

_NOT_DURABLE = ("S-commit-without-durable-majority",)
"""Nothing is lost yet: that takes several crashes amid one sync, which no seed has."""

_OFFSET_LOST = ("I1", "I2")
_FENCED = ("I6",)
_EXPIRED = ("H-member-expired", "H-session-ended", "H-member-lost")
_DISRUPTED = ("A-leader-disrupted",)
_STATE_DIFFERS = ("H-reloaded-state-diverged", "H-state-machine-divergence")
_FORGOTTEN = ("A-call-forgotten", "A-parked-call-forgotten", "A-call-left-waiting")
_NO_QUORUM = ("H-answered-without-quorum",)
_STOPPED = ("L-not-converged", "L-never-admitted")
"""Nothing need be lost: the cluster does not come to rest."""

PROMISES: dict[str, tuple[str, ...]] = {
    # Consensus.
    "truncation_guard": ("S-committed-entry-dropped",),
    "snapshot_commit_cap": ("H-commit-divergence", "S-commit-index-went-back"),
    "majority": _LOST,
    "pre_vote": _DISRUPTED,
    "sticky_voters": _DISRUPTED,
    "log_comparison": ("H-leader-completeness",),
    "admission": _LOST,
    "losses": (*_LOST, "H-voted-twice"),
    "last_start_only": (*_LOST, "H-voted-twice"),
    "loss_noted_by_all": ("H-admitted-too-early",),
    "loss_log_held": ("H-admitted-too-early",),
    "forgotten_match": _STOPPED,
    "introduction": ("H-voted-twice", "H-two-leaders-in-a-term"),
    "newcomer_vote": _STOPPED,
    "replacement_order": _STOPPED,
    "read_round": ("H-stale-read",),
    "check_quorum": _NO_QUORUM,
    "send_times": _NO_QUORUM,
    "frame_checksum": ("S-garbage-taken",),
    "sleepless_clock": _NO_QUORUM,
    # Disk.
    "no_fsync": _LOST,
    "message_hold": _NOT_DURABLE,
    "durable_cap": _NOT_DURABLE,
    "vote_durability": ("H-voted-twice", "H-two-leaders-in-a-term"),
    "applied_ahead": _STATE_DIFFERS,
    "half_snapshot": _STATE_DIFFERS,
    "hung_leader": ("A-led-with-hung-disk",),
    "hung_voter": ("A-pre-vote-with-hung-disk",),
    "taken_without_room": ("A-took-entry-without-room",),
    "growth_unchecked": ("A-state-above-limit",),
    "work_uncounted": _DISRUPTED,
    # The group machine.
    "generation_fence": (*_OFFSET_LOST, *_FENCED),
    "commit_seq": _OFFSET_LOST,
    "static_fence": (*_OFFSET_LOST, *_FENCED),
    "generation_token": ("I5",),
    "kept_token": ("I5",),
    "generation_floor": ("I3",),
    "deletion": ("I2",),
    "retention": ("H-expired-early",),
    "unsorted_deletion": ("H-events-diverged",),
    "unsorted_history": _STATE_DIFFERS,
    "silent_setting": ("H-setting-lost", "H-setting-not-taken", "I17"),
    "forward_only": ("H-offset-fell",),
    "timer_generation": ("H-timer-acted-early",),
    "join_dedupe": ("H-joined-twice",),
    # The coordinator.
    "ack_before_commit": _OFFSET_LOST,
    "parked_join": _FORGOTTEN,
    "session_start": _EXPIRED,
    "deposed_expiry": _EXPIRED,
    "shard_time_cap": _EXPIRED,
    "extra_round": _EXPIRED,
    "shard_time_restart": ("S-shard-time-went-back",),
    "read_of_many": _OFFSET_LOST,
    "doubtless": ("H-worked-after-sleep",),
    "mass_break": _EXPIRED,
    # The SDK, and what only the SDK shows.
    "eager_keeps": ("I4",),
    "cooperative_gives_all": ("I9",),
    "withheld": ("I4",),
    "zombie_fence": _FENCED,
}
"""By build, the kinds that count: the violation of any of them catches it."""
