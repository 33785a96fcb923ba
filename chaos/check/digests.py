"""inv-I10 and inv-I11: nodes, replays and the record of causes agree."""

from collections import defaultdict
from collections.abc import Iterator

from musterd.chaos.check.findings import Findings, some
from musterd.chaos.history import Checkpoint, History, Round
from musterd.chaos.verdict import Verdict


def check_nodes(history: History) -> Verdict:
    """At one index of one shard all nodes have one digest.

    Except where a fault changed what a node stores, until that is made whole (inv-I14).
    Looks at: places (shard, index) at which two nodes or more were asked.
    """
    found = Findings(history, "I10", "one digest at one index on all nodes")
    places: dict[tuple[int, int], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for one in _undiverged(history):
        places[one.shard, one.index][one.digest].add(one.node)
    for (shard, index), digests in sorted(places.items()):
        nodes = [sorted(who) for who in digests.values()]
        found.looked_at += len({node for who in nodes for node in who}) > 1
        if len(digests) > 1:
            told = (
                f"{digest} on {', '.join(f'node-{node}' for node in sorted(who))}"
                for digest, who in sorted(digests.items())
            )
            found.broken(f"shard {shard}", f"index {index}: {some(told)}")
    return found.verdict()


def check_history(history: History) -> Verdict:
    """Every rebalance has one recorded cause, and a replay reaches the digests of the nodes.

    A generation that a member was told of and that lies between two recorded ones was recorded too
    (the record keeps the last rounds only). Looks at: recorded rounds, and replayed places at which
    a node or another replay can be compared.
    """
    found = Findings(history, "I11", "one cause per rebalance; the replayed history is the same")
    _causes(found, history)
    _replays(found, history)
    for what, there in (("recorded rounds", history.rounds), ("replays", history.replays)):
        if not there:
            found.note(f"no {what} are in this history")
    return found.verdict()


def _causes(found: Findings, history: History) -> None:
    records: dict[tuple[str, str], dict[int, Round]] = defaultdict(dict)
    causes: dict[tuple[str, int], Round] = {}
    for one in history.rounds:
        found.looked_at += 1
        name = f"generation {one.generation}"
        if not one.cause:
            found.broken(one.group, f"{name} has no recorded cause (from {one.source})")
        mine = records[one.group, one.source]
        if one.generation in mine:
            other = mine[one.generation].cause or "-"
            found.broken(
                one.group,
                f"{name} is recorded twice by {one.source}: {other} and {one.cause or '-'}",
            )
        mine[one.generation] = one
        known = causes.setdefault((one.group, one.generation), one)
        if known.cause != one.cause:
            found.broken(
                one.group,
                f"{name} has two causes: {known.cause} ({known.source}) and {one.cause} "
                f"({one.source})",
            )
    told: dict[str, set[int]] = defaultdict(set)
    for generation in history.generations:
        told[generation.group].add(generation.generation)
    modern = {one.group for one in history.expected if one.modern}
    for (group, source), mine in records.items():
        if group in modern:  # epochs of members are no rebalances
            continue
        first, last = min(mine), max(mine)
        for number in sorted(told[group] - mine.keys()):
            if first < number < last:
                found.broken(
                    group,
                    f"members were told of generation {number}, and {source} has no "
                    f"rebalance that formed it",
                )


def _replays(found: Findings, history: History) -> None:
    places: dict[tuple[int, int], dict[str, str]] = defaultdict(dict)
    for point in _undiverged(history):
        places[point.shard, point.index][f"node-{point.node}"] = point.digest
    replayed = {(replay.shard, replay.index) for replay in history.replays}
    for replay in history.replays:
        known = places[replay.shard, replay.index]
        before = known.setdefault(replay.source, replay.digest)
        if before != replay.digest:
            found.broken(
                f"shard {replay.shard}",
                f"index {replay.index}: {replay.source} has two digests: {before} and "
                f"{replay.digest}",
            )
    for shard, index in sorted(replayed):
        known = places[shard, index]
        found.looked_at += len(known) > 1
        if len(set(known.values())) > 1:
            told = (f"{digest} of {source}" for source, digest in sorted(known.items()))
            found.broken(f"shard {shard}", f"index {index}: {some(told)}")


def _undiverged(history: History) -> Iterator[Checkpoint]:
    """Those of states that no fault had changed."""
    changed = [one for one in history.node_states if one.kind == "diverged"]
    for point in history.checkpoints:
        if not any(
            (one.node, one.shard) == (point.node, point.shard)
            and one.from_index < point.index <= one.until_index
            for one in changed
        ):
            yield point
