"""Every fault of processes, networks and operation, in a real world: it is real, and it heals."""

from collections.abc import Iterator
from contextlib import closing
from random import Random

import pytest

from bench.raw import group_names
from musterd.chaos.child import Child
from musterd.chaos.faults.catalog import kinds
from musterd.chaos.faults.contract import FaultGroup, create, reason_missing
from musterd.chaos.world.networks.netns import choose_network
from musterd.chaos.world.networks.replay_proxy import ReplayProxy
from musterd.chaos.world.world import World
from tests import machine_lacks
from tests.chaos.world.evidence import EVIDENCE, TOPIC, WAIT_S, stopped

pytestmark = [pytest.mark.processes, pytest.mark.faults]

OURS = sorted(
    name
    for name, kind in kinds().items()
    if kind.group in {FaultGroup.PROCESS, FaultGroup.NETWORK, FaultGroup.OPERATION}
)
SHARDS = 4


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Three nodes that all tests of this file share: a heal that does not heal fails the next."""
    network, _ = choose_network(seed=7)
    with World(3, SHARDS, network=network) as made:
        made.create_topic(TOPIC, 4)
        yield made


@pytest.fixture(scope="module")
def client(world) -> Iterator[Child]:
    """A prober at a host of clients."""
    child = Child(
        "tests.chaos.world.prober", {"name": "client", "ports": False}, world.client_command
    )
    child.ready()
    yield child
    child.close()


def test_every_kind_has_its_evidence() -> None:
    """A fault that nobody has seen work is none."""
    assert sorted(EVIDENCE) == OURS


@pytest.mark.parametrize("kind", OURS)
def test_a_fault_is_real_and_heals(world, client, kind) -> None:
    """Inject, see it, heal twice; then the cluster settles and acknowledges a commit."""
    machine_lacks.refuse(reason_missing(kinds()[kind], world))
    pids = {node_id: node.pid for node_id, node in world.nodes.items()}
    made = create(kind)
    _client_connections(world, client)
    before = stopped(world)
    try:
        injected = made.inject(world, Random(kind))
        if getattr(made, "done_to", None) == {"dropped"}:
            world.wait(lambda: stopped(world) > before, WAIT_S, "a cut link stopped something")
        EVIDENCE[kind](world, injected, client)
    finally:
        made.heal(world)
        made.heal(world)
    assert made.unreal == ""
    world.wait_settled()
    world.wait(lambda: _acknowledged(world, client), 30.0, "a commit of each group acknowledged")
    hit = {f"node-{one}" for one, node in world.nodes.items() if node.pid != pids[one]}
    assert hit == (set(injected.targets) if _restarts(kind) else set())


def test_clients_of_the_sdk_stay_behind_the_replaying_proxy(world, client) -> None:
    """All their commits pass it, though each node names its own address; copies arrive, too."""
    with closing(ReplayProxy(world, 100.0, (0.0, 20.0), seed=1)) as replaying:
        for number in range(SHARDS):
            done = client.ask(
                "sdk_commits",
                bootstrap=",".join(replaying.endpoints),
                group=f"replayed-{number}",
                topic=TOPIC,
                count=5,
            )
            assert done == {"acknowledged": 5}
        world.wait(
            lambda: replaying.counts().get("OffsetCommit copy OK", 0) >= 5 * SHARDS,
            20.0,
            "every copy answered",
        )
        assert replaying.counts()["OffsetCommit passed"] >= 5 * SHARDS


def _restarts(kind: str) -> bool:
    return EVIDENCE[kind].__name__ in {"killed", "passed_for", "restarted"}


def _client_connections(world: World, client: Child) -> None:
    """The SDK keeps a connection with every node; so does this client."""
    for node in world.nodes.values():
        assert client.ask("hold_channel", endpoint=node.endpoint)["code"] == "OK"


def _acknowledged(world: World, client: Child) -> bool:
    """Whether some node acknowledges a commit of a group of every shard."""
    return all(
        any(
            client.ask("commit", endpoint=node.endpoint, group=group, topic=TOPIC, offset=1)["code"]
            == "NONE"
            for node in world.nodes.values()
        )
        for group in group_names("g", SHARDS, SHARDS)
    )
