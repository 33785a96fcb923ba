"""Which acknowledged commits are in the logs that the nodes had at the end."""

from collections.abc import Iterator
from dataclasses import dataclass

from chaos.history import History, Key, Operation, Outcome


@dataclass(frozen=True, slots=True)
class LookedUp:
    """An acknowledged commit that was sent after something that its shard's log has."""

    commit: Operation
    shard: int
    there: bool


def look_up(history: History) -> Iterator[LookedUp]:
    """Each acknowledged commit that has to be in its shard's log.

    The log's beginning may be gone. What is sent after a commit that the log has was acknowledged
    comes behind that one, and has to be there. Without exported logs: nothing.
    """
    logs: dict[Key, set[int]] = {}
    shards: dict[str, int] = {}
    for line in history.logged:
        logs.setdefault(line.key, set()).update(line.values)
        shards[line.key.group] = line.shard
    mine = [
        one
        for one in history.commits()
        if one.outcome is Outcome.OK and one.ended_ns is not None and one.key.group in shards
    ]
    since: dict[int, int] = {}
    for one in mine:
        if one.ended_ns is not None and one.value in logs.get(one.key, ()):
            shard = shards[one.key.group]
            since[shard] = min(one.ended_ns, since.get(shard, one.ended_ns))
    for one in mine:
        shard = shards[one.key.group]
        if shard in since and one.began_ns > since[shard]:
            yield LookedUp(one, shard, one.value in logs.get(one.key, ()))
