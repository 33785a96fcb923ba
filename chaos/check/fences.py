"""inv-I5: the fencing tokens of a partition rise, and two owners never share one.

Owners are processes, by member id: two processes of one static member are two owners.
"""

from musterd.chaos.check.findings import Findings
from musterd.chaos.check.setup import owned_by_key
from musterd.chaos.history import History, Key, Ownership
from musterd.chaos.verdict import Verdict


def check(history: History) -> Verdict:
    """Of two owners of a partition the one of the later generation has the larger token.

    Processes hear of what they own in any order, so the numbers are compared, and no times: of one
    process alone a later word never has a smaller token. Looks at: ownerships whose token was
    recorded.
    """
    found = Findings(history, "I5", "fencing tokens per partition rise; two owners never share one")
    for key, all_owned in owned_by_key(history).items():
        owned = [one for one in all_owned if one.token]
        found.looked_at += len(owned)
        _one_each(found, key, owned)
        _rising(found, key, owned)
    return found.verdict()


def _one_each(found: Findings, key: Key, owned: list[Ownership]) -> None:
    holders: dict[int, Ownership] = {}
    for one in owned:
        known = holders.setdefault(one.token, one)
        if known.member_id != one.member_id:
            found.broken(
                key,
                f"two owners under one token: {_word(found, known)}, and {_word(found, one)}",
                one.from_ns,
            )


def _rising(found: Findings, key: Key, owned: list[Ownership]) -> None:
    """By generation; the highest token of all generations before is below the lowest of this."""
    newest: dict[str, Ownership] = {}
    for one in owned:
        before = newest.get(one.member_id, one)
        if one.token < before.token:
            found.broken(key, _fell(found, before, one), one.from_ns)
        newest[one.member_id] = one
    highest: Ownership | None = None
    for one in sorted(owned, key=lambda one: (one.generation, one.token)):
        if highest is not None and one.token < highest.token:
            found.broken(key, _fell(found, highest, one), one.from_ns)
        else:
            highest = one


def _fell(found: Findings, before: Ownership, one: Ownership) -> str:
    return f"the token fell: {_word(found, one)}, after {_word(found, before)}"


def _word(found: Findings, one: Ownership) -> str:
    return (
        f"{one.member_id} of {one.client} had token {one.token} (generation {one.generation}, "
        f"{found.span(one.from_ns, one.until_ns)})"
    )
