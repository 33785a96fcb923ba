"""Histories by hand: times in whole seconds, one key unless said."""

from musterd.chaos.history import Expected, Generation, History, Key, Operation, Outcome, Ownership
from musterd.chaos.verdict import Verdict

S = 1_000_000_000
KEY = Key("g", "t", 0)
OTHER = Key("g", "t", 1)


def op(kind, value, began, ended, **fields) -> Operation:
    """An operation; never answered where `ended` is None, and acknowledged otherwise."""
    outcome = Outcome.UNKNOWN if ended is None else Outcome.OK
    fields = {"client": "w", "key": KEY, "outcome": outcome, **fields}
    end = None if ended is None else int(ended * S)
    return Operation(kind=kind, value=value, began_ns=int(began * S), ended_ns=end, **fields)


def commit(value, began, ended, **fields) -> Operation:
    """A commit."""
    return op("commit", value, began, ended, **fields)


def read(value, began, ended, **fields) -> Operation:
    """A read."""
    return op("read", value, began, ended, **fields)


def delete(began, ended, **fields) -> Operation:
    """A delete."""
    return op("delete", -1, began, ended, **fields)


def owns(member, generation, since, until, ended="revoked", **fields) -> Ownership:
    """An ownership; open where `until` is None."""
    fields = {"client": f"client-{member}", "key": KEY, **fields}
    if until is None:
        return Ownership(
            member_id=member, generation=generation, from_ns=since * S, until_ns=None, **fields
        )
    return Ownership(
        member_id=member,
        generation=generation,
        from_ns=since * S,
        until_ns=int(until * S),
        ended=ended,
        **fields,
    )


def told(generation, members, at, source="node-0", **fields) -> Generation:
    """A generation with all its members, unless `whole` says otherwise."""
    fields = {"group": "g", "whole": True, **fields}
    if isinstance(members, str):
        members = tuple(members)
    return Generation(generation=generation, members=members, at_ns=at * S, source=source, **fields)


def expected(**fields) -> Expected:
    """Group g with one partition, 6 s of session and 4 s for a rebalance."""
    fields = {"topics": (("t", 1),), **fields}
    return Expected(group="g", session_timeout_ms=6000, rebalance_timeout_ms=4000, **fields)


def history(*operations, **lists) -> History:
    """A history of these operations, sorted, and whatever else it has."""
    ordered = sorted(operations, key=lambda one: one.began_ns)
    return History(operations=ordered, **lists)


def only(verdict: Verdict) -> str:
    """The one violation that a verdict has."""
    (violation,) = verdict.violations
    assert violation.invariant == verdict.invariant
    assert not verdict.passed
    return violation.what
