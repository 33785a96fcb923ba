"""Settings of the own process: it ends with its parent, and its heap and file limits are set.

As a program (`host.py PARENT NAMESPACES ARGV...`) it ties itself to its parent and becomes ARGV.
"""

import ctypes
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable
from typing import Final, NoReturn

_PR_SET_PDEATHSIG: Final = 1

GC_THRESHOLDS: Final = (20_000, 50, 5_000)
"""A full collection over a million objects stops the process for half a second, so they are rare.
The young ones are cheap, and gRPC leaves 0.8 KiB of garbage in a cycle with each call: 4,000 calls'
worth, 3 MiB, when the first threshold is reached. What is alive at the second is not looked at
again, and calls that are held must not be among it: that one is high."""

GROWING_THRESHOLDS: Final = (20_000, 5, 5_000)
"""While most objects stay, such as offsets that are new: the second is reached after 120,000 of
them, which took 165 ms at most on two busy cores. After a million it took an election's time."""

GROWING_S_MAX: Final = 2.0
"""Between two young collections while state grows; what calls leave that are held takes longer."""

_M_ARENA_MAX: Final = -8
MALLOC_ARENAS: Final = 2
"""glibc gives each thread its own heap, up to eight per CPU, and each keeps what it once needed.
One thread of a node does nearly everything, so two heaps are enough."""

_M_MMAP_THRESHOLD: Final = -3
MAPPED_BYTES: Final = 128 * 1024
"""A piece of so much or more has pages of its own, which go back when it is freed. glibc starts so
and raises it to the largest piece that was ever freed: then RocksDB's memtables, in pieces of
512 KiB, lie in the heap between what stays, and the heap grows by some of each flush."""

FILES_MAX: Final = 1_000_000
"""More than any node needs, where there is no limit."""


def become(module: str, argument: str) -> NoReturn:
    """Go on as this module, as a program with one argument, in the same process.

    The modules that read the options of a command would stay in memory, 10 MiB of a node, for as
    long as it runs. Raises OSError where the interpreter cannot be started.
    """
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, argument])  # noqa: S606  # our own


def tied_command(argv: Iterable[str], *namespaces: str) -> list[str]:
    """`argv` as a command that the kernel kills when this process ends, in whatever way (Linux).

    The tie is to the thread that starts it: launch from a thread that stays. Ctrl-C in a terminal
    does not reach it. `namespaces`: paths of those to run in, entered one after the other.
    """
    own = [sys.executable, "-P", "-S", "-E", os.path.realpath(__file__)]
    return [*own, str(os.getpid()), ":".join(namespaces), *argv]


def die_with(parent_pid: int) -> None:
    """Be killed when process `parent_pid`, which must be the parent, ends in whatever way (Linux).

    Exits where the parent has ended already.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        sys.exit("the parent is gone")


def enter_namespace(handle: int) -> None:
    """Move the calling thread into the namespace of an open file. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).setns(handle, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _become() -> None:
    parent_pid, namespaces, *argv = sys.argv[1:]
    die_with(int(parent_pid))
    os.setpgid(0, 0)  # Ctrl-C goes to a process group: when this ends is for its parent to say
    for path in filter(None, namespaces.split(":")):
        enter_namespace(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    os.execv(argv[0], argv)  # noqa: S606  # the launcher's own command


def raise_open_files() -> None:
    """Have as many files open as this process may ask for; many systems start it with 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_files_max() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_MAX if soft == resource.RLIM_INFINITY else min(soft, FILES_MAX)


def calm_collector() -> None:
    """Set the thresholds once, at start; they follow what stays from then on."""
    gc.set_threshold(*GC_THRESHOLDS)
    if _young_collected not in gc.callbacks:
        gc.callbacks.append(_young_collected)


_last_s = [0.0]
"""When a young collection ended last."""


def _young_collected(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 0:
        last_s, _last_s[0] = _last_s[0], time.perf_counter()
        soon = _last_s[0] - last_s < GROWING_S_MAX
        growing = soon and info["collected"] < GC_THRESHOLDS[0] // 2
        gc.set_threshold(*(GROWING_THRESHOLDS if growing else GC_THRESHOLDS))


def freeze_heap() -> None:
    """Take what is loaded out of the collector's sight: once, before the node serves."""
    gc.collect()
    gc.freeze()


def freeze_loaded() -> None:
    """Do the same for a shard that a serving node has loaded anew, in a few ms.

    What was allocated last is collected first: gRPC's garbage is a part of it, and what is frozen
    stays for ever. A collection of everything would stop the node.
    """
    gc.collect(0)
    gc.freeze()


def tidy_heaps() -> None:
    """Have all threads share a few heaps, and large pieces kept out of them. glibc only.

    Call it before there are threads. Raises OSError where glibc refuses.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in ((_M_ARENA_MAX, MALLOC_ARENAS), (_M_MMAP_THRESHOLD, MAPPED_BYTES)):
        if not mallopt(option, value):
            raise OSError(f"mallopt({option}, {value}) was refused")


def give_memory_back() -> None:
    """Return whole pages that the heaps hold free to the system. glibc only.

    RocksDB frees a memtable of 4 MiB at each flush, and the heaps would keep it, in other places
    each time. It takes 0.2 to 2 ms on a node of 90 MiB, and 25 ms where 200,000 free pieces lie
    between used ones; only threads that ask that heap for memory meanwhile wait.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


if __name__ == "__main__":
    _become()
