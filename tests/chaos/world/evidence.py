"""That a fault is real: what can be seen of each kind while it lasts, in a world of three nodes.

Each function gets the world, what was injected and a prober at a host of clients, and waits on
conditions; it raises where the fault cannot be seen.
"""

from collections.abc import Callable
from pathlib import Path

from bench.raw import group_names
from musterd.chaos.child import Child
from musterd.chaos.faults.contract import Injected
from musterd.chaos.world.world import World

WAIT_S = 20.0
SILENT = {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
TOPIC = "probed"


def ids(injected: Injected) -> list[int]:
    """The nodes among the targets."""
    return [int(one.removeprefix("node-")) for one in injected.targets if ">" not in one]


def roles(world: World, node_id: int) -> set[str] | None:
    """The roles that a node says it has; None where it does not answer."""
    view = world.describe(node_id)
    return None if view is None else {state.role for state in view.shard_states}


def client_reaches(world: World, client: Child, node_id: int) -> bool:
    """Whether DescribeCluster is answered at the clients' host."""
    endpoint = world.nodes[node_id].endpoint
    return client.ask("describe", endpoint=endpoint, within_s=1.0)["code"] == "OK"


def killed(world: World, injected: Injected, client: Child) -> None:
    """The process is gone and clients get no answer."""
    for node_id in ids(injected):
        assert not world.nodes[node_id].running
        assert not client_reaches(world, client, node_id)


def paused(world: World, injected: Injected, client: Child) -> None:
    """The kernel says it is stopped; it uses no processor; clients get no answer."""
    for node_id in ids(injected):
        stat = Path(f"/proc/{world.nodes[node_id].pid}/stat")
        world.wait(lambda stat=stat: _state(stat)[0] == "T", WAIT_S, f"node {node_id} stopped")
        before = _state(stat)
        assert not client_reaches(world, client, node_id)
        assert _state(stat) == before


def _state(stat: Path) -> tuple[str, int]:
    """Its state and how many ticks of the processor it has used."""
    fields = stat.read_text().rpartition(") ")[2].split()
    return fields[0], int(fields[11]) + int(fields[12])


def isolated(world: World, injected: Injected, client: Child) -> None:
    """It leads nothing any more, the others lead all; clients do not reach it, we do."""
    (node_id,) = ids(injected)
    led_by_others(world, injected)
    assert not client_reaches(world, client, node_id)
    other = (node_id + 1) % len(world.nodes)
    world.wait(lambda: client_reaches(world, client, other), WAIT_S, f"node {other} answers")


def led_by_others(world: World, injected: Injected, _client: Child | None = None) -> None:
    """No node of the minority leads, and every shard is led."""
    world.wait(
        lambda: (
            all("Leader" not in (roles(world, one) or {"Leader"}) for one in injected.minority)
            and len(world.leaders()) == world.shards
        ),
        WAIT_S,
        "the minority leads nothing, the others lead every shard",
    )


def split(world: World, injected: Injected, client: Child) -> None:
    """As above; and a commit that is asked of the minority is not acknowledged."""
    led_by_others(world, injected)
    for node_id in injected.minority:
        endpoint = world.nodes[node_id].endpoint
        world.wait(
            lambda node_id=node_id: client_reaches(world, client, node_id),
            WAIT_S,
            f"node {node_id} answers",
        )
        for group in group_names("g", world.shards, world.shards):
            got = client.ask("commit", endpoint=endpoint, group=group, topic=TOPIC, offset=1)
            assert got["code"] != "NONE", got


def quorumless(world: World, injected: Injected, client: Child) -> None:
    """Nobody leads; clients reach all, and no commit is acknowledged."""
    world.wait(
        lambda: all("Leader" not in (roles(world, one) or {"Leader"}) for one in world.nodes),
        WAIT_S,
        "nobody leads",
    )
    split_free = [world.nodes[node_id].endpoint for node_id in injected.minority]
    for endpoint in split_free:
        got = client.ask("commit", endpoint=endpoint, group="g0", topic=TOPIC, offset=1)
        assert got["code"] != "NONE", got


def cut_but_served(world: World, injected: Injected, _client: Child) -> None:
    """Every shard gets a leader that is not in doubt."""
    del injected
    world.wait(lambda: len(world.leaders()) == world.shards, WAIT_S, "every shard led")


def stopped(world: World) -> int:
    """The packets that links have dropped so far."""
    return _total(world, "dropped")


def delayed(world: World, _injected: Injected, _client: Child) -> None:
    """Packets are delayed, and get through: every shard is led."""
    happens(world, "delayed", "passed")


def lossy(world: World, _injected: Injected, _client: Child) -> None:
    """Some are dropped, some pass."""
    happens(world, "dropped", "passed")


def doubled(world: World, _injected: Injected, _client: Child) -> None:
    """Some come twice."""
    happens(world, "doubled", "passed")


def happens(world: World, *whats: str) -> None:
    """Links do each of these from now on; every shard is led."""
    before = {what: _total(world, what) for what in whats}
    for what in whats:
        world.wait(lambda what=what: _total(world, what) > before[what], WAIT_S, f"a packet {what}")
    world.wait(lambda: len(world.leaders()) == world.shards, WAIT_S, "every shard led")


def _total(world: World, what: str) -> int:
    return sum(count for (_, _, one), count in world.network.counts().items() if one == what)


def broken(world: World, injected: Injected, _client: Child) -> None:
    """Connections were counted as they broke, and no process ended."""
    assert injected.facts["connections"] > 0
    assert len(world.running()) == len(world.nodes)


def restarted(world: World, injected: Injected, _client: Child) -> None:
    """Every node runs, and is another process (the test compares)."""
    assert sorted(ids(injected)) == world.running() == list(world.nodes)


def transferred(world: World, injected: Injected, _client: Child) -> None:
    """Each shard was taken over by another node, in a term that was not there before."""
    (node_id,) = ids(injected)
    moved = injected.facts["moved"]
    assert moved
    assert node_id not in moved.values()
    terms = world.terms()
    assert all(terms[int(shard)] > 1 for shard in moved)


def passed_for(world: World, injected: Injected, _client: Child) -> None:
    """Who was passed for is down, every other node runs and every shard is led."""
    (node_id,) = ids(injected)
    assert world.running() == [one for one in world.nodes if one != node_id]
    world.wait(lambda: len(world.leaders()) == world.shards, WAIT_S, "every shard led")


def bulk_is_dead(world: World, injected: Injected, _client: Child) -> None:
    """Whoever reads from it lacks what both others have; every shard is led, by whoever led it."""
    other = int(injected.targets[0].partition(">")[2].removeprefix("node-"))

    def lacks() -> bool:
        applied = {
            node_id: {state.shard: state.applied_index for state in view.shard_states}
            for node_id, view in world.views().items()
        }
        mine = applied.pop(other)
        return any(all(index[shard] > mine[shard] for index in applied.values()) for shard in mine)

    world.wait(lacks, WAIT_S, f"node {other} lacks something")
    assert len(world.leaders()) == world.shards


EVIDENCE: dict[str, Callable[[World, Injected, Child], None]] = {
    "asymmetric_cut": led_by_others,
    "cut_all_peers": quorumless,
    "dead_bulk": bulk_is_dead,
    "delay_jitter": delayed,
    "garbage": passed_for,
    "half_open_peers": broken,
    "isolate_follower": isolated,
    "isolate_leader": isolated,
    "kill_follower": killed,
    "kill_leader": killed,
    "kill_two_then_restart": killed,
    "packet_disorder": doubled,
    "packet_loss": lossy,
    "partial_cut": cut_but_served,
    "pause_all": paused,
    "pause_leader": paused,
    "reset_client_connections": broken,
    "reset_peer_connections": broken,
    "restart_all": killed,
    "rolling_restart": restarted,
    "slow_link": delayed,
    "split_with_clients": split,
    "stop_leader": killed,
    "transfer_leadership": transferred,
}
