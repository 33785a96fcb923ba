"""Facts of a run that several checkers need: its length, its set-up, its owners."""

from collections import defaultdict

from musterd.chaos.history import Expected, History, Key, Ownership

MS_NS = 1_000_000
GRACE_NS = 5_000 * MS_NS
"""The 5 s of inv-I8."""
QUORUM_NS = 400 * MS_NS
"""A node may answer heartbeats for so long after it last heard from a majority."""
HEARD_NS = 1_000 * MS_NS
"""What was sent before a cut may be heard so late: a busy node reads its sockets when it can."""


def end_of(history: History) -> int:
    """When the history ended, ns: the fact `ended_ns`, else the last moment that it tells of."""
    told = moment(history, "ended_ns")
    if told is not None:
        return told
    lasts = (
        max((one.ended_ns or one.began_ns for one in history.operations), default=0),
        max((one.until_ns or one.from_ns for one in history.ownerships), default=0),
        max((one.at_ns for one in history.generations), default=0),
        max((one.healed_ns for one in history.faults), default=0),
    )
    return max(lasts)


def owned_by_key(history: History) -> defaultdict[Key, list[Ownership]]:
    """Who owned each partition, in the order in which they began to."""
    keys: defaultdict[Key, list[Ownership]] = defaultdict(list)
    for one in sorted(history.ownerships, key=lambda one: one.from_ns):
        keys[one.key].append(one)
    return keys


def allowed_ns(group: Expected) -> int:
    """How long a member that is gone may own something: inv-I8."""
    return (group.session_timeout_ms + group.rebalance_timeout_ms) * MS_NS + GRACE_NS


def moment(history: History, name: str) -> int | None:
    """A fact that is a time in ns, None where it is not there. Raises ValueError: no time."""
    value = history.facts.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"the fact {name} is no time in ns: {value!r}")
    return value
