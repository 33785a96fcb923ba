"""Histories of one key by a seed: what a register would answer, and what it would never."""

from dataclasses import replace
from random import Random

from musterd.chaos.history import SUPERSEDED, Key, Operation, Outcome

KEY = Key("g", "t", 0)


def generated(rng: Random, operations: int, *, shared: bool, bent: bool) -> list[Operation]:
    """Clients at work on a real register.

    `shared`: some values have several writers (deletes, resets). `bent`: afterwards some answers or
    times are not the true ones; what comes out may be linearizable all the same.
    """
    made: list[tuple[int, Operation]] = []
    free = [0] * rng.randint(1, 5)
    for number in range(operations):
        client = rng.randrange(len(free))
        began = free[client] + rng.randint(0, 4)
        moment = began + rng.randint(0, 6)
        ended = moment + rng.randint(0, 6)
        free[client] = ended + rng.randint(0, 1)
        made.append((moment, _drawn(rng, number, f"c{client}", began, ended, shared=shared)))
    answered = _answered(rng, sorted(made, key=lambda one: one[0]))
    if bent:
        for _ in range(rng.randint(1, 3)):
            _bend(rng, answered)
    answered.sort(key=lambda one: one.began_ns)
    return answered


def _drawn(
    rng: Random, number: int, client: str, began: int, ended: int, *, shared: bool
) -> Operation:
    what = rng.choice(["commit", "read", "read"])
    value: int | None = number if what == "commit" else None
    if what == "commit" and shared and rng.random() < 0.5:
        what, value = rng.choice([("delete", -1), ("reset", rng.randrange(3))])
    outcome, error = Outcome.OK, ""
    if what != "read" and rng.random() < 0.3:
        outcome, error = rng.choice(
            [(Outcome.UNKNOWN, ""), (Outcome.UNKNOWN, SUPERSEDED), (Outcome.FAIL, "FENCED")]
        )
    end = None if outcome is Outcome.UNKNOWN and not error else ended
    return Operation(client, what, KEY, began, end, outcome, value, error=error)


def _answered(rng: Random, made: list[tuple[int, Operation]]) -> list[Operation]:
    """In the order of their moments, each takes effect: reads get their answers."""
    late = [one for one in made if one[1].ended_ns is None and rng.random() < 0.3]
    last = made[-1][0] if made else 0
    # What was never answered may take effect long afterwards.
    made = [one for one in made if one not in late]
    made += [(rng.randint(moment, last), one) for moment, one in late]
    value = -1
    answered = []
    for _, one in sorted(made, key=lambda one: one[0]):
        if one.kind == "read":
            answered.append(replace(one, value=value))
            continue
        answered.append(one)
        happens = one.outcome is Outcome.OK or (
            one.outcome is Outcome.UNKNOWN and rng.random() < 0.6
        )
        if happens and one.value is not None:
            value = one.value
    return answered


def _bend(rng: Random, made: list[Operation]) -> None:
    index = rng.randrange(len(made))
    one = made[index]
    how = rng.randrange(4)
    if how == 0 and one.kind == "read":
        others = [other.value for other in made] + [-1]
        made[index] = replace(one, value=rng.choice(others))
    elif how == 1 and one.ended_ns is not None:
        by = rng.randint(-20, 20)
        made[index] = replace(one, began_ns=one.began_ns + by, ended_ns=one.ended_ns + by)
    elif how == 2 and one.kind != "read" and one.outcome is Outcome.UNKNOWN:
        made[index] = replace(one, outcome=Outcome.FAIL)
    elif how == 3 and one.ended_ns is not None:
        made[index] = replace(one, ended_ns=rng.randint(one.began_ns, one.ended_ns))
    else:
        reads = [n for n, other in enumerate(made) if other.kind == "read"]
        if len(reads) > 1:
            a, b = rng.sample(reads, 2)
            made[a], made[b] = (
                replace(made[a], value=made[b].value),
                replace(made[b], value=made[a].value),
            )
