"""Which acknowledged commits are in the logs that the nodes had at the end."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from musterd.chaos.check.register import BEFORE_ALL, FOREVER
from musterd.chaos.history import History, Key, Operation, Outcome
from musterd.coordinator.runtime.routing import shard_of


@dataclass(frozen=True, slots=True)
class LookedUp:
    """An acknowledged commit that its shard's log goes back to."""

    commit: Operation
    shard: int
    there: bool


def look_up(history: History) -> Iterator[LookedUp]:
    """Each acknowledged commit that has to be in its shard's log.

    All of them where nothing of the log is missing. Else its beginning is gone, and nothing that a
    client sees says how far back it goes: what is sent after a commit that the log has was
    acknowledged comes behind that one, and has to be there; an earlier one may be there or not.
    Without exported logs: nothing.
    """
    logs: dict[Key, set[int]] = {}
    for line in history.logged:
        logs.setdefault(line.key, set()).update(line.values)
    shard_in = _routing(history)
    mine = [
        (one, shard, one.value in logs.get(one.key, ()))
        for one in history.commits()
        if one.outcome is Outcome.OK and (shard := shard_in(one.key.group)) is not None
    ]
    since = {log.shard: BEFORE_ALL for log in history.logs if log.first == 1}
    for one, shard, there in mine:
        if there and one.ended_ns is not None:
            since[shard] = min(one.ended_ns, since.get(shard, one.ended_ns))
    for one, shard, there in mine:
        if one.began_ns > since.get(shard, FOREVER):
            yield LookedUp(one, shard, there)


def _routing(history: History) -> Callable[[str], int | None]:
    """Each group's shard; an earlier muster's history knows those that are in a log."""
    shards = history.facts.get("shards")
    if isinstance(shards, int):
        return lambda group: shard_of(group, shards)
    return {line.key.group: line.shard for line in history.logged}.get
