"""inv-I17: what an operator was told is done stays done: settings, kicks, grown topics."""

from collections import defaultdict

from musterd.chaos.check import search
from musterd.chaos.check.findings import Findings
from musterd.chaos.check.register import registers
from musterd.chaos.check.setup import HEARD_NS, QUORUM_NS
from musterd.chaos.history import History, Key, Operated, Operation, Outcome
from musterd.chaos.verdict import Verdict


def check(history: History) -> Verdict:
    """An acknowledged setting is read until it is changed; a kicked id and few partitions are gone.

    A call without an answer may take effect at any time after it began, or never. Settings are read
    at the coordinator without asking a majority, so a read amid a fault says nothing. Members of
    `modern` groups come back under their ids: inv-I6 judges what they do in between. Looks at:
    reads of settings, what members of groups did after a kick, partitions told after a growth.
    """
    found = Findings(history, "I17", "a setting, a kick, a grown topic stay as acknowledged")
    _settings(found, history)
    _kicks(found, history)
    _growths(found, history)
    return found.verdict()


def _settings(found: Findings, history: History) -> None:
    made = [one for one in history.operated if one.what in ("set", "setting")]
    accesses = [
        _access(one)
        for one in made
        if one.what == "set" or (one.outcome is Outcome.OK and not _amid_fault(history, one))
    ]
    for key, register in registers(History(operations=accesses)).items():
        if not register.writes:
            continue
        found.looked_at += len(register.reads)
        where = f"{key.group}: {key.topic}"
        access = search.check(register, found, where)
        if access is not None:
            found.broken(
                where,
                f"nothing that was set before explains {found.operation(access.operation)}"
                f" (-1: none of the group's own)",
                access.begin,
            )


def _access(one: Operated) -> Operation:
    """As the register of offsets has it."""
    return Operation(
        client=one.client,
        kind="reset" if one.what == "set" else "read",
        key=Key(one.subject, one.name, -1),
        began_ns=one.began_ns,
        ended_ns=None if one.outcome is Outcome.UNKNOWN else one.ended_ns,
        outcome=one.outcome,
        value=one.value,
        error=one.error,
    )


def _amid_fault(history: History, one: Operated) -> bool:
    return any(
        fault.began_ns <= one.ended_ns and one.began_ns <= fault.healed_ns + QUORUM_NS + HEARD_NS
        for fault in history.faults
    )


def _kicks(found: Findings, history: History) -> None:
    kicked: dict[tuple[str, str], Operated] = {}
    modern = {one.group for one in history.expected if one.modern}
    groups: dict[str, int] = defaultdict(lambda: 1 << 62)
    for one in sorted(history.operated, key=lambda one: one.ended_ns):
        if one.what == "kick" and one.outcome is Outcome.OK and one.subject not in modern:
            kicked.setdefault((one.subject, one.name), one)
            groups[one.subject] = min(groups[one.subject], one.ended_ns)

    def look(group: str, member_id: str, at_ns: int, what: str) -> None:
        kick = kicked.get((group, member_id))
        if kick is not None and at_ns > kick.ended_ns:
            gone = f"{member_id}, kicked by {kick.client} ({found.at(kick.ended_ns)})"
            found.broken(group, f"{what} {gone}", at_ns)

    for call in history.operations:
        group = call.key.group
        acts = call.kind in ("commit", "heartbeat") and call.outcome is Outcome.OK
        if acts and call.member_id and call.began_ns > groups[group]:
            found.looked_at += 1
            look(group, call.member_id, call.began_ns, f"accepted {found.operation(call)} of")
    for told in history.generations:
        asked_ns = told.asked_ns
        if told.whole and asked_ns is not None and asked_ns > groups[told.group]:
            found.looked_at += 1
            for member in told.members:
                words = f"{told.source} has in generation {told.generation}"
                look(told.group, member, asked_ns, words)


def _growths(found: Findings, history: History) -> None:
    grown = [o for o in history.operated if o.what == "grow" and o.outcome is Outcome.OK]
    for one in history.operated:
        if one.what != "partitions" or one.outcome is not Outcome.OK:
            continue
        before = [g for g in grown if g.subject == one.subject and g.ended_ns < one.began_ns]
        most = max(before, key=lambda g: g.value or 0, default=None)
        if most is None:
            continue
        found.looked_at += 1
        if (one.value or 0) < (most.value or 0):
            found.broken(
                f"topic {one.subject}",
                f"node-{one.node} has {one.value} partitions, and "
                f"{most.value} were acknowledged to {most.client} ({found.at(most.ended_ns)})",
                one.began_ns,
            )
