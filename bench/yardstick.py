"""What limits are multiples of: the same machine, measured in the same run."""

import subprocess
import sys
from typing import Final, Self

from bench import machine
from bench.report import Report, Yardstick, median
from musterd.chaos.child import Child, close_all

IN_FLIGHT: Final = 64
TAKE_S: Final = 1.0


class Echo:
    """A bare grpc.aio echo and its client, which a benchmark asks while its own load rests.

    A context manager. Between two `take` it uses next to no CPU.
    """

    def __init__(self) -> None:
        """Start both; `with` ends them."""
        self.latencies_s: list[float] = []
        """The median latency of a call with 64 in flight, of each `take`."""
        self._calls_s: list[float] = []
        self._cpus_s: list[float] = []
        self._children = [Child("bench.echo_server", {})]
        try:
            endpoint = self._children[0].ready()["endpoint"]
            self._children.append(Child("bench.commit_client", {"echo": endpoint}))
            self._children[1].ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End both processes."""
        close_all(reversed(self._children))

    def take(self, seconds: float = TAKE_S) -> None:
        """Measure once: with 64 calls in flight, then one by one. Raises ChildError."""
        server, client = self._children
        got = client.ask("closed", seconds + 30, in_flight=IN_FLIGHT, seconds=seconds)
        self.latencies_s.append(median(got["latencies_s"]))
        self._calls_s.append(seconds / len(got["latencies_s"]))
        before_s = machine.cpu_s(server.pid)
        got = client.ask("closed", seconds + 30, in_flight=1, seconds=seconds)
        self._cpus_s.append((machine.cpu_s(server.pid) - before_s) / got["acknowledged"])

    def add(self, report: Report) -> None:
        """Keep what was taken among the figures: what the limits are multiples of."""
        report.add("yardstick_echo_ms_64", [1e3 * one for one in self.latencies_s], "ms")
        report.add("yardstick_echo_per_s_64", [1 / one for one in self._calls_s], "1/s")
        report.add("yardstick_echo_cpu_us_1", [1e6 * one for one in self._cpus_s], "us")

    def latency(self) -> Yardstick:
        """Seconds until an answer with 64 in flight: the median of all that was taken."""
        return Yardstick(
            median(self.latencies_s), "s", f"a bare echo's median with {IN_FLIGHT} in flight"
        )

    def calls(self, number: int = 1) -> Yardstick:
        """Seconds in which so many calls are answered with 64 in flight."""
        seconds = number * median(self._calls_s)
        return Yardstick(seconds, "s", f"{number} calls of a bare echo")

    def cpu(self) -> Yardstick:
        """CPU seconds of the echo's server for one call, where calls come one by one."""
        return Yardstick(median(self._cpus_s), "s", "a bare echo's CPU of one call")


def bare_memory() -> Yardstick:
    """The resident memory of a process that has imported what every node stands on, and waits."""
    code = "import grpc.aio, rocksdict; print(flush=True); input()"
    command = [sys.executable, "-P", "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        if process.stdin is None or process.stdout is None or not process.stdout.readline():
            raise RuntimeError(f"{command} said nothing")
        mib = machine.rss_mib(process.pid)
        process.stdin.write("\n")
    return Yardstick(mib, "MiB", "a Python process with gRPC and RocksDB")
