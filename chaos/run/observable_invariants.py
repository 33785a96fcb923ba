"""The invariants that a run can show, by its plan and schedule and not by what it saw.

A checker that looked at nothing has not passed, unless nothing of what the run was to do could have
given it anything to look at.
"""

from collections.abc import Collection

from musterd.chaos.workloads.catalog import Plan

CUTS = frozenset(
    {
        "asymmetric_cut",
        "cut_all_peers",
        "isolate_follower",
        "isolate_leader",
        "kill_two_then_restart",
        "split_with_clients",
    }
)
"""Faults that leave running nodes without a majority, which the runner asks."""
DAMAGES = frozenset({"torn_tail", "flipped_byte", "one_diverges", "two_diverge"})
DISK_ERRORS = frozenset({"eio", "disks_low", "disks_full"})
_MEMBERS = frozenset({"members", "admin"})
"""Workers with members that own partitions."""


def not_observable(invariant: str, plan: Plan, kinds: Collection[str], *, own: bool) -> str:
    """Why the run could not show it, for people; "" where it could, and has to.

    `kinds`: of the faults in the schedule; `own`: whether the cluster was started for the run.
    What every run has (probe, pulse, watcher, replay) is enough for I1, I2, I3, I6, I10, I11, I13.
    """
    whose = "no fault of this run" if own else "on a cluster of yours no fault that the run knows"
    owning = (
        any(job.kind in _MEMBERS for job in plan.jobs),
        "no workload of this run has members that own partitions",
    )
    observable = {
        "I4": owning,
        "I5": owning,
        "I7": (
            any(job.kind == "stores" for job in plan.jobs),
            "no workload of this run writes to a store",
        ),
        "I8": (
            any(one.lasting for one in plan.expected),
            "no workload of this run has members until the end",
        ),
        "I9": (any(one.cooperative for one in plan.expected), "no cooperative group in the run"),
        "I14": (bool(own and DAMAGES & set(kinds)), f"{whose} damages files"),
        "I15": (bool(own and CUTS & set(kinds)), f"{whose} cuts a minority off"),
        "I16": (bool(own and DISK_ERRORS & set(kinds)), f"{whose} makes a disk fail"),
        "I17": ("W8" in plan.titles, "no operator is at work in this run"),
    }
    there, why = observable.get(invariant, (True, ""))
    return "" if there else f"no occasion: {why}"
