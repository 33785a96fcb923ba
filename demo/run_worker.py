"""`python -m musterd.demo.run_worker SETTINGS CLASS`: a worker as a process, events out."""

import asyncio
import contextlib
import importlib
import logging
import os
import sys
from pathlib import Path

import msgspec

from musterd.demo.events import WorkerEvent, encode_event
from musterd.demo.ledger import Ledger
from musterd.demo.worker import Worker, WorkerSettings


def tell(event: WorkerEvent) -> None:
    """Write one event to stdout, at once: this process may be killed the next moment."""
    line = memoryview(encode_event(event))
    while line:
        line = line[os.write(sys.stdout.fileno(), line) :]


async def run(settings: WorkerSettings, kind: type[Worker]) -> None:
    """Run a worker of this class until stdin ends."""
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    with contextlib.closing(Ledger(Path(settings.ledger))) as ledger:
        await kind(settings, ledger, tell).run(commands)


def main() -> None:
    """See the head of this file; CLASS is MODULE:NAME."""
    settings = msgspec.json.decode(sys.argv[1], type=WorkerSettings)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    module, _, name = sys.argv[2].partition(":")
    kind: type[Worker] = getattr(importlib.import_module(module), name)
    asyncio.run(run(settings, kind))


if __name__ == "__main__":
    main()
