"""Settings of `muster serve` and arguments of commands."""

from tests.bad_input.registry import case
from tests.bad_input.world import PARTITIONS, TOPIC, Seen, World, command


def serve(*args, **env) -> Seen:
    """`muster serve` with settings that are refused before anything is opened."""
    return command("serve", *args, **env).seen


def asked(world: World, *args) -> Seen:
    """A command to the cluster."""
    return command(*args, world.bootstrap()).seen


@case("setting_missing")
def setting_missing(world: World):
    return serve()


def settings_file(world: World, text):
    """--config with this text."""
    path = world.scratch / "settings.toml"
    path.write_text(text)
    return f"--config={path}"


@case("setting_malformed")
def setting_malformed(world: World):
    return [
        serve("--data-dir=x", "--listen=nonsense"),
        serve("--data-dir=x", MUSTERD_LISTEN="nonsense"),
        serve(settings_file(world, "data_dir = 'x'\nlisten = 'nonsense'\n")),
    ]


@case("setting_unknown")
def setting_unknown(world: World):
    return serve(settings_file(world, "data_dir = 'x'\nlisen = '127.0.0.1:7070'\n"))


@case("setting_out_of_range")
def setting_out_of_range(world: World):
    return [
        serve("--data-dir=x", "--log-level=loud"),
        serve("--data-dir=x", MUSTERD_LOG_LEVEL="loud"),
    ]


@case("setting_old_name")
def setting_old_name(world: World):
    return serve("--data-dir=x", MUSTER_LISTEN="127.0.0.1:7070")


@case("setting_times")
def setting_times(world: World):
    return [
        serve("--data-dir=x", "--quorum-ms=500"),
        serve("--data-dir=x", MUSTERD_QUORUM_MS="500"),
    ]


@case("settings_file_missing")
def settings_file_missing(world: World):
    return serve(f"--config={world.scratch / 'none.toml'}")


@case("settings_file_malformed")
def settings_file_malformed(world: World):
    return serve(settings_file(world, "listen = [\n"))


@case("peer_malformed")
def peer_malformed(world: World):
    return serve("--data-dir=x", "--peer=zzz")


@case("exposed_client_port")
def exposed_client_port(world: World):
    return serve("--data-dir=x", "--listen=0.0.0.0:7070")


@case("exposed_peer_port")
def exposed_peer_port(world: World):
    exposed = ("--data-dir=x", "--peer-listen=0.0.0.0:7070")
    return [serve(*exposed), serve(*exposed, "--insecure", "--insecure-metrics")]


@case("exposed_metrics_port")
def exposed_metrics_port(world: World):
    exposed = ("--data-dir=x", "--metrics-listen=0.0.0.0:7070")
    return [serve(*exposed), serve(*exposed, "--insecure", "--insecure-peers")]


@case("half_tls")
def half_tls(world: World):
    return [serve("--data-dir=x", f"--tls-{half}=x.pem") for half in ("cert", "key")]


def init(world: World, *args) -> Seen:
    """`muster init` that must write nothing."""
    folder = world.scratch / "impossible"
    seen = command("init", f"--data-dir={folder}", *args).seen
    assert not folder.exists()
    return seen


@case("init_node_id")
def init_node_id(world: World):
    return [
        init(world, "--cluster-id=c", "--node-id=5", "--nodes=3"),
        init(world, "--cluster-id=c", "--node-id=1", "--nodes=1,2,2"),
    ]


@case("init_nodes")
def init_nodes(world: World):
    return [
        init(world, "--cluster-id=c", "--node-id=0", f"--nodes={count}") for count in (2, 4, 11)
    ]


@case("init_nodes_malformed")
def init_nodes_malformed(world: World):
    return init(world, "--cluster-id=c", "--node-id=0", "--nodes=a,b")


@case("init_shards")
def init_shards(world: World):
    return init(world, "--cluster-id=c", "--node-id=0", "--shards=5000")


@case("init_cluster_id")
def init_cluster_id(world: World):
    return [init(world, f"--cluster-id={name}", "--node-id=0") for name in ("", "c" * 65)]


@case("even_dev")
def even_dev(world: World):
    return command("dev", "--nodes=2").seen


@case("unknown_command")
def unknown_command(world: World):
    return [
        command("nope").seen,
        command("topic", "nope").seen,
        command("serve", "--nope").seen,
        command("topic", "create").seen,
        command("topic", "create", "t", "--partitions=0").seen,
        command("cluster", "status", "--output=xml").seen,
        command("cluster", "status", "--timeout=-1").seen,
    ]


@case("bootstrap_malformed")
def bootstrap_malformed(world: World):
    return command("cluster", "status", "--bootstrap=nonsense").seen


@case("nobody_there")
def nobody_there(world: World):
    return command("topic", "list", "--bootstrap=127.0.0.1:1", "--timeout=2").seen


@case("command_bad_name")
def command_bad_name(world: World):
    return [
        asked(world, "topic", "create", "", "--partitions=1"),
        asked(world, "group", "describe", "g" * 300),
    ]


@case("command_not_found")
def command_not_found(world: World):
    return [
        asked(world, "topic", "describe", "nope"),
        asked(world, "group", "describe", "nope"),
        asked(world, "group", "offsets", "nope"),
        asked(world, "group", "why", "nope"),
    ]


@case("command_conflict")
def command_conflict(world: World):
    return asked(world, "topic", "create", TOPIC, f"--partitions={PARTITIONS + 1}")


@case("command_topic_of_tasks")
def command_topic_of_tasks(world: World):
    names = ("muster.tasks", "muster.task-definitions")
    return [asked(world, "topic", "delete", name, "--yes") for name in names]


@case("command_unknown_shard")
def command_unknown_shard(world: World):
    return [
        asked(world, "cluster", "verify", "--shard=99"),
        asked(world, "cluster", "transfer-leader", "99"),
    ]


@case("command_unknown_node")
def command_unknown_node(world: World):
    return asked(world, "cluster", "replace-node", "9", "--yes")


@case("command_no_candidate")
def command_no_candidate(world: World):
    return asked(world, "cluster", "replace-node", "1", "--yes")


@case("command_unconfirmed")
def command_unconfirmed(world: World):
    return asked(world, "cluster", "replace-node", "1", f"--store-uuid={'0' * 32}")
