"""inv-I7: a store that refuses older tokens never accepts a stale write (workload chaos-W4)."""

from collections import Counter
from dataclasses import dataclass

from musterd.chaos.check.findings import Findings
from musterd.chaos.check.setup import owned_by_key
from musterd.chaos.history import History, Key, Ownership, StoreWrite
from musterd.chaos.verdict import Verdict


@dataclass(slots=True)
class _Seen:
    highest: StoreWrite
    """The accepted write of the highest token, the first of them."""
    last: dict[tuple[str, int], int]
    """(client, token) -> its last sequence."""
    holders: dict[int, StoreWrite]
    """Token -> its first accepted write."""


def check(history: History) -> Verdict:
    """In the order in which a fenced store took its writes, their tokens never fall.

    That is the store's part. The tokens' own: no two clients write one partition under one token,
    and who is refused has been followed by an owner with a later token. The store must not
    refuse a write whose token is not stale, else one that is shut would pass; and the writes of one
    client under one token keep their order. The store without a fence shows what that prevents: a
    note says how many stale writes it took. Looks at: writes that the fenced store accepted.
    """
    owners = owned_by_key(history)
    found = Findings(history, "I7", "a fenced store never accepts a stale write")
    seen: dict[tuple[Key, bool], _Seen] = {}
    counts: Counter[str] = Counter()
    for one in sorted(history.store_writes, key=lambda write: write.at_ns):
        found.looked_at += one.fenced and one.accepted
        known = seen.get((one.key, one.fenced))
        stale = known is not None and one.token < known.highest.token
        if one.fenced:
            _fenced(found, one, known)
            _token(found, one, known, owners[one.key])
            counts["refused"] += not one.accepted
        else:
            counts["unfenced"] += 1
            counts["stale"] += stale and one.accepted
        if not one.accepted:
            continue
        if known is None:
            seen[one.key, one.fenced] = known = _Seen(one, {}, {})
        if one.token > known.highest.token:
            known.highest = one
        known.last[one.client, one.token] = one.sequence
        known.holders.setdefault(one.token, one)
    found.counts = dict(counts)
    found.note(
        f"the fenced store refused {counts['refused']} stale writes; the one without a fence took "
        f"{counts['stale']} stale ones of {counts['unfenced']}"
    )
    return found.verdict()


def _fenced(found: Findings, one: StoreWrite, known: _Seen | None) -> None:
    where = _word(found, one)
    if known is None:
        if not one.accepted:
            found.broken(one.key, f"{where} was refused, and was the first", one.at_ns)
        return
    highest = known.highest
    if one.accepted and one.token < highest.token:
        found.broken(one.key, f"{where} was accepted after {_word(found, highest)}", one.at_ns)
    if not one.accepted and one.token >= highest.token:
        found.broken(
            one.key,
            f"{where} was refused, and no later token was there than that of "
            f"{_word(found, highest)}",
            one.at_ns,
        )
    last = known.last.get((one.client, one.token))
    if one.accepted and last is not None and one.sequence <= last:
        found.broken(one.key, f"{where} was accepted after its own write {last}", one.at_ns)


def _token(found: Findings, one: StoreWrite, known: _Seen | None, owners: list[Ownership]) -> None:
    """Check the token of a write, whatever the store made of it."""
    where = _word(found, one)
    other = None if known is None else known.holders.get(one.token)
    if one.accepted and other is not None and other.client != one.client:
        found.broken(one.key, f"{where} has the token of {_word(found, other)}", one.at_ns)
    if not one.accepted and not any(
        (owned.token or owned.generation) > one.token and owned.from_ns <= one.at_ns
        for owned in owners
    ):
        found.broken(
            one.key,
            f"{where} was refused, and nobody had been given the partition with a later token",
            one.at_ns,
        )


def _word(found: Findings, one: StoreWrite) -> str:
    return f"write {one.sequence} of {one.client} under token {one.token} ({found.at(one.at_ns)})"
