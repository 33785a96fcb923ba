"""Counts where the main thread of a process uses its CPU.

`python -m bench.cpu.sampler TO MODULE ...`

It runs the module as `python -m MODULE ...` would. SIGUSR1 begins; SIGUSR2 ends and writes to the
file TO what was counted, so start and end of the process are not in it. Between both a timer of the
thread's own CPU sends SIGPROF, so each sample is the same amount of CPU, whatever waits. Python
looks at signals when a call of C code returns, a function begins, or a loop goes round: a sample is
of that call, of what called that function, or of that loop.
"""

import collections
import ctypes
import dis
import json
import linecache
import runpy
import signal
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NoReturn

from bench.cpu.layers import OTHER, layer_of_call, layer_of_module
from musterd.coordinator import host

INTERVAL_NS: Final = 1_000_000
"""The kernel looks once a tick, which may be later: 4 ms."""

_THREAD_CPU: Final = 3  # CLOCK_THREAD_CPUTIME_ID
_SIGEV_THREAD_ID: Final = 4
LABEL_MAX: Final = 120
PLACES_MAX: Final = 20_000
"""Different places that are counted; more are dropped."""


class _Event(ctypes.Structure):
    """`struct sigevent` of Linux."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("rest", ctypes.c_int * 12),
    )


class _Times(ctypes.Structure):
    """`struct itimerspec` of Linux, of 64 bits."""

    _fields_ = (
        ("every_s", ctypes.c_long),
        ("every_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


class Sampler:
    """The samples of the thread that calls `begin`, which must be the main one."""

    def __init__(self) -> None:
        """Count nothing yet."""
        self.places: collections.Counter[tuple[str, str, CodeType, int]] = collections.Counter()
        self._layers: dict[str, str | None] = {}
        self._calls: dict[tuple[CodeType, int], str] = {}
        self._timer = ctypes.c_void_p()
        self._wakeup = -1

    def begin(self) -> None:
        """Count from now on. Raises OSError."""
        self.places.clear()
        # A loop that is woken by each signal would be measured being woken.
        self._wakeup = signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGPROF, self._sample)
        signal.siginterrupt(signal.SIGPROF, False)
        libc = ctypes.CDLL(None, use_errno=True)
        event = _Event(None, signal.SIGPROF, _SIGEV_THREAD_ID, threading.get_native_id())
        if libc.timer_create(_THREAD_CPU, ctypes.byref(event), ctypes.byref(self._timer)):
            raise OSError(ctypes.get_errno(), "timer_create")
        times = _Times(0, INTERVAL_NS, 0, INTERVAL_NS)
        if libc.timer_settime(self._timer, 0, ctypes.byref(times), None):
            raise OSError(ctypes.get_errno(), "timer_settime")

    def end(self) -> dict[str, Any]:
        """Stop; `samples`: layer, place and how often, `threads`: native id and Python's name."""
        ctypes.CDLL(None).timer_delete(self._timer)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wakeup)
        samples: collections.Counter[tuple[str, str]] = collections.Counter()
        for (layer, module, code, at), number in self.places.items():
            samples[layer, _label(module, code, at)] += number
        return {
            "samples": [[layer, label, number] for (layer, label), number in samples.items()],
            "threads": {str(one.native_id): one.name for one in threading.enumerate()},
        }

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        if frame is None or len(self.places) >= PLACES_MAX:
            return
        if frame.f_back is not None and _opcode(frame) == "RESUME":
            frame = frame.f_back  # it has only begun: what ran before called it
        module, code, at = _module(frame), frame.f_code, frame.f_lasti
        call = self._calls.get((code, at))
        if call is None:
            call = self._calls[code, at] = _called(code, at)
        layer = layer_of_call(module, call)
        looked: FrameType | None = frame
        while layer is None and looked is not None:
            name = _module(looked)
            if name not in self._layers:
                self._layers[name] = layer_of_module(name)
            layer = self._layers[name]
            looked = looked.f_back
        self.places[layer or OTHER, module, code, at] += 1


def _module(frame: FrameType) -> str:
    """The dotted name of the module that the code is in, also where it runs as `__main__`."""
    spec = frame.f_globals.get("__spec__")
    return str(spec.name if spec is not None else frame.f_globals.get("__name__", ""))


def _opcode(frame: FrameType) -> str:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] if frame.f_lasti >= 0 else ""


def _called(code: CodeType, at: int) -> str:
    """The source of the call that is at this place of the code, "" where it is none."""
    if at < 0 or not dis.opname[code.co_code[at]].startswith("CALL"):
        return ""
    line, end_line, start, end = list(code.co_positions())[at // 2]
    if line is None or start is None:
        return ""
    text = linecache.getline(code.co_filename, line).encode()
    return text[start : end if end_line == line else None].decode(errors="replace").strip()


def _label(module: str, code: CodeType, at: int) -> str:
    """Module, line and function, and the call that it was at."""
    call = _called(code, at)
    text = f"{module}:{code.co_firstlineno} {code.co_qualname}"
    return (f"{text}: {call}" if call else text)[:LABEL_MAX]


def sampled(argv: list[str], to: Path) -> list[str]:
    """The command `python -P -m MODULE ...` with the sampler around the module."""
    return [*argv[:2], "-m", "bench.cpu.sampler", str(to), *argv[3:]]


def become(module: str, argument: str) -> NoReturn:
    """Stay in this process in place of `host.become`: another program would have no sampler."""
    run_here(module, [argument])


def run_here(module: str, arguments: list[str]) -> NoReturn:
    """Run the module as a program in this process, until it ends."""
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def main() -> None:
    """Run the module that the command line names."""
    to, module = Path(sys.argv[1]), sys.argv[2]
    sampler = Sampler()

    def end(*_: object) -> None:
        part = to.with_suffix(".part")
        part.write_text(json.dumps(sampler.end()))
        part.replace(to)

    signal.signal(signal.SIGUSR1, lambda *_: sampler.begin())
    signal.signal(signal.SIGUSR2, end)
    host.become = become
    run_here(module, sys.argv[3:])


if __name__ == "__main__":
    main()
