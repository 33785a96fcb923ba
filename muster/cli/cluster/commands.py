"""`muster cluster`: nodes and shards as each node sees them, and the return of a wiped node."""

from typing import Annotated

import typer

from muster.admin.restart_safety import unsafe_to_restart
from muster.cli.cluster.upgrade import upgrade
from muster.cli.cluster.verify import verify
from muster.cli.connection import Connection, NodeAnswer
from muster.cli.errors import CommandError, ExitCode
from muster.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    DryRun,
    Output,
    Timeout,
    Yes,
    confirm,
)
from muster.cli.output import Format, Result, Table, Value, show
from muster.cli.watch import watchable
from muster.v1.admin_pb2 import (
    AcceptLossRequest,
    DescribeClusterRequest,
    DescribeClusterResponse,
    Node,
    ReplaceNodeRequest,
    Shard,
    TransferLeaderRequest,
)

NODE_COLUMNS = (
    *("NODE", "ENDPOINT", "PEER-ENDPOINT", "STATUS", "LEADS", "LEARNER-IN", "WAITS-FOR"),
    *("VERSION", "STORE-UUID", "SAFE-TO-RESTART"),
)
SHARD_COLUMNS = ("SHARD", "LEADER", "TERM", "COMMIT-INDEX", "GROUPS", "BEHIND", "STATUS")
REFUSAL_COLUMNS = ("AT-NODE", "REFUSED", "REASON")

_NOT_IN_TABLE = ("error", "awaits", "lost", "reaches_itself", "unsafe_to_restart", "loading")

Views = list[NodeAnswer[DescribeClusterResponse]]


def register(app: typer.Typer) -> None:
    family = typer.Typer(help="Nodes, shards, digests.", no_args_is_help=True)
    family.command("status")(watchable(status))
    family.command("verify")(verify)
    family.command("replace-node")(replace_node)
    family.command("accept-loss")(accept_loss)
    family.command("transfer-leader")(transfer_leader)
    family.command("upgrade")(upgrade)
    app.add_typer(family, name="cluster")


# ---- status


OPEN = "OPEN: everybody may do everything but operators' calls"


def status(
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show nodes and shards. Exits 5 unless each node answers and counts, and shards are served."""
    with Connection(bootstrap, timeout) as to:
        cluster, views = _views(to)
    nodes = [_node_item(cluster, views, view) for view in views]
    shards = [_shard_item(shard, views) for shard in range(cluster.shards)]
    refusals = _refusals(views)
    rules = max((view.answer.access_rules for view in views if view.answer), default=0)
    refused: list[dict[str, Value]] = [
        {"node_id": node.node_id, "store_uuid": node.store_uuid} for node in _refused(views)
    ]
    show(
        Result(
            schema="muster.cluster.status/v1",
            document={
                "cluster_id": cluster.cluster_id,
                "nodes": nodes,
                "shards": shards,
                "refused": refused,
                "refusals": refusals,
                "open": not rules,
                "rules": rules,
            },
            tables=[
                Table(NODE_COLUMNS, [_node_row(item) for item in nodes]),
                Table(SHARD_COLUMNS, [list(item.values()) for item in shards]),
                Table(
                    ("REFUSED-NODE", "STORE-UUID"),
                    [[node.node_id, node.store_uuid] for node in _refused(views)],
                ),
                Table(REFUSAL_COLUMNS, [list(item.values()) for item in refusals]),
                Table(("ACCESS", "RULES"), [(OPEN if not rules else "by rules", rules)]),
            ],
            items=nodes,
            names=[str(item["node_id"]) for item in nodes],
        ),
        output,
    )
    _require_healthy(nodes, shards, refused)


def trouble(cluster: DescribeClusterResponse, views: Views) -> CommandError | None:
    """What `status` ends with; None where nothing is wrong. `views`: what each node said."""
    try:
        _require_healthy(
            [_node_item(cluster, views, view) for view in views],
            [_shard_item(shard, views) for shard in range(cluster.shards)],
            [{"node_id": node.node_id} for node in _refused(views)],
        )
    except CommandError as error:
        return error
    return None


def _views(to: Connection) -> tuple[DescribeClusterResponse, Views]:
    return to.ask_each(lambda at, s: at.admin.DescribeCluster(DescribeClusterRequest(), timeout=s))


def _node_item(
    cluster: DescribeClusterResponse, views: Views, view: NodeAnswer[DescribeClusterResponse]
) -> dict[str, Value]:
    """A node in its own words where it answers, else as another node knows it.

    It is a learner in as many shards as anybody says: it counts only once all have admitted it.
    """
    unsafe = unsafe_to_restart(
        view.node_id, {one.node_id: one.answer for one in views if one.answer}
    )
    known = [*(view.answer.nodes if view.answer else ()), *cluster.nodes]
    node = next(node for node in known if node.node_id == view.node_id)
    said = [
        one
        for other in views
        for one in (other.answer or cluster).nodes
        if one.node_id == view.node_id
    ]
    return {
        "node_id": node.node_id,
        "endpoint": node.endpoint,
        "peer_endpoint": node.peer_endpoint,
        "status": "up" if view.answer else "silent",
        "leads": len(_led(view.answer)) if view.answer else None,
        "learner_shards": max(one.learner_shards for one in said),
        "waits_for": ",".join(map(str, view.answer.awaited)) or None if view.answer else None,
        "awaits": ",".join(map(str, sorted({n for one in said for n in one.awaits}))) or None,
        "lost": any(one.lost for one in said),
        "reaches_itself": _reaches_itself(said),
        "version": node.version or None,
        "store_uuid": node.store_uuid or None,
        "error": view.error or None,
        "safe_to_restart": not unsafe,
        "unsafe_to_restart": unsafe or None,
        "loading": _loading(view.answer) or None if view.answer else None,
    }


def _node_row(item: dict[str, Value]) -> list[Value]:
    shown = dict(item)
    if shown["reaches_itself"] is False:
        shown["status"] = f"{shown['status']}, unreachable"
    if shown["loading"]:
        shown["status"] = f"{shown['status']}, loading {shown['loading']}"
    return [value for key, value in shown.items() if key not in _NOT_IN_TABLE]


def _reaches_itself(said: list[Node]) -> bool | None:
    """Whether clients reach the node, as it told the nodes that answer; None: nobody knows."""
    told = [one.reaches_itself for one in said if one.HasField("reaches_itself")]
    return all(told) if told else None


def _loading(view: DescribeClusterResponse) -> str:
    """How many shards a node has yet to load; "" for none.

    One in quarantine waits for something else.
    """
    count = sum(shard.loading and not shard.quarantined for shard in view.shard_states)
    return f"{count} of {len(view.shard_states)} shards" if count else ""


def _led(view: DescribeClusterResponse) -> list[Shard]:
    return [shard for shard in view.shard_states if shard.role == "Leader"]


def _shard_item(number: int, views: Views) -> dict[str, Value]:
    """A shard as its leader sees it; `behind` is what the slowest answering replica lacks."""
    seen = [
        (view.node_id, shard)
        for view in views
        if view.answer
        for shard in view.answer.shard_states
        if shard.shard == number
    ]
    leaders = [(shard.term, node_id, shard) for node_id, shard in seen if shard.role == "Leader"]
    quarantined = sorted(node_id for node_id, shard in seen if shard.quarantined)
    item: dict[str, Value] = {
        "shard": number,
        "leader": None,
        "term": None,
        "commit_index": None,
        "groups": None,
        "behind": None,
        "status": "no leader",
    }
    if leaders:
        term, leader_id, shard = max(leaders, key=lambda leader: leader[:2])
        slowest = min(other.applied_index for _, other in seen)
        item |= {
            "leader": leader_id,
            "term": term,
            "commit_index": shard.commit_index,
            "groups": shard.groups,
            "behind": max(0, shard.commit_index - slowest),
            "status": f"loading on node {leader_id}" if shard.loading else "ok",
        }
    if quarantined:
        item["status"] = "quarantined on node " + ", ".join(map(str, quarantined))
    return item


def _refused(views: Views) -> list[Node]:
    """Stores that some node refused, each once."""
    found = {
        (node.node_id, node.store_uuid): node
        for view in views
        if view.answer
        for node in view.answer.refused
    }
    return [found[key] for key in sorted(found)]


def _refusals(views: Views) -> list[dict[str, Value]]:
    """Connections between nodes that were turned away, as each node remembers them."""
    return [
        {"node_id": view.node_id, "who": refusal.who, "reason": refusal.reason}
        for view in views
        if view.answer
        for refusal in view.answer.refusals
    ]


def _require_healthy(
    nodes: list[dict[str, Value]], shards: list[dict[str, Value]], refused: list[dict[str, Value]]
) -> None:
    trouble = [
        f"node {item['node_id']} does not answer ({item['error']})"
        for item in nodes
        if item["status"] != "up"
    ]
    trouble += [
        f"shard {item['shard']}: {item['status']}" for item in shards if item["status"] != "ok"
    ]
    trouble += [
        f"node {item['node_id']} is refused by the others: its store is not the one they know"
        for item in refused
    ]
    steps = [_LOST] if trouble else []
    loading = [item for item in nodes if item["loading"]]
    trouble += [f"node {item['node_id']} is loading {item['loading']}" for item in loading]
    if loading:
        steps.insert(0, "wait: a node that has started serves each shard once it has loaded it")
    unreached = [item for item in nodes if item["reaches_itself"] is False]
    trouble += [
        f"node {item['node_id']} does not reach itself at {item['endpoint']}, so clients hardly do"
        for item in unreached
    ]
    if unreached:
        steps.insert(0, "the node's log says why: its `advertise`, its certificate or the network")
    new = [item for item in nodes if item["waits_for"]]
    for item in new:
        trouble.append(f"node {item['node_id']} is new and waits for node {item['waits_for']}")
    if new:
        steps.append("the first start of a cluster takes all nodes at once: start those that wait")
    learners = [item for item in nodes if item["learner_shards"] and item not in new]
    for item in learners:
        forgot = " because its store forgot what it had synced" if item["lost"] else ""
        awaits = f"; it waits for node {item['awaits']}" if item["awaits"] else ""
        count = item["learner_shards"]
        trouble.append(f"node {item['node_id']} is a learner in {count} shards{forgot}{awaits}")
    if learners:
        steps.append("shards admit a learner by themselves, while every other node is up")
    if trouble:
        raise CommandError(
            "; ".join(trouble), next_step="; ".join(steps), exit_code=ExitCode.UNHEALTHY
        )


_LOST = (
    "start the node again (`muster serve`); if its disk is lost: `muster init`, `muster serve`, "
    "`muster cluster replace-node`"
)


# ---- replace-node


def replace_node(
    node_id: Annotated[int, typer.Argument(metavar="NODE", min=0, help="Id of the wiped node.")],
    store_uuid: Annotated[
        str,
        typer.Option(
            "--store-uuid",
            help="The new store, as `muster init` printed it. Default: the only one that was "
            "refused.",
        ),
    ] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Let a node whose disk was lost come back with a new store.

    It learns everything from the others and votes in no shard until the shard has admitted it.
    What only the old store held is given up, so this asks first.
    """
    with Connection(bootstrap, timeout) as to:
        cluster, views = _views(to)
        before = _store_of(cluster, views, node_id)
        candidates = [node.store_uuid for node in _refused(views) if node.node_id == node_id]
        after = store_uuid or _only(candidates, node_id)
        if not dry_run:
            confirm(
                f"Replace the store of node {node_id}: {before or 'unknown'} -> {after}?", yes=yes
            )
            request = ReplaceNodeRequest(node_id=node_id, store_uuid=after)
            shown = to.operator()
            answer = to.ask(lambda at, s: at.admin.ReplaceNode(request, timeout=s, metadata=shown))
            after = answer.store_uuid or after
    document: dict[str, Value] = {
        "node_id": node_id,
        "store_uuid_before": before,
        "store_uuid_after": after,
        "dry_run": dry_run,
    }
    word = "would be replaced" if dry_run else "replaced"
    show(
        Result(
            schema="muster.cluster.replace-node/v1",
            document=document,
            tables=[Table(("NODE", "BEFORE", "AFTER", "RESULT"), [(node_id, before, after, word)])],
            items=[document],
            names=[str(node_id)],
        ),
        output,
    )


# ---- accept-loss


def accept_loss(
    node_id: Annotated[int, typer.Argument(metavar="NODE", min=0, help="Id of the node.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Let a node count though its store forgot what it had synced.

    Only where a majority forgot, or the nodes that it waits for are gone for good. What no
    remaining node holds is given up, commits that were acknowledged among it. Start every node that
    still has its data first.
    """
    with Connection(bootstrap, timeout) as to:
        cluster, views = _views(to)
        _store_of(cluster, views, node_id)
        if dry_run:
            _require_loss(next(view for view in views if view.node_id == node_id))
        else:
            confirm(f"Give up what node {node_id} forgot and no other node holds?", yes=yes)
            request = AcceptLossRequest(node_id=node_id)
            shown = to.operator()
            _, answers = to.ask_each(
                lambda at, s: at.admin.AcceptLoss(request, timeout=s, metadata=shown)
            )
            answer = next(one for one in answers if one.node_id == node_id)
            if answer.answer is None:
                raise _no_loss(node_id, answer.error)
    document: dict[str, Value] = {"node_id": node_id, "dry_run": dry_run}
    word = "would be accepted" if dry_run else "accepted"
    show(
        Result(
            schema="muster.cluster.accept-loss/v1",
            document=document,
            tables=[Table(("NODE", "RESULT"), [(node_id, word)])],
            items=[document],
            names=[str(node_id)],
        ),
        output,
    )


def _require_loss(view: NodeAnswer[DescribeClusterResponse]) -> None:
    """Raise CommandError where the node would refuse, by its own view (admin_service.py)."""
    if view.answer is None:
        raise _no_loss(view.node_id, view.error)
    nodes = view.answer.nodes
    own = next(node for node in nodes if node.node_id == view.node_id)
    if not own.lost:
        raise _no_loss(view.node_id, "its store forgot nothing that is not accepted")
    counting = [n for n in nodes if n is not own and n.connected and not n.learner_shards]
    if not own.awaits and 2 * len(counting) > len(nodes):
        raise _no_loss(view.node_id, "shards admit it by themselves, and nothing is lost")


def _no_loss(node_id: int, why: str) -> CommandError:
    return CommandError(
        f"node {node_id}: {why}",
        next_step="`muster cluster status` says which nodes forgot something",
        exit_code=ExitCode.CONFLICT,
    )


def _store_of(cluster: DescribeClusterResponse, views: Views, node_id: int) -> str | None:
    nodes = [*cluster.nodes, *(n for view in views if view.answer for n in view.answer.nodes)]
    mine = [node for node in nodes if node.node_id == node_id]
    if not mine:
        raise CommandError(
            f"there is no node {node_id} in this cluster",
            next_step="`muster cluster status` lists the nodes",
            exit_code=ExitCode.NOT_FOUND,
        )
    return next((node.store_uuid for node in mine if node.store_uuid), None)


def _only(candidates: list[str], node_id: int) -> str:
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise CommandError(
            f"several new stores of node {node_id} were refused: {', '.join(candidates)}",
            next_step="name the right one with --store-uuid",
            exit_code=ExitCode.CONFLICT,
        )
    raise CommandError(
        f"no new store of node {node_id} has introduced itself yet",
        next_step="run `muster init` and `muster serve` on it first, or give --store-uuid",
        exit_code=ExitCode.NOT_FOUND,
    )


# ---- transfer-leader


def transfer_leader(
    shard: Annotated[int, typer.Argument(metavar="SHARD", min=0, help="Number of the shard.")],
    to_node: Annotated[
        int | None,
        typer.Option("--to", metavar="NODE", min=0, help="Who leads then [who has most of it]."),
    ] = None,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Hand the leadership of a shard to another node. Its groups go on as they are.

    A few seconds later the shard may move back to the node that it belongs to.
    """
    with Connection(bootstrap, timeout) as to:
        cluster, views = _views(to)
        if shard >= cluster.shards:
            raise CommandError(
                f"there is no shard {shard}: this cluster has shards 0 to {cluster.shards - 1}",
                next_step="`muster cluster status` lists the shards",
                exit_code=ExitCode.USAGE,
            )
        if to_node is not None:
            _store_of(cluster, views, to_node)
        before = after = _shard_item(shard, views)["leader"]
        if dry_run:
            after = to_node
        else:
            request = TransferLeaderRequest(shard=shard, to_node=to_node)
            shown = to.operator()
            answer = to.ask(
                lambda at, s: at.admin.TransferLeader(request, timeout=s, metadata=shown)
            )
            after = answer.leader_id
    document: dict[str, Value] = {
        "shard": shard,
        "leader_before": before,
        "leader_after": after,
        "dry_run": dry_run,
    }
    word = "would be handed over" if dry_run else "handed over"
    word = "leads already" if before is not None and before == after else word
    columns = ("SHARD", "LEADER-BEFORE", "LEADER-AFTER", "RESULT")
    show(
        Result(
            schema="muster.cluster.transfer-leader/v1",
            document=document,
            tables=[Table(columns, [(shard, before, after, word)])],
            items=[document],
            names=[str(shard)],
        ),
        output,
    )
