"""Every fault of disks, clocks and resources, in a real cluster under load: real, and healed."""

import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from random import Random

import pytest

from musterd.chaos.faults import damage
from musterd.chaos.faults.catalog import kinds
from musterd.chaos.faults.clock import AHEAD_S_MIN
from musterd.chaos.faults.contract import FaultGroup, counted, create, reason_missing
from musterd.chaos.faults.disk import ENDS_S, ROOM, syncs
from musterd.chaos.faults.load import GROWTH, UNTAKEN
from musterd.chaos.world.equipment.all_equipment import all_equipment
from musterd.chaos.world.equipment.clock import NodeClocks
from musterd.chaos.world.equipment.disk import LoopDisks
from musterd.chaos.world.equipment.limits import Limits, open_files
from musterd.chaos.world.networks.network import Network
from musterd.chaos.world.world import World
from musterd.raft.contract import Room
from tests import machine_lacks
from tests.chaos.faults import apart
from tests.chaos.faults.load import TOPIC, Load

pytestmark = [pytest.mark.processes, pytest.mark.faults]

SHARDS = 4
SEEN_S = 20.0
DISK_METRICS = (ROOM, "muster_wal_unsynced_seconds", "muster_wal_fsync_duration_seconds_count")
SYNCS = 20
"""So many tell a slow disk from one that let a few writes through at once."""


def target(injected):
    """The one node that was hit."""
    return int(injected.targets[0].removeprefix("node-"))


def until(world, load, holds):
    """Wait for what the fault does."""
    deadline = time.monotonic() + SEEN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def refuses(host, port):
    """Nobody takes a connection there. A port may be shut a moment after its connections are."""
    try:
        with socket.create_connection((host, port)):
            return False
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # taken, and shut at once
        return False


def power_is_off(world, injected, load):
    """The disks are dead, and so are their nodes."""
    for name in injected.targets:
        node_id = int(name.removeprefix("node-"))
        assert not world.nodes[node_id].running
        assert world.equipped(LoopDisks).dead(node_id)


def log_is_torn(world, injected, load):
    """Its node is down, and something unsynced is on the disk in part."""
    assert not world.nodes[target(injected)].running
    assert injected.facts["torn"]


def ended_by_itself(world, injected, load):
    """With a message about the disk, and what was asked of it afterwards it did not acknowledge."""
    node_id = target(injected)
    assert injected.facts["exit_code"] == 1
    assert "Input/output error" in injected.facts["message"]
    assert load.last_by_node[node_id] * 1e9 <= injected.facts["at_ns"]


def has_no_room(world, injected, load):
    """It says so and stays, and the others go on."""
    until(world, load, lambda: counted(world, [target(injected)], ROOM) == Room.NONE)
    load.wait_progress()
    assert world.nodes[target(injected)].running


def disks_are(wanted):
    """Each node that was hit says so of its disk, and nobody ends."""

    def seen(world, injected, load):
        for node_id in injected.facts["nodes"]:
            until(world, load, lambda node_id=node_id: counted(world, [node_id], ROOM) == wanted)
        assert world.running() == [0, 1, 2]

    return seen


def syncs_are_slow(world, injected, load):
    """The kernel has the limit, and the node syncs on: how slowly is judged at heal."""
    node_id = target(injected)
    group = world.equipped(Limits)._group(node_id, "blkio")
    files = [*group.glob("blkio.throttle.write_iops_device"), *group.glob("io.max")]
    assert any(file.read_text().strip() for file in files)
    seen = []

    def went_on():
        with contextlib.suppress(OSError):  # its page may be late, too
            seen.append(syncs(world, node_id)[0])
        return len(seen) > 1 and seen[-1] >= seen[0] + SYNCS

    until(world, load, went_on)


def nobody_acknowledges(world, injected, load):
    """Nothing is acknowledged that was sent when no sync ended any more."""
    since = time.monotonic()
    time.sleep(1.0)  # the fault itself: what is looked for is that nothing happens
    assert max(load.last_by_node) <= since


def writes_hang(world, injected, load):
    """The loop of the node waits in a write: it answers nobody, also who asks for no write."""
    node_id = target(injected)
    until(world, load, lambda: world.describe(node_id) is None)
    assert world.nodes[node_id].running
    until(world, load, lambda: len(world.leaders()) == SHARDS)
    load.wait_progress()


def others_take_over(world, injected, load):
    """Who could commit nothing leads nothing, and what is asked of the others is acknowledged."""
    node_id = target(injected)
    until(world, load, lambda: len(world.leaders()) == SHARDS)
    until(world, load, lambda: node_id not in world.leaders().values())
    load.wait_progress()


def clocks_are_wrong(world, injected, load):
    """Of each node that was hit, by more than is forgiven; whose clock the node's is, too."""
    clock = world.equipped(NodeClocks)
    for name in injected.targets:
        node_id = int(name.removeprefix("node-"))
        assert clock.read_by(node_id, world.nodes[node_id].pid)
        until(world, load, lambda node_id=node_id: abs(clock.ahead_s(node_id)) > AHEAD_S_MIN)
    load.wait_progress()


def gives_up_what_it_led(world, injected, load):
    """Each shard that it led has a leader of a later term."""
    before = {int(shard): term for shard, term in injected.facts["terms"].items()}
    assert before
    until(world, load, lambda: all(world.terms().get(s, 0) > t for s, t in before.items()))
    load.wait_progress()


def files_run_out(world, injected, load):
    """It has as many open as it may, or has ended for it; the others go on."""
    process = world.nodes[target(injected)].process

    def out():
        with contextlib.suppress(OSError):  # it is just ending
            most, _ = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
            return process.poll() is not None or open_files(process.pid) >= most
        return False

    until(world, load, out)
    load.wait_progress()


def others_are_served(world, injected, load):
    """The node turns its calls away, and what others ask is done."""
    until(world, load, lambda: counted(world, [target(injected)], UNTAKEN) > 0)
    load.wait_progress()


def others_go_on(world, injected, load):
    """Whatever is asked for at once."""
    assert injected.facts
    load.wait_progress()


def growth_is_refused(world, injected, load):
    """Of that group; what is there goes on, and others are served."""
    assert injected.facts["went_on"]
    until(world, load, lambda: counted(world, world.running(), GROWTH) > 0)
    load.wait_progress()


def damage_is_noticed(world, injected, load):
    """It has refused, or serves what it had vouched for; the others go on."""
    vouched = injected.facts.get("vouched", False)
    assert injected.facts["outcome"] in ({"refused"} if vouched else {"refused", "serves"})
    if injected.facts["outcome"] == "refused":
        assert injected.facts["exit_code"] == 1
        assert "This node must not start on this data" in injected.facts["message"]
    load.wait_progress()


def data_is_gone(world, injected, load):
    """Nothing is left."""
    assert not world.nodes[target(injected)].data_dir.exists()
    load.wait_progress()


def loss_is_noticed(world, injected, load):
    """The others know that it forgot, and made it whole: it serves again."""
    assert injected.facts["losses"] > 0
    assert injected.facts["outcome"] == "serves"
    load.wait_progress()


def starves(world, injected, load):
    """It runs out of its share."""
    limits, node_id = world.equipped(Limits), target(injected)
    before = limits.throttled(node_id)
    until(world, load, lambda: limits.throttled(node_id) > before)


def memory_runs_out(world, injected, load):
    """The kernel counts that it wanted more; it makes do or is killed, the others go on."""
    limits, node_id = world.equipped(Limits), target(injected)
    until(world, load, lambda: limits.memory_reached(node_id) + limits.memory_kills(node_id) > 0)
    load.wait_progress()


EVIDENCE = {
    "lost_unsynced": power_is_off,
    "power_loss_all": power_is_off,
    "torn_write": log_is_torn,
    "eio": ended_by_itself,
    "disk_full": has_no_room,
    "disks_low": disks_are(Room.LOW),
    "disks_full": disks_are(Room.NONE),
    "disk_hang": writes_hang,
    "slow_disk": syncs_are_slow,
    "fsync_stall": nobody_acknowledges,
    "leader_fsync_hangs": others_take_over,
    "torn_tail": damage_is_noticed,
    "flipped_byte": damage_is_noticed,
    "whole_disk_lost": data_is_gone,
    "older_copy": loss_is_noticed,
    "lost_synced": loss_is_noticed,
    "clock_forward": clocks_are_wrong,
    "clock_back": clocks_are_wrong,
    "clock_slow": clocks_are_wrong,
    "clock_fast": clocks_are_wrong,
    "suspend": gives_up_what_it_led,
    "cpu_starvation": starves,
    "memory_short": memory_runs_out,
    "out_of_files": files_run_out,
    "unread_answers": others_are_served,
    "state_full": growth_is_refused,
    "large_commits": others_go_on,
    "fleet_starts": others_go_on,
}
OURS = sorted(
    name
    for name, kind in kinds().items()
    if kind.group in {FaultGroup.DISK, FaultGroup.CLOCK, FaultGroup.RESOURCE}
    and name not in apart.NODES
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Three nodes that all tests of this file share: a heal that does not heal fails the next."""
    with World(3, SHARDS, network=Network(), equipment=all_equipment(192)) as made:
        made.create_topic(TOPIC, 1)
        yield made


@pytest.fixture(scope="module")
def load(world) -> Iterator[Load]:
    """Commits all the while; at the end all that was acknowledged is there."""
    with Load(world.endpoints) as made:
        yield made
        made.stop()
        assert made.total > 0
        assert not made.lost()


def ended_connection(world, node_id):
    """Wait until the node ends this one. False where it is silent because a write hangs, too.

    The kernel may hold a write behind a sync that hangs (a file system's journal is full, a log
    goes on in a new file). Then the whole process stands still, as after SIGSTOP: it shuts nothing.
    """
    host, _, port = world.nodes[node_id].endpoint.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.settimeout(ENDS_S + SEEN_S)
        try:
            while connection.recv(4096):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            try:
                page = world.metrics(node_id)
            except OSError:
                return False
            about = [line for line in page.splitlines() if line.startswith(DISK_METRICS)]
            pytest.fail(f"it runs, and its connection stays open: {about}")
    return True


def test_a_leader_whose_sync_does_not_end_shuts_its_ports_before_the_kernel_lets_it_go(
    world, load
) -> None:
    """Its connections end and new ones are refused; once the disk is back it has ended with 1.

    One whose writes hang as well leads nothing any more, either: tried again.
    """
    machine_lacks.refuse(reason_missing(kinds()["leader_fsync_hangs"], world))
    for _ in range(3):
        load.wait_progress()
        made = create("leader_fsync_hangs")
        try:
            injected = made.inject(world, Random(1))
            node_id = target(injected)
            host, _, port = world.nodes[node_id].endpoint.rpartition(":")
            ended = ended_connection(world, node_id)
            assert world.nodes[node_id].running  # as far as whoever started it knows
            if ended:
                until(world, load, lambda to=(host, int(port)): refuses(*to))
                assert world.nodes[node_id].running
            load.wait_progress()
        finally:
            made.heal(world)
        assert injected.facts["leads"] == []
        if ended:
            assert injected.facts["exit_code"] == 1
        world.wait_settled()
        load.wait_progress()
        if ended:
            return
    pytest.fail("its writes hung each time")


def test_no_leader_changes_where_syncs_of_all_others_hang(world, load) -> None:
    """They are up, and answer. A machine that stands still has another leader: tried again."""
    machine_lacks.refuse(reason_missing(kinds()["fsync_stall"], world))
    seen = []
    for _ in range(3):
        load.wait_progress()
        made = create("fsync_stall")
        try:
            before = world.terms()
            nobody_acknowledges(world, made.inject(world, Random(1)), load)
        finally:
            made.heal(world)
        seen.append((before, world.terms()))
        world.wait_settled()
        if seen[-1][0] == seen[-1][1]:
            return
    pytest.fail(f"a leader changed each time: {seen}")


def test_a_node_without_what_its_durable_mark_vouches_for_refuses(world, load, monkeypatch) -> None:
    """A log that ends too early looks as a crash leaves it: only the mark tells."""
    monkeypatch.setattr(damage, "DEEP_SHARE", 1.0)
    load.wait_progress()
    made = create("torn_tail")
    try:
        injected = made.inject(world, Random(1))
        assert injected.facts["vouched"] is True
        damage_is_noticed(world, injected, load)
        assert injected.facts["outcome"] == "refused"
    finally:
        made.heal(world)
    world.wait_settled()
    load.wait_progress()


def test_every_kind_has_its_evidence() -> None:
    """A fault that nobody has seen work is none."""
    assert sorted(EVIDENCE) == OURS


@pytest.mark.parametrize("kind", OURS)
def test_a_fault_is_real_and_heals(world, load, kind) -> None:
    """Inject under load, see it, heal twice; then the cluster settles and goes on, none lost."""
    machine_lacks.refuse(reason_missing(kinds()[kind], world))
    load.wait_progress()
    made = create(kind)
    try:
        injected = made.inject(world, Random(kind))
        assert injected.targets
        EVIDENCE[kind](world, injected, load)
    finally:
        made.heal(world)
        made.heal(world)
    assert made.unreal == ""
    world.wait_settled()
    load.wait_progress()
    assert world.running() == list(world.nodes)
