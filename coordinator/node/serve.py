"""`muster serve` from its settings on: logging, signals, exit codes around one node.

The command becomes program.py, which calls `main` with the settings as the only argument.
"""

import asyncio
import contextlib
import os
import signal
import sys
from functools import partial
from typing import Final

import structlog

from muster.cli.errors import CommandError, ExitCode, report
from musterd.coordinator.codec import UnknownFormatError
from musterd.coordinator.host import raise_open_files, tidy_heaps
from musterd.coordinator.machine.records.encoding import RecordError
from musterd.coordinator.node.config import ConfigError, Settings, about, unread_variables
from musterd.coordinator.node.log_output import (
    PipeLines,
    RateLimit,
    logging_to_stderr,
    own_stderr,
    tell_left_out,
)
from musterd.coordinator.node.node import Node
from musterd.coordinator.node.process_end import end_at_once
from musterd.coordinator.node.service_manager import ServiceManager
from musterd.raft.identity import IdentityError
from musterd.storage.rocks import MissingStoreError
from musterd.storage.store import REBUILD, CorruptStoreError, StoreError

log = structlog.get_logger()

UNREADABLE: Final = (RecordError, UnknownFormatError)
"""What a load raises, and an entry that is applied, where this build cannot read it."""


def run_node(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises CommandError where the node cannot start or go on."""
    try:
        with contextlib.ExitStack() as stack:
            pipe = stack.enter_context(own_stderr()) if settings.log_format == "json" else None
            limit = stack.enter_context(logging_to_stderr(settings))
            for name, advice in unread_variables().items():
                log.warning("a variable is not read", name=name, advice=advice)
            raise_open_files()
            tidy_heaps()
            asyncio.run(_run(settings, limit, pipe))
    except (IdentityError, MissingStoreError) as error:
        raise CommandError(
            about(settings.data_dir, error),
            next_step="run `muster init` once on an empty directory, then serve",
            exit_code=ExitCode.USAGE,
        ) from error
    except ConfigError as error:
        raise CommandError(
            about(settings.data_dir, error),
            next_step="correct the setting; `muster serve --help`",
            exit_code=ExitCode.USAGE,
        ) from error
    except CorruptStoreError as error:
        raise CommandError(
            about(settings.data_dir, error), next_step="", exit_code=ExitCode.ERROR
        ) from error
    except UNREADABLE as error:
        raise _unreadable(settings, error) from error
    except (StoreError, OSError) as error:
        raise CommandError(
            f"the node cannot run: {error}",
            next_step="see that the ports are free, the files can be read, and the data directory "
            "is writable and unused",
            exit_code=ExitCode.ERROR,
        ) from error


async def _run(settings: Settings, limit: RateLimit, pipe: int | None) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        stack.callback(limit.tell_left_out)
        if pipe is not None:
            lines = PipeLines(pipe)
            loop.add_reader(pipe, lines.read)
            stack.callback(lines.end)
            stack.callback(loop.remove_reader, pipe)
        telling = loop.create_task(tell_left_out(limit))
        stack.callback(telling.cancel)
        await _serve(settings)


async def _serve(settings: Settings) -> None:
    node = Node(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_die, stop)
    await node.start()
    node.failed.add_done_callback(partial(_end_at_once, settings))
    manager = ServiceManager(os.environ)
    manager.ready(f"node {node.node_id} of {node.cluster_id} serves at {settings.endpoint}")
    await stop.wait()
    manager.stopping()
    await node.stop()
    manager.close()


def _end_at_once(settings: Settings, failed: asyncio.Future[BaseException]) -> None:
    """End without handing anything over, since memory may be ahead of the disk."""
    error = failed.result()
    if isinstance(error, UNREADABLE):
        report(_unreadable(settings, error))
        end_at_once()
    end_at_once(error)


def _unreadable(settings: Settings, error: Exception) -> CommandError:
    return CommandError(
        about(settings.data_dir, error),
        next_step=f"if a newer version wrote this, install it. Else: {REBUILD}",
        exit_code=ExitCode.ERROR,
    )


def _stop_or_die(stop: asyncio.Event) -> None:
    """The first signal drains, the second ends at once."""
    if stop.is_set():
        end_at_once()
    stop.set()


def main() -> None:
    """Run the node whose settings the only argument tells; ends the process as `muster` does."""
    try:
        run_node(Settings.decode(sys.argv[1]))
    except CommandError as error:
        report(error)
        sys.exit(int(error.exit_code))
