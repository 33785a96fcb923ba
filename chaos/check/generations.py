"""inv-I3: the generations of a group strictly rise, and one number never means two member sets."""

from bisect import bisect_left
from collections import defaultdict

from musterd.chaos.check.findings import Findings, some
from musterd.chaos.history import Generation, History
from musterd.chaos.verdict import Verdict


def check(history: History) -> Verdict:
    """Each number has one set of members; nobody is told of an older one after a newer one.

    Told after: by the same source, or by another that asked (`Generation.asked_ns`) after the newer
    one had been told. Looks at: all tellings of groups that had more than one generation.
    """
    found = Findings(history, "I3", "generations strictly rise; one member set each")
    groups: dict[str, list[Generation]] = defaultdict(list)
    for one in history.generations:
        groups[one.group].append(one)
    for group, told in groups.items():
        if len({one.generation for one in told}) > 1:
            found.looked_at += len(told)
        told.sort(key=lambda one: (one.at_ns, one.generation))
        _one_set_each(found, group, told)
        _rising(found, group, told)
    return found.verdict()


def _one_set_each(found: Findings, group: str, told: list[Generation]) -> None:
    whole: dict[int, Generation] = {}
    for one in told:
        if not one.whole:
            continue
        known = whole.setdefault(one.generation, one)
        if set(known.members) != set(one.members):
            found.broken(
                group,
                f"generation {one.generation} has two member sets: "
                f"[{_names(known)}] told to {known.source} at {found.at(known.at_ns)}, and "
                f"[{_names(one)}] told to {one.source} at {found.at(one.at_ns)}",
                one.at_ns,
            )
    for one in told:
        known = whole.get(one.generation, one)
        strangers = set(one.members) - set(known.members)
        if not one.whole and strangers:
            found.broken(
                group,
                f"{some(sorted(strangers))} was told at {found.at(one.at_ns)} that it is "
                f"in generation {one.generation}, whose members are [{_names(known)}]",
                one.at_ns,
            )


def _names(one: Generation) -> str:
    return some(sorted(one.members), 8)


def _rising(found: Findings, group: str, told: list[Generation]) -> None:
    # One process may be several members.
    newest: dict[tuple[str, tuple[str, ...]], Generation] = {}
    highest: list[Generation] = []
    for one in told:
        who = (one.source, () if one.whole else one.members)
        before = newest.get(who)
        if before is not None and one.generation < before.generation:
            found.broken(
                group,
                f"{one.source} was told of generation {one.generation} at "
                f"{found.at(one.at_ns)}, after generation {before.generation} at "
                f"{found.at(before.at_ns)}",
                one.at_ns,
            )
        else:
            newest[who] = one
        earlier = _told_before(highest, one.asked_ns)
        # The same source is looked at above.
        if earlier and earlier.generation > one.generation and earlier.source != one.source:
            found.broken(
                group,
                f"{one.source} asked at {found.at(one.asked_ns or 0)} and was told of "
                f"generation {one.generation}, after {earlier.source} had been told of "
                f"generation {earlier.generation} at {found.at(earlier.at_ns)}",
                one.at_ns,
            )
        if not highest or one.generation > highest[-1].generation:
            highest.append(one)


def _told_before(highest: list[Generation], asked_ns: int | None) -> Generation | None:
    """The highest generation told before a moment."""
    if asked_ns is None:
        return None
    index = bisect_left(highest, asked_ns, key=lambda one: one.at_ns)
    return highest[index - 1] if index else None
