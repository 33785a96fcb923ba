"""A fault that broke nothing says so, and its run counts it. Worlds are made up: nothing runs."""

import re
from contextlib import nullcontext
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from muster.v1 import admin_pb2, errors_pb2, group_pb2
from musterd.chaos.faults import clock, contract, damage, disk, load, resources
from musterd.chaos.faults.catalog import kinds
from musterd.chaos.faults.contract import FaultError, FaultGroup, Watched, create
from musterd.chaos.run.target_cluster import Healed, OwnWorld
from musterd.coordinator.node.loopback import ClusterError
from musterd.raft.contract import Room
from tests.chaos.faults.portless import Portless

DOCS = Path(__file__).parents[3] / "docs" / "chaos.md"

HELD_S = 8.0
DAMAGES = {"eio", "torn_tail", "flipped_byte", "torn_write", "whole_disk_lost"}
"""What became of the node is in their facts; a torn write that tears nothing is not injected."""
POWER = {"lost_unsynced", "power_loss_all"}
"""They tell what was lost, which may be nothing."""
RESETS = {"reset_peer_connections", "reset_client_connections", "half_open_peers"}
"""They count the connections that they end; where there are none they are not injected."""


def healed(fault, world):
    """What its cluster is told of it; the second time there is nothing to heal."""
    cluster = OwnWorld(3, Portless(), ["kill_leader"])
    cluster.close()
    cluster.world, cluster._fault = world, fault
    fault.heal(world)
    told = cluster.heal()
    assert cluster.heal() == Healed()
    return told


def injected(kind, world):
    """One that was done to a made-up world, and healed."""
    fault = create(kind)
    fault.inject(world, Random(1))
    return healed(fault, world)


def test_a_fault_that_does_nothing_when_it_is_injected_is_unreal():
    """All that break clocks, resources, links and disks look for an effect; nobody has yet."""
    groups = {FaultGroup.CLOCK, FaultGroup.RESOURCE, FaultGroup.DISK, FaultGroup.NETWORK}
    ours = {name for name, kind in kinds().items() if kind.group in groups}
    looking = {name for name, kind in kinds().items() if issubclass(kind, Watched)}
    assert looking == ours - DAMAGES - POWER - RESETS
    for name in looking:
        assert create(name).unreal == "nobody looked"


def test_every_clients_connection_with_a_node_is_reset_in_one_go():
    """No client keeps a way to the leader while others have lost theirs."""
    done = []
    clients = ["clients-0", "clients-1"]
    network = SimpleNamespace(
        clients=clients, reset=lambda source, target: done.append((target, source)) or 1
    )
    world = SimpleNamespace(network=network, nodes=dict.fromkeys(range(3)))
    fault = create("reset_client_connections")
    assert fault.inject(world, Random(1)).facts["connections"] == 6
    assert done == [(f"node-{node}", client) for node in range(3) for client in clients]
    assert fault.spares_members


def test_the_document_says_of_every_kind_how_it_is_seen():
    """A row names it, or a pattern that it matches."""
    _, _, text = DOCS.read_text("utf-8").partition("### How a fault is seen")
    rows = re.findall(r"^\| (`.*?) \|", text.partition("\n\nA single fault")[0], re.MULTILINE)
    named = [pattern for row in rows for pattern in re.findall(r"`([^`]+)`", row)]
    assert [name for name in kinds() if not any(fnmatch(name, one) for one in named)] == []


# ---- clocks


class Clocks:
    """Three nodes' clocks, of which some drift and some do not; do the nodes read them?"""

    probed = frozenset()

    def __init__(self, ahead_s, read=True):
        self._ahead_s, self._read = ahead_s, read
        self.nodes = {n: SimpleNamespace(pid=100 + n) for n in range(3)}

    def running(self):
        return [0, 1, 2]

    def equipped(self, _kind):
        return self

    def ahead_s(self, _node_id):
        return self._ahead_s

    def read_by(self, node_id, pid):
        assert pid == 100 + node_id
        return self._read

    def set(self, *_):
        pass


@pytest.mark.parametrize(
    ("kind", "ahead_s", "real"),
    [
        ("clock_slow", -HELD_S / 2, True),
        ("clock_slow", 0.0, False),
        ("clock_slow", HELD_S / 2, False),
        ("clock_fast", 2 * HELD_S, True),
        ("clock_fast", HELD_S, True),
        ("clock_fast", 0.01, False),
    ],
)
def test_clocks_that_went_as_fast_as_ever_are_noticed(kind, ahead_s, real, monkeypatch):
    """Seen by a process that has them, just before they are set right."""
    now = [100.0]
    monkeypatch.setattr(clock.time, "monotonic", lambda: now[0])
    world = Clocks(ahead_s)
    fault = create(kind)
    fault.inject(world, Random(1))
    now[0] += HELD_S
    assert (healed(fault, world).unreal == "") is real


def test_clocks_that_the_nodes_do_not_read_are_noticed():
    """However wrong another process finds them."""
    assert injected("clock_forward", Clocks(clock.HOUR_S)).effect.startswith("the clocks were ahe")
    assert "do not read" in injected("clock_forward", Clocks(clock.HOUR_S, read=False)).unreal
    assert "ahead by" in injected("clock_back", Clocks(clock.HOUR_S)).unreal


# ---- resources


class Machine:
    """Control groups and disks whose counters rise by so much while a fault lasts."""

    probed = frozenset()
    reserve = 100

    def __init__(self, risen=0, code=None):
        self._risen, self._counted = risen, {}
        self.nodes = {n: SimpleNamespace(pid=n, running=True, process=None) for n in range(3)}
        self.code = code

    def running(self):
        return [1]

    def followers(self):
        return [1]

    def terms(self):
        return {}

    def reap(self, _node_id):
        return self.code

    def leader(self):
        return 1

    def leaders(self):
        return {0: 2}

    def metrics(self, _node_id):
        return ""

    def equipped(self, _kind):
        return self

    def place(self, _node_id):
        return SimpleNamespace(device="7:0")

    def __getattr__(self, name):
        if name in {"lift", "free", "start_if_down", "limit_writes", "freeze", "thaw"}:
            return lambda *_, **__: None
        return lambda *_: self._count(name)

    def _count(self, name):
        """A counter that is not new; resident memory and the like are such numbers, too."""
        self._counted[name] = self._counted.get(name, 40 - self._risen) + self._risen
        return self._counted[name]


class Asleep(Machine):
    """Node 1 leads two shards, one of which is in term 5, the other in a later one each time."""

    def __init__(self, read, risen):
        super().__init__()
        self._read, self._terms = read, iter([{0: 5, 1: 7, 2: 3}, {0: 5 + risen, 1: 8, 2: 3}])

    def terms(self):
        return next(self._terms)

    def leaders(self):
        return {0: 1, 1: 1, 2: 0}

    def sleep(self, node_id, seconds):
        assert (node_id, seconds) == (1, clock.HOUR_S)

    def read_by(self, _node_id, _pid):
        return self._read


@pytest.mark.parametrize(
    ("read", "risen", "real"), [(True, 1, True), (True, 0, False), (False, 1, False)]
)
def test_a_node_that_leads_on_after_its_machine_slept_is_told(read, risen, real):
    """Each shard that it led has to be in a later term, and the node has to read that clock."""
    assert (injected("suspend", Asleep(read, risen)).unreal == "") is real


@pytest.fixture(autouse=True)
def nobody_ends(monkeypatch):
    """A node of a made-up world ends with its `code`, at once or never."""
    monkeypatch.setattr(contract, "last_words", lambda *_: "words")


@pytest.mark.parametrize("kind", ["cpu_starvation", "memory_short"])
def test_a_limit_that_was_never_reached_is_noticed(kind):
    """By the kernel's counters, from the injection on."""
    assert injected(kind, Machine(risen=3)).unreal == ""
    assert " 3 " in injected(kind, Machine(risen=3)).effect
    assert " 0 " in injected(kind, Machine()).unreal


@pytest.mark.parametrize(
    ("room", "runs", "real"),
    [(Room.NONE, True, True), (Room.LOW, False, True), (Room.LOW, True, False)],
)
def test_a_disk_with_room_is_not_full(room, runs, real):
    """Where its node goes on, too: one that ended has found it full before."""
    world = Machine()
    world.metrics = lambda _: f"{disk.ROOM} {room}\n"
    world.nodes[1].running = runs
    assert (injected("disk_full", world).unreal == "") is real


@pytest.mark.parametrize("kind", ["disk_hang", "fsync_stall", "leader_fsync_hangs"])
def test_a_disk_that_nobody_waits_for_does_not_hang(kind, monkeypatch):
    """The kernel knows who waits."""
    for count in (2, 0):
        monkeypatch.setattr(
            disk.process_state, "stuck", lambda pids, count=count: len([*pids]) * count
        )
        assert (injected(kind, Machine()).unreal == "") is (count > 0)


class Forgetful:
    """Two nodes; the other one counts so many losses more after the last start."""

    probed = frozenset()

    def __init__(self, folder, losses):
        (folder / "db").mkdir(parents=True)
        self.nodes = {1: SimpleNamespace(data_dir=folder, running=True, pid=7, process=None)}
        self.starts, self._losses, self.wiped = 0, losses, False
        self.applied = 9

    def running(self):
        return [0, 1]

    def kill(self, _node_id):
        """It ends."""

    def pause(self, _node_id):
        """It stands still."""

    def resume(self, _node_id):
        self.starts += 1

    def start(self, _node_id):
        self.starts += 1

    def reap(self, _node_id):
        return None

    def describe(self, _node_id):
        state = SimpleNamespace(role="Follower", shard=3, applied_index=self.applied)
        return SimpleNamespace(shard_states=[state])

    def views(self):
        state = SimpleNamespace(role="Leader", shard=3, commit_index=9)
        return {0: SimpleNamespace(shard_states=[state])}

    def metrics(self, _node_id):
        count = 4 + self._losses * (self.starts == 2)
        return f'muster_store_losses_total{{node="1"}} {count}\n'

    def start_if_down(self, _node_id):
        """It runs."""

    def wipe(self, _node_id):
        self.wiped = True


@pytest.mark.parametrize("kind", ["older_copy", "lost_synced"])
@pytest.mark.parametrize("losses", [2, 0])
def test_a_loss_that_nobody_noticed_is_unreal_and_not_rebuilt(losses, kind, tmp_path, monkeypatch):
    """What was lost is told by the others; a new store would hide that it does not come back."""
    monkeypatch.setattr(contract, "one_of", lambda *_: 1)
    monkeypatch.setattr(damage.process_state, "stopped", lambda pid: pid == 7)
    monkeypatch.setattr(damage, "NOTICED_S_MAX", 0.05)
    monkeypatch.setattr(damage, "MARKS_S_MAX", 0.05)
    world = Forgetful(tmp_path / "node-1", losses)
    fault = create(kind)
    facts = fault.inject(world, Random(1)).facts
    assert (healed(fault, world).unreal == "") is (losses > 0)
    assert (facts["losses"], facts["heard"], facts["outcome"]) == (losses, False, "serves")
    assert not world.wiped


def test_a_node_that_serves_and_does_not_get_what_it_lacks_is_behind(tmp_path, monkeypatch):
    """The others believe that it has it: it is told so, and by which shard."""
    monkeypatch.setattr(contract, "one_of", lambda *_: 1)
    monkeypatch.setattr(damage.process_state, "stopped", lambda pid: pid == 7)
    monkeypatch.setattr(damage, "MARKS_S_MAX", 0.05)
    monkeypatch.setattr(damage, "WHOLE_S_MAX", 0.05)
    world = Forgetful(tmp_path / "node-1", 2)
    world.applied = 8
    injected = create("lost_synced").inject(world, Random(1))
    assert injected.facts["outcome"] == "behind"
    assert injected.detail.endswith("it lacks entries of shards [3]")


@pytest.mark.parametrize(("took_s", "real"), [(4.0, True), (0.04, False)])
def test_a_disk_whose_syncs_are_as_short_as_ever_is_not_slow(took_s, real):
    """By what the node says of them, from the injection on."""
    name = "muster_wal_fsync_duration_seconds"
    pages = iter(
        f'# HELP {name} x\n{name}_bucket{{le="1"}} 9\n{name}_count {count}\n{name}_sum {total}\n'
        for count, total in ((1000, 1.5), (1020, 1.5 + took_s))
    )
    world = Machine()
    world.metrics = lambda _: next(pages)
    told = injected("slow_disk", world)
    assert (told.unreal == "") is real
    assert "20 syncs" in told.effect + told.unreal


@pytest.mark.parametrize("count", [2, 0])
def test_a_disk_whose_syncs_were_not_counted_before_is_not_judged_by_their_mean(count, monkeypatch):
    """The page was late: 1,000 short ones of before would hide the long ones. Who waits counts."""

    def late(_):
        raise OSError("the page is late")

    monkeypatch.setattr(disk.process_state, "stuck", lambda _: count)
    world = Machine()
    world.metrics = late
    assert injected("slow_disk", world).unreal == ("" if count else "0 threads hung in the kernel")


def test_a_look_that_fails_is_tried_again(monkeypatch):
    """What cannot be seen for a moment is no fault without an effect."""
    monkeypatch.setattr(contract, "POLL_S", 0.0)
    looks = iter([OSError("gone"), ClusterError("late"), None])

    def page(_):
        if (error := next(looks)) is not None:
            raise error
        return f"{disk.ROOM} {Room.NONE}\n"

    world = Machine()
    world.metrics = page
    assert injected("disk_full", world).unreal == ""


@pytest.mark.parametrize(
    ("opened", "code", "real"), [(12, None, True), (0, 1, True), (11, None, False)]
)
def test_a_node_that_could_open_more_files_did_not_run_out(opened, code, real, monkeypatch):
    """It has as many as it may, or has ended."""
    counts = iter([10, opened])
    monkeypatch.setattr(resources.limits, "open_files", lambda _: next(counts))
    monkeypatch.setattr(resources.limits, "limit_open_files", lambda *_: (1024, 4096))
    monkeypatch.setattr(resources.resource, "prlimit", lambda *_: None)
    monkeypatch.setattr(resources.socket, "create_connection", lambda *_: nullcontext())
    world = Machine(code=code)
    world.nodes[1].addresses = SimpleNamespace(control="127.0.0.1:1")
    world.nodes[1].process = SimpleNamespace(pid=1, poll=lambda: code, wait=lambda _: code)
    assert (injected("out_of_files", world).unreal == "") is real


# ---- links


class Links:
    """Three nodes and a client; shaped links do so much of `what`, and others, too."""

    probed = frozenset()

    def __init__(self, what, count):
        self.nodes = {0: None, 1: None, 2: None}
        self.places = ("node-0", "node-1", "node-2", "client-0")
        self.clients = ("client-0",)
        self.network = self
        self._what, self._count = what, count
        self._counts = {("node-0", "node-1", what): 7}

    def leader(self):
        return 0

    def running(self):
        return [0, 1, 2]

    def followers(self):
        return [1]

    def counts(self):
        return dict(self._counts)

    def shape(self, source, target, _shape):
        link = (source, target, self._what)
        self._counts[link] = self._counts.get(link, 0) + self._count
        self._counts["elsewhere", target, self._what] = 100

    def heal(self, _source, _target):
        pass


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("isolate_leader", "dropped"),
        ("isolate_follower", "dropped"),
        ("split_with_clients", "dropped"),
        ("cut_all_peers", "dropped"),
        ("asymmetric_cut", "dropped"),
        ("partial_cut", "dropped"),
        ("delay_jitter", "delayed"),
        ("slow_link", "delayed"),
        ("packet_loss", "dropped"),
        ("packet_disorder", "doubled"),
    ],
)
def test_links_that_let_everything_pass_as_ever_are_noticed(kind, what):
    """By what the network counts of these links, from the injection on."""
    assert injected(kind, Links(what, 1)).unreal == ""
    assert injected(kind, Links(what, 0)).unreal.endswith(": 0")
    assert injected(kind, Links("passed", 1)).unreal.endswith(": 0")


def test_a_look_that_fails_keeps_nothing_from_being_healed(monkeypatch):
    """It saw nothing, and says why."""
    world, lifted = Machine(), []

    told = iter([0])

    def throttled(_):
        for count in told:
            return count
        raise ClusterError("the group is gone")

    world.throttled, world.lift = throttled, lifted.append
    assert "the group is gone" in injected("cpu_starvation", world).unreal
    assert lifted == [1]


# ---- power


@pytest.mark.parametrize("lost", [0, 17])
def test_what_a_loss_of_power_took_is_told_and_nothing_may_be_lost(lost, monkeypatch):
    """All that was written may have been synced: that is no sign that the power stayed."""
    monkeypatch.setattr(disk.damage, "log_size", lambda _: ("000010.log", 100))
    monkeypatch.setattr(disk.damage, "lost_since", lambda _, before: lost if before[1] else -1)
    world = Machine()
    world.nodes[1].data_dir = None
    world.pause = world.kill = world.cut = world.remount = lambda _: None
    world.dead = lambda _: True
    assert injected("lost_unsynced", world) == Healed(f"bytes lost of the log: node-1: {lost}")


def test_a_torn_write_that_tore_nothing_was_not_injected(monkeypatch):
    """There was nothing that was not synced."""
    nothing = SimpleNamespace(limit_writes=lambda *_, **__: None, lift=lambda _: None)
    place = SimpleNamespace(device="7:0")
    disks = SimpleNamespace(cut=lambda _: None, remount=lambda _: None, place=lambda _: place)
    world = SimpleNamespace(
        running=lambda: [0, 1, 2],
        probed=frozenset(),
        nodes={n: SimpleNamespace(data_dir=None) for n in range(3)},
        equipped=lambda kind: disks if kind is disk.LoopDisks else nothing,
        pause=lambda _: None,
        kill=lambda _: None,
    )
    monkeypatch.setattr(disk, "UNSYNCED_S_MAX", 0.0)
    monkeypatch.setattr(disk.damage, "written", lambda _: 5)
    monkeypatch.setattr(disk.damage, "log_size", lambda _: ("", 0))
    monkeypatch.setattr(disk.damage, "half_written", lambda *_: None)
    with pytest.raises(FaultError, match="nothing was unsynced"):
        create("torn_write").inject(world, Random(1))


def unread(monkeypatch, refused, peaks):
    """What comes of a client that does not read, of which its node counts so much."""
    pages, told = iter(refused), iter(peaks)
    monkeypatch.setattr(load, "peak_bytes", lambda _: next(told))
    monkeypatch.setattr(load.Path, "write_text", lambda *_: None)
    child = SimpleNamespace(ready=lambda: {"calls": 350}, hang_up=lambda: None, close=lambda: None)
    monkeypatch.setattr(load, "Child", lambda *_, **__: child)
    world = Machine()
    world.nodes[1].endpoint = world.client_command = None
    world.metrics = lambda _: f"{load.UNTAKEN} {next(pages)}\n"
    world.wait = lambda condition, *_: condition()
    return injected("unread_answers", world)


@pytest.mark.parametrize(("counts", "real"), [((3, 4), True), ((3, 3), False)])
def test_a_client_that_was_never_refused_has_read(counts, real, monkeypatch):
    """By the node's own count."""
    assert (unread(monkeypatch, counts, (0, 0)).unreal == "") is real


@pytest.mark.parametrize(("rise_bytes", "fails"), [(1 << 20, False), (100 << 20, True)])
def test_memory_that_rises_for_a_client_that_reads_nothing_fails_the_run(
    rise_bytes, fails, monkeypatch
):
    """More than all else that goes on takes in these seconds."""
    with pytest.raises(FaultError) if fails else nullcontext():
        unread(monkeypatch, (0, 0), (80 << 20, (80 << 20) + rise_bytes))


class Asked:
    """A node whose coordinator knows so much of each group, and deletes all of them."""

    def __init__(self, *, offset=0, members=0):
        self._offset, self._members = offset, members

    def OffsetFetch(self, request, timeout):  # noqa: N802 - as a stub has it
        answer = group_pb2.OffsetFetchResponse()
        for asked in request.groups:
            group = answer.groups.add(group_id=asked.group_id)
            group.partitions.add(partition=asked.partitions[0].partition, offset=self._offset)
        return answer

    def DescribeGroups(self, request, timeout):  # noqa: N802
        answer = admin_pb2.DescribeGroupsResponse()
        for group_id in request.group_ids:
            group = answer.groups.add(group_id=group_id)
            for _ in range(self._members):
                group.members.add()
        return answer

    def DeleteGroups(self, request, timeout):  # noqa: N802
        answer = admin_pb2.DeleteGroupsResponse()
        for group_id in request.group_ids:
            answer.results.add(group_id=group_id)
        return answer


@pytest.mark.parametrize(
    ("kind", "known", "real"),
    [
        ("large_commits", {"offset": 2}, True),
        ("large_commits", {"offset": 1}, False),
        ("fleet_starts", {"members": 10}, True),
        ("fleet_starts", {"members": 9}, False),
    ],
)
def test_a_crowd_is_what_coordinators_know_of_it(kind, known, real, monkeypatch):
    """Whatever the clients say of themselves."""
    world = asked_world(monkeypatch, Asked(**known), [{"first": {}}] * load.FLEET_PROCESSES)
    assert (injected(kind, world).unreal == "") is real


@pytest.mark.parametrize(("last", "fails"), [(6, False), (7, True)])
def test_a_fleet_whose_groups_form_more_than_twice_fails_the_run(last, fails, monkeypatch):
    """Counted from the first generation that any of its members had; that may be any number."""
    told = [{"first": {"g": [one], "h": [9]}} for one in (5, 5, last, 5)]
    world = asked_world(monkeypatch, Asked(members=10), told)
    with pytest.raises(FaultError, match="formed") if fails else nullcontext():
        injected("fleet_starts", world)


def asked_world(monkeypatch, node, told):
    """A machine with this node; each of the clients says so much when it has begun."""
    answers = iter(told)

    def child(*_, **__):
        return SimpleNamespace(
            ready=lambda **_: {},
            send=lambda *_, **__: None,
            read=lambda _: next(answers),
            hang_up=lambda: None,
            close=lambda: None,
        )

    monkeypatch.setattr(load, "Child", child)
    world = Machine()
    world.nodes[1].endpoint = world.client_command = None
    world.groups = world.admin = lambda _: node
    world.wait = lambda condition, *_: condition()
    return world


NONE, LOW = errors_pb2.NONE, errors_pb2.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(
    ("codes", "wrong"),
    [
        ((NONE, LOW, NONE), False),
        ((NONE, NONE, NONE), True),
        ((LOW, LOW, NONE), True),
        ((NONE, LOW, LOW), True),
    ],
)
def test_low_disks_that_refuse_no_growth_or_anything_else_fail_the_run(codes, wrong, monkeypatch):
    """A commit of an offset that is there, one of a new offset, the group's deletion."""
    there, new, deleted = ({int(code)} for code in codes)
    own = SimpleNamespace(
        commit=lambda _: None,
        told=lambda _, partition: new if partition else there,
        delete=lambda: deleted,
    )
    monkeypatch.setattr(disk, "OwnGroup", lambda *_: own)
    world = Machine()
    world.metrics = lambda _: f"{disk.ROOM} {Room.LOW}\n"
    disks = SimpleNamespace(reserve=100, fill=lambda *_: 0, free=lambda _: None)
    world.equipped = lambda _: disks
    with pytest.raises(FaultError, match="error codes") if wrong else nullcontext():
        assert injected("disks_low", world).unreal == ""
