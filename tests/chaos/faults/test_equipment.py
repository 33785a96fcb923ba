"""Clocks and control groups, tried on processes that are no nodes."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from musterd.chaos.world.equipment import cgroups, limits
from musterd.chaos.world.equipment.all_equipment import all_equipment
from musterd.chaos.world.equipment.client import EquipmentClient
from musterd.chaos.world.equipment.clock import HOUR_S, NodeClocks
from musterd.chaos.world.equipment.limits import Limits
from tests import machine_lacks

pytestmark = [pytest.mark.processes, pytest.mark.faults]

TELL_TIME = """
import sys, time
for line in sys.stdin:
    boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    print(time.time(), time.monotonic(), boot, flush=True)
"""
BURN = "import sys\nprint(flush=True)\nwhile True: pass"
NIBBLE = """
import sys
held = []
for line in sys.stdin:
    held.append(bytearray(b"x") * (256 << 10))
    print(flush=True)
"""
GROW = "import sys\nsys.stdin.readline()\nheap = bytearray(64 << 20)\nprint(len(heap))"


@pytest.fixture
def clock():
    """The clocks of a world's nodes."""
    made = NodeClocks()
    machine_lacks.refuse(made.lacks())
    yield made
    made.close()


@pytest.fixture
def asked(clock):
    """Ask a process that runs all the while with the clocks of node 0.

    Seconds of the wall clock, of the monotonic one and of the one that counts sleep.
    """
    with subprocess.Popen(
        [sys.executable, "-c", TELL_TIME],
        env={**os.environ, **clock.environment(0)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def ask():
            process.stdin.write("\n")
            process.stdin.flush()
            return tuple(map(float, process.stdout.readline().split()))

        yield ask
        process.stdin.close()


def test_a_clock_that_is_set_moves_in_a_process_that_runs(clock, asked) -> None:
    """An hour forward, an hour back, and right again; its monotonic clock stays."""
    for ahead_s in (0, HOUR_S, -HOUR_S, 0.5, 0):
        clock.set(0, ahead_s)
        began_s = time.time()
        wall_s, monotonic_s, _ = asked()
        assert began_s <= wall_s - ahead_s <= time.time()
        assert abs(monotonic_s - time.monotonic()) < 60
        assert abs(clock.ahead_s(0) - ahead_s) < 60


def test_a_machine_that_slept_is_told_by_one_clock_alone(clock, asked) -> None:
    """And stays so: no sleep is taken back when the wall clock is set."""
    awake_s = asked()[2] - asked()[1]
    for slept_s in (HOUR_S, 2 * HOUR_S):
        clock.sleep(0, HOUR_S)
        clock.set(0)
        wall_s, monotonic_s, boot_s = asked()
        assert abs(boot_s - monotonic_s - awake_s - slept_s) < 60
        assert abs(wall_s - time.time()) < 60


def test_whose_clock_a_process_reads_is_asked_of_the_kernel(clock) -> None:
    """Of one that was started with it, for its own node, and of nobody else."""
    environment = {**os.environ, **clock.environment(0)}
    argv = [sys.executable, "-c", TELL_TIME]
    with subprocess.Popen(
        argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()  # it runs, with all its libraries
        assert clock.read_by(0, process.pid)
        assert not clock.read_by(1, process.pid)
        assert not clock.read_by(0, os.getpid())
        process.stdin.close()


def test_a_drifting_clock_gains_more_and_more(clock, asked) -> None:
    """At 100 times its speed it is a minute ahead soon, and more later."""
    clock.set(0, speed=100.0)
    for wanted_s in (60.0, 90.0):
        deadline = time.monotonic() + 30.0
        while asked()[0] - time.time() < wanted_s:
            assert time.monotonic() < deadline


def test_threads_of_a_process_with_such_a_clock_hand_over_at_once(clock) -> None:
    """Whoever waits until a time waits for a moment, whatever clock says what time it is."""
    program = (
        "import queue, threading, time\n"
        "q, r = queue.Queue(), queue.Queue()\n"
        "def echo():\n"
        "    while q.get(timeout=60) is not None: r.put(1)\n"
        "t = threading.Thread(target=echo); t.start(); s = time.perf_counter()\n"
        "for _ in range(1000): q.put(1); r.get(timeout=60)\n"
        "print(time.perf_counter() - s); q.put(None); t.join()\n"
    )
    for ahead_s in (0, HOUR_S, -HOUR_S):
        environment = clock.environment(0)
        clock.set(0, ahead_s)
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **environment},
            capture_output=True,
            check=True,
            timeout=120,
        )
        assert float(done.stdout) < 20.0  # it is 0.03 s


@pytest.fixture
def client():
    """An equipment process that has nothing left at the end, or the test fails."""
    made = EquipmentClient()
    yield made
    made.close()


def test_a_cpu_limit_holds_until_it_is_lifted(client) -> None:
    """A busy process runs out of its share in period after period, then never again."""
    cpu = Limits(client)
    machine_lacks.refuse(cpu.lacks())
    with subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE) as busy:
        busy.stdout.readline()
        try:
            cpu.started(0, busy.pid)
            cpu.limit_cpu(0, 0.05)
            deadline = time.monotonic() + 30.0
            while cpu.throttled(0) < 5:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            cpu.lift(0)
            used = _cpu_ticks(busy.pid)
            while _cpu_ticks(busy.pid) < used + 20:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            busy.kill()


def _cpu_ticks(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def test_a_process_that_needs_more_memory_than_it_may_have_is_killed(client) -> None:
    """And the count of such deaths says so."""
    memory = Limits(client)
    machine_lacks.refuse(memory.lacks())
    with subprocess.Popen(
        [sys.executable, "-c", GROW], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as growing:
        memory.started(0, growing.pid)
        memory.limit_memory(0, memory.memory_resident(0) + (16 << 20))
        growing.communicate(b"\n", timeout=30)
    assert growing.returncode == -9
    assert memory.memory_kills(0) == 1
    assert memory.memory_reached(0) > 0


def test_a_limit_below_what_is_used_is_reached_soon(client) -> None:
    """By a process that wants a few pages now and then; it is given no step of megabytes."""
    memory = Limits(client)
    machine_lacks.refuse(memory.lacks())
    with subprocess.Popen(
        [sys.executable, "-c", NIBBLE], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as nibbling:
        memory.started(0, nibbling.pid)
        nibbling.stdin.write(b"\n")
        nibbling.stdout.readline()  # it has memory that cannot be dropped
        before = memory.memory_reached(0)
        memory.limit_memory(0, 1)
        deadline = time.monotonic() + 30.0
        while memory.memory_reached(0) == before and memory.memory_kills(0) == 0:
            assert time.monotonic() < deadline
            if nibbling.poll() is None:
                with contextlib.suppress(BrokenPipeError):
                    nibbling.stdin.write(b"\n")
            time.sleep(0.02)
        memory.lift(0)
        nibbling.kill()


def test_a_limit_of_open_files_holds_for_a_running_process_and_can_be_undone() -> None:
    """The hard limit is left, so that the soft one can rise again."""
    program = (
        "import os, sys\n"
        "for line in sys.stdin:\n"
        "    try: os.close(os.open('/dev/null', 0)); print('opened', flush=True)\n"
        "    except OSError as error: print(error.errno, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def ask():
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert ask() == "opened"
        soft, hard = limits.limit_open_files(process.pid, limits.open_files(process.pid))
        assert ask() == "24"  # EMFILE
        assert limits.limit_open_files(process.pid, soft)[1] == hard
        assert ask() == "opened"
        process.stdin.close()


def proc(tmp_path, mounts, groups):
    """A /proc of another machine."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mounts").write_text(mounts)
    (tmp_path / "self/cgroup").write_text(groups)
    return tmp_path


def test_a_controller_of_version_1_is_found_below_this_process_own_group(tmp_path) -> None:
    """Its limits go on to hold."""
    where = proc(
        tmp_path,
        "cgroup /c/cpu cgroup rw,relatime,cpu,cpuacct 0 0\n",
        "4:cpu,cpuacct:/user/me\n1:name=systemd:/\n",
    )
    assert cgroups.find("cpu", proc=where) == cgroups.Controller("cpu", 1, Path("/c/cpu/user/me"))
    assert cgroups.find("memory", proc=where) is None


def test_a_controller_of_version_2_is_found_by_its_own_name_and_handed_on(tmp_path) -> None:
    """`blkio` is `io` there; it is switched on for children where it is not."""
    root = tmp_path / "unified"
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpu io memory\n")
    (root / "cgroup.subtree_control").write_text("cpu\n")
    where = proc(tmp_path, f"cgroup2 {root} cgroup2 rw 0 0\n", "0::/user.slice/me\n")
    found = cgroups.find("blkio", proc=where)
    assert found == cgroups.Controller("io", 2, root)
    assert found.make("trial").parent == root
    assert (root / "cgroup.subtree_control").read_text() == "+io"


def test_the_outfit_provides_what_the_faults_need() -> None:
    """Each capability once."""
    provided = [name for kit in all_equipment() for name in sorted(kit.provides)]
    assert sorted(provided) == [
        "clock",
        "disk",
        "limits",
        "state_limit",
    ]
