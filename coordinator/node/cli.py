"""`muster init`, `muster serve`, `muster dev`. Exit codes are those of muster.cli.errors."""

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.errors import CommandError, ExitCode
from muster.cli.options import Output
from muster.cli.output import Format, Result, Table, Value, show
from musterd.coordinator import host

NODE_PROGRAM = "musterd.coordinator.node.program"
"""What `muster serve` becomes once the settings are known."""

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="The node's directory.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add `init`, `serve` and `dev` to `muster`."""
    app.command("init")(init)
    app.command("serve")(serve)
    app.command("dev")(dev)


# ---- init


def init(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="An empty directory.")
    ],
    node_id: Annotated[int, typer.Option("--node-id", min=0, help="This node's id.")],
    cluster_id: Annotated[
        str,
        typer.Option(
            "--cluster-id", help="The same on every node. With --restore the ticket has it."
        ),
    ] = "",
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes",
            metavar="COUNT|ID,ID,...",
            help="All nodes of the cluster: their number (ids from 0) or their ids [3].",
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            "--shards",
            min=1,
            help="The same on every node, for ever [two for each node, six at least].",
        ),
    ] = None,
    bootstrap: Annotated[
        str,
        typer.Option(
            "--bootstrap",
            "-b",
            metavar="HOST:PORT,...",
            help="Client ports of the cluster that this node belongs to, where others of it run: "
            "it says cluster id, nodes and shards.",
        ),
    ] = "",
    restore: Annotated[
        Path | None,
        typer.Option(
            metavar="TICKET",
            help="Begin with a backup: the file that `muster cluster restore` wrote, the same on "
            "every node. It says cluster id and shards.",
        ),
    ] = None,
    backup: Annotated[
        str, typer.Option(metavar="URL", help="Where the backup is [where the ticket says].")
    ] = "",
    output: Output = Format.TABLE,
) -> None:
    """Give a node its identity: the only way to one. Run it once, on an empty directory."""
    from musterd.backup.errors import BackupError  # noqa: PLC0415
    from musterd.coordinator.node.init import (  # noqa: PLC0415  # the store is slow to import
        initialise,
        initialise_restored,
    )
    from musterd.raft.identity import IdentityError, default_shards  # noqa: PLC0415
    from musterd.storage.store import StoreError  # noqa: PLC0415

    try:
        if restore is not None and bootstrap:
            raise CommandError(
                "--restore makes a new cluster, --bootstrap a node of one that runs",
                next_step="leave one of them out",
                exit_code=ExitCode.USAGE,
            )
        given = None if nodes is None else node_ids(nodes)
        ids = node_ids("3") if given is None else given
        if restore is not None:
            identity = initialise_restored(
                data_dir, cluster_id, node_id, ids, restore, backup, shards
            )
        else:
            if bootstrap:
                cluster_id, ids, shards = _as_the_cluster_says(bootstrap, cluster_id, given, shards)
            number = shards or default_shards(len(ids))
            identity = initialise(data_dir, cluster_id, node_id, ids, number)
    except (IdentityError, BackupError, StoreError, OSError) as error:
        raise _not_initialised(data_dir, error) from error
    document: dict[str, Value] = {
        "data_dir": str(data_dir),
        "cluster_id": identity.cluster_id,
        "node_id": identity.node_id,
        "nodes": ",".join(str(node) for node in identity.nodes),
        "shards": identity.shards,
        "store_uuid": identity.store_uuid.hex(),
    }
    row = [document[name] for name in ("node_id", "cluster_id", "shards", "store_uuid", "data_dir")]
    show(
        Result(
            schema="muster.init/v1",
            document=document,
            tables=[Table(("NODE", "CLUSTER", "SHARDS", "STORE-UUID", "DATA-DIR"), [row])],
            items=[document],
            names=[identity.store_uuid.hex()],
        ),
        output,
    )


def _not_initialised(data_dir: Path, error: Exception) -> CommandError:
    """Return what `init` says of an error, what to do about it, and with which code it exits."""
    from musterd.backup.errors import BackupError, UsedTicketError  # noqa: PLC0415
    from musterd.coordinator.node.config import about  # noqa: PLC0415
    from musterd.coordinator.node.init import NotEmptyError  # noqa: PLC0415
    from musterd.raft.identity import IdentityError  # noqa: PLC0415

    says, next_step, code = str(error), "", ExitCode.CONFLICT
    match error:
        case NotEmptyError():
            next_step = "give --data-dir a directory that is empty, or that does not exist yet"
        case IdentityError() if "already" in says:
            says = about(data_dir, error)
            next_step = "`muster serve` starts the node that lives there"
        case UsedTicketError():
            next_step = "write a new ticket with `muster cluster restore`: one makes one cluster"
        case BackupError():
            next_step = "this is no node yet: correct it and run `muster init` again"
            code = ExitCode.UNHEALTHY
        case _:
            says = about(data_dir, error)
            code = ExitCode.USAGE if isinstance(error, IdentityError) else ExitCode.ERROR
    return CommandError(says, next_step=next_step, exit_code=code)


def _as_the_cluster_says(
    bootstrap: str, cluster_id: str, ids: list[int] | None, shards: int | None
) -> tuple[str, list[int], int]:
    """Return the cluster's id, its nodes' ids and its shards, from any of its nodes.

    Raises CommandError where no node answers, and where the command line says otherwise.
    """
    from muster.cli.connection import Connection  # noqa: PLC0415  # grpc is slow to import
    from muster.cli.options import DEFAULT_TIMEOUT_S  # noqa: PLC0415

    with Connection(bootstrap, DEFAULT_TIMEOUT_S) as to:
        cluster = to.cluster()
    found = (cluster.cluster_id, sorted(node.node_id for node in cluster.nodes), cluster.shards)
    for option, given, said in zip(
        ("--cluster-id", "--nodes", "--shards"),
        (cluster_id or None, ids and sorted(ids), shards),
        found,
        strict=True,
    ):
        if given is not None and given != said:
            raise CommandError(
                f"{option} is {given}, and the cluster at {bootstrap} has {said}",
                next_step=f"leave {option} out, or give --bootstrap the cluster that is meant",
                exit_code=ExitCode.USAGE,
            )
    return found


def node_ids(text: str) -> list[int]:
    """The ids behind "3" (0, 1, 2) or "1,2,3". Raises CommandError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise CommandError(
            f"--nodes {text!r} is neither a number nor a list of ids",
            next_step="give --nodes 3, or --nodes 1,2,3",
            exit_code=ExitCode.USAGE,
        )
    if len(parts) == 1 and "," not in text:
        return list(range(int(parts[0])))
    return [int(part) for part in parts]


# ---- serve


def serve(  # noqa: PLR0917  # typer makes options of them
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings in TOML.")
    ] = None,
    data_dir: DataDir = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Client port [127.0.0.1:7070].")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where clients reach this node.")
    ] = None,
    peer_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Port for nodes [127.0.0.1:7170].")
    ] = None,
    metrics_listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Metrics page [127.0.0.1:7270]; '' = off."),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=HOST:PORT", help="Another node's peer port; repeatable."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate of the client port.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Demand client certificates of this CA.")
    ] = None,
    tls_client_names: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Who a client's certificate names: by uri, or cn."),
    ] = None,
    peer_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate of the peer port.")
    ] = None,
    peer_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")] = None,
    peer_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The authority of the other nodes.")
    ] = None,
    peer_tls: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="How nodes talk: auto, off, prefer or require (TLS)."),
    ] = None,
    tls_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="What `muster cert node` wrote, for both ports."),
    ] = None,
    admin_secret_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The secret that handing over shards, replacing nodes and accepting a loss take; "
            "the same on every node. Without one: on loopback alone.",
        ),
    ] = None,
    jwt_issuer: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Whose JWTs are taken as bearer tokens."),
    ] = None,
    jwt_audience: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whom they have to be for.")
    ] = None,
    jwt_keys: Annotated[
        str | None,
        typer.Option(metavar="URL|FILE", help="The keys of that issuer (JWK set)."),
    ] = None,
    jwt_keys_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The authority of that URL.")
    ] = None,
    jwt_claim: Annotated[
        str | None, typer.Option(metavar="CLAIM", help="Which claim names a JWT's owner: sub.")
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Clients beyond loopback may come without TLS."),
    ] = None,
    insecure_peers: Annotated[
        bool | None,
        typer.Option(
            "--insecure-peers", help="The peer port beyond loopback; nodes talk without TLS."
        ),
    ] = None,
    metrics_token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What the metrics page takes beyond loopback."),
    ] = None,
    insecure_metrics: Annotated[
        bool | None,
        typer.Option("--insecure-metrics", help="The metrics page beyond loopback; it has no TLS."),
    ] = None,
    insecure_admin_secret: Annotated[
        bool | None,
        typer.Option(
            "--insecure-admin-secret",
            help="Take the admin secret over connections without TLS, too.",
        ),
    ] = None,
    superusers: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Principals that may do everything."),
    ] = None,
    auto_finalize: Annotated[
        bool | None,
        typer.Option(
            "--auto-finalize", help="A level that all nodes know is finalised without an operator."
        ),
    ] = None,
    offset_retention_ms: Annotated[
        int | None,
        typer.Option(metavar="MS", help="Offsets of groups without members are kept so long."),
    ] = None,
    state_group_max_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help="State of one group, at most.")
    ] = None,
    state_shard_max_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help="State of one shard, at most.")
    ] = None,
    state_node_max_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help="State of all shards here, at most.")
    ] = None,
    disk_reserve_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help="With less free, the state does not grow.")
    ] = None,
    heartbeat_ms: Annotated[
        int | None, typer.Option(metavar="MS", help="Between a leader's messages to a follower.")
    ] = None,
    quorum_ms: Annotated[
        int | None, typer.Option(metavar="MS", help="So long a leader goes on without a majority.")
    ] = None,
    election_min_ms: Annotated[
        int | None, typer.Option(metavar="MS", help="Silence before an election, at least.")
    ] = None,
    election_max_ms: Annotated[
        int | None, typer.Option(metavar="MS", help="Silence before an election, at most.")
    ] = None,
    connections_per_host: Annotated[
        int | None, typer.Option(metavar="N", help="Connections of one host of clients.")
    ] = None,
    reach_probe_ms: Annotated[
        int | None,
        typer.Option(metavar="MS", help="Between looks whether clients get here."),
    ] = None,
    ready_needs_reach: Annotated[
        bool | None,
        typer.Option("--ready-needs-reach", help="Not ready while clients cannot reach this node."),
    ] = None,
    forward: Annotated[
        bool | None,
        typer.Option("--forward", help="Pass calls to their coordinators, for load balancers."),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="json|text", help="Form of the log on stderr.")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="The least that is logged."),
    ] = None,
    reflection: Annotated[bool | None, typer.Option("--dev", hidden=True)] = None,
) -> None:
    """Run one node in the foreground; SIGTERM hands its leadership over and stops it.

    Each option is a variable, too (MUSTERD_LISTEN), and a key of the file (listen); options win,
    then variables. docs/configuration.md has them all with defaults and bounds.
    """
    from musterd.coordinator.node.config import ConfigError, load_settings  # noqa: PLC0415

    flags = {
        "data_dir": data_dir,
        "listen": listen,
        "advertise": advertise,
        "peer_listen": peer_listen,
        "metrics_listen": metrics_listen,
        "peers": ",".join(peer) if peer else None,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_ca": tls_ca,
        "tls_client_names": tls_client_names,
        "peer_cert": peer_cert,
        "peer_key": peer_key,
        "peer_ca": peer_ca,
        "peer_tls": peer_tls,
        "tls_dir": tls_dir,
        "admin_secret_file": admin_secret_file,
        "jwt_issuer": jwt_issuer,
        "jwt_audience": jwt_audience,
        "jwt_keys": jwt_keys,
        "jwt_keys_ca": jwt_keys_ca,
        "jwt_claim": jwt_claim,
        "insecure": insecure,
        "insecure_peers": insecure_peers,
        "metrics_token_file": metrics_token_file,
        "insecure_metrics": insecure_metrics,
        "insecure_admin_secret": insecure_admin_secret,
        "superusers": superusers,
        "auto_finalize": auto_finalize,
        "offset_retention_ms": offset_retention_ms,
        "state_group_max_bytes": state_group_max_bytes,
        "state_shard_max_bytes": state_shard_max_bytes,
        "state_node_max_bytes": state_node_max_bytes,
        "disk_reserve_bytes": disk_reserve_bytes,
        "heartbeat_ms": heartbeat_ms,
        "quorum_ms": quorum_ms,
        "election_min_ms": election_min_ms,
        "election_max_ms": election_max_ms,
        "connections_per_host": connections_per_host,
        "reach_probe_ms": reach_probe_ms,
        "ready_needs_reach": ready_needs_reach,
        "forward": forward,
        "log_format": log_format,
        "log_level": log_level,
        "dev": reflection,
    }
    try:
        argument = load_settings(config, flags).encode()
    except ConfigError as error:
        raise CommandError(
            str(error),
            next_step=error.next_step or "`muster serve --help`",
            exit_code=ExitCode.USAGE,
        ) from error
    host.become(NODE_PROGRAM, argument)


# ---- dev


def dev(
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=9, help="1, 3, 5, 7 or 9.")] = 3,
    shards: Annotated[
        int | None, typer.Option("--shards", min=1, help="Of a new cluster [as `muster init` has].")
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Keep the data here [a temporary directory]."),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=0,
            max=65_000,
            help="First client port; peers 100 higher, metrics 200, Prometheus 300. 0 = free.",
        ),
    ] = 7070,
    tls: Annotated[
        bool, typer.Option("--tls", help="Clients need TLS, with a certificate that is made here.")
    ] = False,
    prometheus: Annotated[
        bool,
        typer.Option(
            "--prometheus",
            help="Run Prometheus beside it, from PATH or, fetched once, from Debian's package.",
        ),
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start a node that ended again, by itself.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Run a whole cluster on this machine until it is interrupted. For development and tests.

    A table on stdout says that every shard has a leader; what another shell needs to reach the
    cluster follows on stderr. The nodes die with this command, however it ends, and it ends when no
    node is left.
    """
    from musterd.coordinator.node.dev import DevOptions, run_dev  # noqa: PLC0415  # grpc is slow to import
    from musterd.coordinator.node.loopback import ClusterError  # noqa: PLC0415

    if nodes % 2 == 0:
        raise CommandError(
            f"a cluster has 1, 3, 5, 7 or 9 nodes, not {nodes}",
            next_step="give --nodes 3",
            exit_code=ExitCode.USAGE,
        )
    try:
        options = DevOptions(directory, nodes, shards, port, tls, prometheus, restart)
        run_dev(options, lambda ready: show(ready, output))
    except ClusterError as error:
        raise CommandError(
            str(error), next_step=error.next_step, exit_code=ExitCode.ERROR
        ) from error


if __name__ == "__main__":
    from muster.cli import main

    main()
