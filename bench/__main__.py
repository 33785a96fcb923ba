"""`python -m bench NAME [options]`: run one benchmark in this process."""

import argparse
import compileall
import importlib
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

NAMES = {
    "failover": "kill -9 and SIGSTOP of the node that leads most: time to the next commit",
    "overload": "three times one node's capacity, offered for a minute",
    "rejoin": "a wiped node rejoins behind a shard of 100 MB",
    "idle": "CPU and memory of a node with 100 members that only heartbeat",
    "rebalance": "100 and 1,000 members start; one leaves, one joins, a fifth leaves, one dies",
    "fleet": "1,000, 3,000 and 10,000 members in groups of ten start at once, raw and by the SDK",
    "assignors": "what each assignor moves and stops in 1,000 membership changes; no cluster",
    "apply": "what decoding and applying commits and rounds costs one replica; no cluster",
    "large_commits": "200 clients commit 1,000 partitions each, as fast as they can",
    "unread": "others' latency and a node's memory beside a client that never reads",
    "fill": "50,000 groups get 20 offsets each, with 72 and 128 commits in flight",
    "restart": "nodes with 50,000 groups are killed and started: one of three, then all at once",
    "growth": "state grows by each path until it is refused, nodes in 2 GiB, and a restart",
    "backup": "50,000 groups are backed up beside others' commits, restored, and commit",
    "tls": "failover, catch-up and throughput of a cluster with TLS beside a plain one",
    "forward": "commits through a node that forwards beside commits at their coordinator",
    "commits": "acknowledged offset commits per second beside a bare gRPC echo",
}


def main() -> int:
    """Pick the benchmark; the rest of the command line is its own. Returns the exit code.

    0: every condition of the benchmark holds. 1: one does not (its line says which). 2: usage.
    A condition is a count, an equality, or a ratio to something of the same run
    (bench/yardstick.py), so that a slow day alone fails none. What is wished in seconds stands in
    the text of the benchmark.
    """
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        epilog="\n".join(f"  {name:13} {what}" for name, what in NAMES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=NAMES, metavar="NAME")
    arguments, rest = parser.parse_known_args()
    _compile()
    module = importlib.import_module(f"bench.{arguments.name}")
    code: int = module.main(rest)
    return code


def _compile() -> None:
    """Write the bytecode of what nodes and clients load, as pip does for what it installs.

    It stands in `__pycache__`, where Python writes it by itself unless it is told to write none
    (PYTHONDONTWRITEBYTECODE): then each process would compile its sources at its start, which takes
    a node a quarter of a second.
    """
    linked = (place for place in (ROOT / "musterd").iterdir() if place.is_symlink())
    for folder in (ROOT / "bench", ROOT / "muster", ROOT / "musterd", *linked):
        if not compileall.compile_dir(folder, quiet=1):  # which follows no links
            raise SystemExit(f"{folder} cannot be compiled")


if __name__ == "__main__":
    sys.exit(main())
