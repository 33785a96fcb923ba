"""inv-I8: every partition is owned within session + rebalance + 5 s after the last fault."""

from musterd.chaos.check.findings import Findings
from musterd.chaos.check.setup import allowed_ns, end_of, moment, owned_by_key
from musterd.chaos.history import Expected, History, Key, Ownership
from musterd.chaos.verdict import Verdict


def check(history: History) -> Verdict:
    """Of every group that was to have members (`Expected.lasting`) all partitions are owned.

    From the deadline to the fact `ended_ns`, without a gap; the deadline counts from the last fault
    healed. Members that their workload itself kills, stops or restarts are at rest only from the
    fact `quiet_from_ns` on: theirs counts from then, if that is later. A history that ends before
    the deadline shows it only where all is owned already. Looks at: partitions.
    """
    found = Findings(history, "I8", "every partition is owned again after the last fault")
    healed = max((one.healed_ns for one in history.faults), default=0)
    at_rest = max(moment(history, "quiet_from_ns") or 0, healed)
    ends = end_of(history)
    keys = owned_by_key(history)
    early = 0
    lasting = [group for group in history.expected if group.lasting]
    if not lasting:
        found.note("no group is named that was to have members at the end")
    for group in lasting:
        quiet = healed if group.left_alone and healed else at_rest
        allowed = allowed_ns(group)
        for key in _keys(group):
            free = _free_from(keys[key], min(quiet + allowed, ends), ends)
            if free is None:
                found.looked_at += 1
            elif ends < quiet + allowed:
                early += 1
            else:
                found.looked_at += 1
                last = max((one.until_ns or 0 for one in keys[key]), default=0)
                since = f"its last owner stopped at {found.at(last)}" if last else "nobody ever did"
                found.broken(
                    key,
                    f"nobody owned it at {found.at(free)}, {since}; all was quiet "
                    f"from {found.at(quiet)}, and {allowed / 1e9:g} s are allowed",
                    free,
                )
    if early:
        found.note(
            f"{early} partitions were not owned at the end, {(ends - at_rest) / 1e9:.1f} s after "
            f"all was quiet: too early to judge"
        )
    return found.verdict()


def _keys(group: Expected) -> list[Key]:
    return [
        Key(group.group, topic, partition)
        for topic, partitions in group.topics
        for partition in range(partitions)
    ]


def _free_from(owned: list[Ownership], from_ns: int, until_ns: int) -> int | None:
    """The first moment of the span in which nobody owned it; None if there is none."""
    reached = from_ns
    for one in owned:
        if one.from_ns > reached:
            break
        if one.until_ns is None:
            return None
        reached = max(reached, one.until_ns)
    return None if reached >= until_ns and reached > from_ns else reached
