"""Assignors by name, and functions of the user's as assignors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.assignors.base import Assignor, Function, Shares, Subscriber
from muster.assignors.plain import RangeAssignor, RoundRobinAssignor
from muster.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from muster.errors import InvalidConfig

Choice = str | Assignor | Function | Sequence[str | Assignor | Function]
"""What `Client.group(assignor=...)` takes: a name, an object, a function, or a list of these."""


@dataclass(frozen=True, slots=True)
class FunctionAssignor:
    """A function as an assignor.

    Args:
        name: what members vote on: the same in all of them.
        function: pure; see `Assignor.assign`.
        cooperative: members keep working during a rebalance, and only what moves stops.
        wants_owned: subscribers come with what they owned.
    """

    name: str
    function: Function
    cooperative: bool = False
    wants_owned: bool = True

    def assign(
        self, subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
    ) -> Shares:
        return self.function(subscribers, partition_counts)


_REGISTRY: dict[str, Assignor] = {
    one.name: one
    for one in (
        RangeAssignor(),
        RoundRobinAssignor(),
        StickyAssignor(),
        CooperativeStickyAssignor(),
    )
}


def register(assignor: Assignor) -> None:
    """Make an assignor known by its name in this process. A name is taken once.

    Raises:
        InvalidConfig: the name is empty or taken by another one.
    """
    if not assignor.name:
        raise InvalidConfig("an assignor needs a name")
    if _REGISTRY.setdefault(assignor.name, assignor) is not assignor:
        raise InvalidConfig(f"another assignor is registered as {assignor.name!r}")


def resolve(given: Choice) -> tuple[Assignor, ...]:
    """Assignors in order of preference, from names, objects and functions.

    Raises:
        InvalidConfig: a name that nobody registered, none at all, one twice, or a function without
            a name of its own.
    """
    several = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    found = tuple(_one(one) for one in several)
    if not found:
        raise InvalidConfig("a member needs at least one assignor")
    if len({a.name for a in found}) != len(found):
        raise InvalidConfig("an assignor is listed twice")
    return found


def is_cooperative(assignors: Sequence[Assignor]) -> bool:
    """Whether a member with this list keeps its partitions during a round: if all of them are.

    A list that has both kinds is the first of two rolling restarts from eager to cooperative: until
    the eager ones are dropped the member gives everything up first (gp-6.1).
    """
    return all(getattr(assignor, "cooperative", False) for assignor in assignors)


def is_own(assignor: Assignor) -> bool:
    """Whether the user wrote it, so that nobody here knows how long it takes."""
    code = assignor.function if isinstance(assignor, FunctionAssignor) else type(assignor)
    return not str(getattr(code, "__module__", "")).startswith("muster.")


def _one(given: str | Assignor | Function) -> Assignor:
    if isinstance(given, str):
        if given not in _REGISTRY:
            known = ", ".join(sorted(_REGISTRY))
            raise InvalidConfig(f"no assignor {given!r}; there are: {known}")
        return _REGISTRY[given]
    if not isinstance(given, Assignor):
        return _from_function(given)
    return given


def _from_function(function: Function) -> Assignor:
    """Named after the function, so it needs a name that is the same in every member."""
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise InvalidConfig(
            f"{function!r} has no name that members could vote on",
            hint="give FunctionAssignor(name, function)",
        )
    return FunctionAssignor(name, function)
