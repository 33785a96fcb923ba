"""What a node asks of its own host, in a process of its own."""

import subprocess
import sys
import textwrap
from collections import Counter

import pytest

from musterd.coordinator import host

FREED = """
    from musterd.coordinator.host import give_memory_back

    def resident_kib():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    pieces = [bytearray(20_000) for _ in range(4_000)]
    del pieces[::2]
    held = resident_kib()
    give_memory_back()
    print(held - resident_kib())
"""
ARENAS = """
    import ctypes, threading
    from musterd.coordinator.host import tidy_heaps

    tidy_heaps()
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    here = threading.Barrier(20)

    def thread():
        libc.malloc(5_000)
        here.wait()

    threads = [threading.Thread(target=thread) for _ in range(20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    libc.malloc_stats()
"""
LARGE = """
    import ctypes
    from musterd.coordinator.host import tidy_heaps

    tidy_heaps()
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    Info = type("Info", (ctypes.Structure,), {
        "_fields_": [(name, ctypes.c_size_t) for name in names.split()]
    })
    libc.mallinfo2.restype = Info
    libc.free(libc.malloc(1 << 20))
    before = libc.mallinfo2().hblks
    for _ in range(8):
        libc.malloc(1 << 19)
    print(libc.mallinfo2().hblks - before)
"""
GARBAGE = """
    import gc, weakref
    from musterd.coordinator.host import calm_collector, freeze_loaded

    class Call:
        pass

    calm_collector()
    call = Call()
    call.itself = call
    ended = weakref.ref(call)
    del call
    loaded = [[number] for number in range(1_000)]
    assert ended() is not None
    freeze_loaded()
    print(ended() is None, gc.get_freeze_count() > 1_000)
"""


COLLECTED = """
    import gc
    from musterd.coordinator.host import calm_collector

    calm_collector()
    looked_at = []

    def note(phase, info):
        if phase == "start" and info["generation"] == 1:
            looked_at.append(len(gc.get_objects(0)) + len(gc.get_objects(1)))

    gc.callbacks.append(note)

    class Call:
        def __init__(self):
            self.itself = self

    for _ in range(400_000):
        Call()
    ended = list(looked_at)
    stays = [[number] for number in range(1_000_000)]
    print(len(ended), len(looked_at) > 5, max(looked_at[-5:]) < 200_000)
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_pages_that_are_free_between_used_ones_go_back_to_the_system():
    """40 MB of 80 MB are free, none at the heap's end; 16 KiB of each 20 KB are whole pages."""
    assert int(_run(FREED).stdout) > 24 * 1024


def test_twenty_threads_share_two_heaps():
    """malloc_stats tells of each heap."""
    assert _run(ARENAS).stderr.count("Arena ") == 2


def test_large_pieces_lie_outside_the_heaps_also_after_one_was_freed():
    """As pages of their own: eight pieces as those of a memtable."""
    assert _run(LARGE).stdout.split() == ["8"]


def test_what_calls_left_behind_is_not_frozen_with_a_shard_that_was_loaded():
    """A cycle that nobody refers to is gone, what was loaded is out of the collector's sight."""
    assert _run(GARBAGE).stdout.split() == ["True", "True"]


def test_a_million_offsets_that_are_new_are_not_looked_at_in_one_collection():
    """Which took as long as an election; what calls leave, some of which are held, is let be."""
    assert _run(COLLECTED).stdout.split() == ["0", "True", "True"]


@pytest.mark.parametrize(
    ("collected", "after_s", "growing"), [(100, 0.5, True), (100, 4.0, False), (15_000, 0.5, False)]
)
def test_only_what_stays_and_comes_fast_counts_as_growth(monkeypatch, collected, after_s, growing):
    """Calls that are held stay as well, and what is promoted with them is never looked at again."""
    told, now_s = [], [100.0]
    monkeypatch.setattr(host.time, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr(host.gc, "set_threshold", lambda *thresholds: told.append(thresholds))
    host._young_collected("stop", {"generation": 0, "collected": 0})
    now_s[0] += after_s
    host._young_collected("stop", {"generation": 0, "collected": collected})
    assert told[-1] == (host.GROWING_THRESHOLDS if growing else host.GC_THRESHOLDS)


NODE = """
    import os, sys
    from pathlib import Path

    from musterd.coordinator.node import assembly, node, serve, wall_clock
    from musterd.coordinator.node.config import load_settings

    def told_of(module, name, most=9):
        shipped, left = getattr(module, name), iter(range(most))

        def call(*given):
            if next(left, None) is not None:
                os.write(1, f"{name}\\n".encode())  # in one piece: several threads tell
            return shipped(*given)

        setattr(module, name, call)

    told_of(serve, "tidy_heaps")
    told_of(node, "calm_collector")
    told_of(assembly, "freeze_loaded")
    told_of(node, "give_memory_back")
    told_of(wall_clock.WallClock, "now_ms", most=1)
    folder = sys.argv[1]
    addresses = dict.fromkeys(("listen", "peer_listen", "metrics_listen"), "127.0.0.1:0")
    serve.run_node(load_settings(None, {"data_dir": folder, **addresses}))
"""


def test_a_node_that_serves_does_all_of_it(tmp_path):
    """Two heaps before its threads begin, a calm collector, each shard frozen, free pages back.

    And its entries have the time that no jump of the machine's clock gets into.
    """
    told = {"tidy_heaps": 1, "calm_collector": 1, "freeze_loaded": 4, "give_memory_back": 1}
    told["now_ms"] = 1
    init = ["init", f"--data-dir={tmp_path}", "--cluster-id=c", "--node-id=0", "--nodes=1"]
    muster = [sys.executable, "-m", "muster.cli"]
    subprocess.run([*muster, *init, "--shards=4"], check=True, capture_output=True, timeout=60)
    code = textwrap.dedent(NODE)
    node = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        heard = Counter(node.stdout.readline().strip() for _ in range(sum(told.values())))
    finally:
        node.terminate()
        node.wait(timeout=30)
        node.stdout.close()
    assert heard == told
