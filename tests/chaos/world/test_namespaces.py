"""Real packets between namespaces: what is cut, slowed or lost really is, in that direction."""

import time
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from muster.admin.operator_secret import METADATA_KEY
from muster.cli.connection import Connection
from musterd.chaos.child import Child, close_all
from musterd.chaos.world.networks.netns import Netns
from musterd.chaos.world.networks.network import CUT, Shape
from musterd.coordinator.node.loopback import ClusterError

pytestmark = [pytest.mark.processes, pytest.mark.faults]

ZERO, ONE, CLIENT = "node-0", "node-1", "client-0"
WAIT_S = 10.0
SEND_AGAIN_S = 1.0


@pytest.fixture(scope="module")
def network(netns_works) -> Iterator[Netns]:
    """Two nodes' places and those of clients, nothing running there."""
    made = Netns(seed=7)
    made.open(2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def at(network) -> Iterator[dict[str, Child]]:
    """A prober at each place."""
    probers = {
        place: Child(
            "tests.chaos.world.prober",
            {"name": place},
            lambda argv, place=place: network.command(place, argv),
        )
        for place in network.places
    }
    for prober in probers.values():
        prober.ready()
    yield probers
    close_all(probers.values())


@pytest.fixture(autouse=True)
def _healed(network) -> Iterator[None]:
    yield
    for link in permutations(network.places, 2):
        network.heal(*link)


def test_a_run_s_commands_show_its_nodes_the_secret(network):
    """Without it none replaces a node that lost its disk."""
    with Connection(network.addresses(0).advertise, 1.0) as nodes:
        ((name, secret),) = nodes.operator()
    assert name == METADATA_KEY
    assert secret == (Path(network.folder) / "admin-secret").read_bytes()


def heard_after(at, network, source: str, target: str, count: int) -> int:
    """How many of `count` datagrams from source get to target, once the last is accounted for."""
    before = at[target].ask("heard")["heard"]
    at[source].ask("send", host=network._hosts[target], count=count)
    deadline = time.monotonic() + WAIT_S
    while True:
        got = at[target].ask("heard")["heard"] - before
        lost = network.counts().get((source, target, "dropped"), 0)
        if got + lost >= count or time.monotonic() > deadline:
            return got
        time.sleep(0.02)


def arrive(at, network, source: str, target: str, count: int) -> bool:
    """Whether `count` datagrams get through; more are sent meanwhile: any kernel may lose one."""
    before = at[target].ask("heard")["heard"]
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        at[source].ask("send", host=network._hosts[target], count=count)
        again_at = time.monotonic() + SEND_AGAIN_S
        while time.monotonic() < again_at:
            if at[target].ask("heard")["heard"] - before >= count:
                return True
            time.sleep(0.02)
    return False


def test_every_place_reaches_every_other(network, at) -> None:
    """An echo from each to each."""
    for source, prober in at.items():
        for target in network.places:
            if source != target:
                got = prober.ask("echo", host=network._hosts[target], size=1000, within_s=WAIT_S)
                assert got.get("bytes") == 1000, (source, target, got)


def test_a_cut_drops_one_direction_and_passes_the_other(network, at) -> None:
    """Datagrams arrive the one way only; after heal both ways."""
    before = network.counts()
    network.shape(ZERO, ONE, CUT)
    assert heard_after(at, network, ZERO, ONE, 20) == 0
    assert arrive(at, network, ONE, ZERO, 20)
    assert arrive(at, network, ZERO, CLIENT, 20)
    after = network.counts()
    dropped = (ZERO, ONE, "dropped")
    assert after[dropped] - before.get(dropped, 0) >= 20
    changed = {key[:2] for key, count in after.items() if count != before.get(key)}
    assert changed == {(ZERO, ONE)}, "what was on its way when it was cut may count, elsewhere none"
    network.heal(ZERO, ONE)
    network.heal(ZERO, ONE)
    assert arrive(at, network, ZERO, ONE, 20)


def test_a_cut_is_silent_for_a_new_connection(network, at) -> None:
    """Nobody is refused: the connection attempt hangs, in either direction of the cut."""
    network.shape(ZERO, ONE, CUT)
    for source, target in ((ZERO, ONE), (ONE, ZERO)):
        got = at[source].ask("echo", host=network._hosts[target], size=1, within_s=0.5)
        assert "TimeoutError" in got.get("failed", ""), got


def test_an_established_connection_survives_a_cut_that_is_healed(network, at) -> None:
    """It is silent while it is cut, and goes on afterwards, as TCP promises."""
    at[ZERO].ask("hold", host=network._hosts[ONE])
    network.shape(ZERO, ONE, CUT)
    assert at[ZERO].ask("held", within_s=0.5) == {"held": "silent"}
    network.heal(ZERO, ONE)
    assert at[ZERO].ask("held", within_s=WAIT_S) == {"held": "open"}


def test_a_delayed_link_takes_at_least_its_delay(network, at) -> None:
    """Hand-shake and echo: two round trips, each delayed one way."""
    network.shape(ZERO, ONE, Shape(delay_ms=100.0))
    got = at[ZERO].ask("echo", host=network._hosts[ONE], size=10, within_s=WAIT_S)
    assert got["bytes"] == 10
    assert got["took_s"] >= 0.2
    assert network.counts()[ZERO, ONE, "delayed"] > 0


def test_a_slow_link_has_no_more_than_its_bandwidth(network, at) -> None:
    """200 KB at 400 KB/s take half a second."""
    network.shape(ZERO, ONE, Shape(bytes_per_s=400_000))
    got = at[ZERO].ask("echo", host=network._hosts[ONE], size=200_000, within_s=WAIT_S)
    assert got["bytes"] == 200_000
    assert got["took_s"] >= 0.4


def test_a_lossy_link_loses_some_and_tcp_gets_through(network, at) -> None:
    """Of 200 datagrams some arrive and some do not; a stream arrives whole."""
    network.shape(ZERO, ONE, Shape(loss_percent=20.0))
    assert 0 < heard_after(at, network, ZERO, ONE, 200) < 200
    got = at[ZERO].ask("echo", host=network._hosts[ONE], size=20_000, within_s=30.0)
    assert got.get("bytes") == 20_000


def test_a_doubling_link_delivers_twice(network, at) -> None:
    """Each datagram comes a second time: more arrive than were sent."""
    before = at[ONE].ask("heard")["heard"]
    doubled_before = network.counts().get((ZERO, ONE, "doubled"), 0)
    network.shape(ZERO, ONE, Shape(duplicate_percent=100.0))
    at[ZERO].ask("send", host=network._hosts[ONE], count=10)
    deadline = time.monotonic() + WAIT_S
    got = doubled = 0
    while (got <= 10 or doubled < 10) and time.monotonic() < deadline:
        got = at[ONE].ask("heard")["heard"] - before
        doubled = network.counts().get((ZERO, ONE, "doubled"), 0) - doubled_before
        time.sleep(0.02)
    assert got > 10
    assert doubled >= 10


def test_a_reset_ends_the_connections_of_that_link_alone(network, at) -> None:
    """Both ends are alive; the held connection reads an RST, another link's goes on."""
    at[ZERO].ask("hold", host=network._hosts[ONE])
    at[CLIENT].ask("hold", host=network._hosts[ONE])
    assert network.reset(ONE, ZERO) >= 1
    assert at[ZERO].ask("held", within_s=WAIT_S)["held"] in {"reset", "closed"}
    assert at[CLIENT].ask("held", within_s=WAIT_S) == {"held": "open"}


def test_a_half_open_connection_is_found_out_by_speaking(network, at) -> None:
    """The listener's end is gone and the dialler is not told; when it speaks it gets an RST."""
    at[ZERO].ask("hold", host=network._hosts[ONE])
    network.shape(ONE, ZERO, CUT)
    assert network.half_open(ONE, ZERO) >= 1
    assert at[ZERO].ask("held", within_s=0.5) == {"held": "silent"}
    network.heal(ONE, ZERO)
    assert at[ZERO].ask("held", within_s=WAIT_S)["held"] in {"reset", "closed"}


def test_the_machines_own_network_has_nothing_of_it(network) -> None:
    """No device of the run is on the host."""
    del network
    names = {device.name for device in Path("/sys/class/net").iterdir()}
    assert not {name for name in names if name.startswith(("slow", "bridge0"))}


def test_a_link_that_does_not_exist_is_refused(network) -> None:
    """The error names it; nothing changes."""
    with pytest.raises(ClusterError, match="node-7>node-0"):
        network.shape("node-7", "node-0", CUT)
    with pytest.raises(ClusterError, match="node-0>node-0"):
        network.shape("node-0", "node-0", CUT)
    with pytest.raises(ClusterError, match="cannot be like that"):
        network.shape(ZERO, ONE, Shape(loss_percent=101.0))
