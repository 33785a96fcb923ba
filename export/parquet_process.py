"""A process that writes and reads the exporter's Parquet files, while one is open, and no longer.

pyarrow takes 60 MiB, and an exporter at rest needs it for a moment every ten minutes. Requests and
answers are pickled, one after the other, over the process's own two pipes; it ends when the first
is closed, by whatever end of the exporter.
"""

import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final

from musterd.export.errors import ExportError
from musterd.export.files import Columns

END_S: Final = 10.0
"""After its pipe was closed the process has nothing to do but to end."""
_STOPS: Final = (signal.SIGINT, signal.SIGTERM)
"""They are for the exporter, which has files to finish then."""


class ParquetProcess:
    """Parquet files by a process of its own. Raises what it raises there, or ExportError."""

    def __init__(self) -> None:
        """Raises ModuleNotFoundError where there is no pyarrow; starts nothing yet."""
        if find_spec("pyarrow") is None:
            raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
        self._child: subprocess.Popen[bytes] | None = None
        self._open: dict[Path, None] = {}
        self._lost: dict[Path, None] = {}
        """Files that were open when the process ended: what is in them is not whole."""

    @property
    def pid(self) -> int | None:
        """The process that there is now."""
        return None if self._child is None else self._child.pid

    def append(self, path: Path, kind: str, columns: Columns) -> int:
        """Write one row group; returns the bytes of the file so far. The first begins it."""
        if path in self._lost:
            raise ExportError(f"the process that had begun {path} ended; start the export again")
        self._open[path] = None
        size: int = self._ask("append", path, kind, columns)
        return size

    def finish(self, path: Path) -> None:
        """Make a file durable that was begun."""
        self._ask("finish", path)
        del self._open[path]

    def drop(self, path: Path) -> None:
        """Remove a file that is not finished; it may not have been begun."""
        self._lost.pop(path, None)
        if path in self._open:
            del self._open[path]
            with suppress(ExportError):  # it has ended, and has nothing open
                self._ask("drop", path)
        path.unlink(missing_ok=True)

    def read(self, path: Path, kind: str) -> Iterator[Columns]:
        """Yield the columns of a finished file, of so many rows at a time."""
        whole = False
        try:
            columns = self._ask("read", path, kind)
            while columns is not None:
                yield columns
                columns = self._answer()
            whole = True
        finally:
            if not whole:
                self.close()  # the rest of the answers is nobody's

    def rest(self) -> None:
        """Let the process end, where no file is open."""
        if not self._open:
            self.close()

    def close(self) -> None:
        """End the process. What is open is not finished: a later exporter removes it."""
        child, self._child = self._child, None
        self._lost |= self._open
        self._open.clear()
        if child is None or child.stdin is None or child.stdout is None:
            return
        with suppress(BrokenPipeError):
            child.stdin.close()
        child.stdout.close()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _ask(self, *request: object) -> Any:
        child = self._child or self._start()
        self._child = child
        if child.stdin is None:
            raise ExportError("the process that writes Parquet has no pipe")
        try:
            pickle.dump(request, child.stdin, pickle.HIGHEST_PROTOCOL)
            child.stdin.flush()
        except BrokenPipeError as error:
            raise self._ended() from error
        return self._answer()

    def _answer(self) -> Any:
        child = self._child
        if child is None or child.stdout is None:
            raise self._ended()
        try:
            answer, error = pickle.load(child.stdout)  # noqa: S301  # from our own process
        except (EOFError, pickle.UnpicklingError) as gone:
            raise self._ended() from gone
        if error is not None:
            raise error
        return answer

    def _ended(self) -> ExportError:
        child = self._child
        self.close()
        code = None if child is None else child.returncode
        return ExportError(
            f"the process that writes Parquet files ended ({code}); start the export again"
        )

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "musterd.export.parquet_process"]
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # what it starts with
        try:
            return subprocess.Popen(  # noqa: S603  # our own module
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer each request, until there are no more."""
    from musterd.export.parquet_files import ParquetFiles  # noqa: PLC0415  # not in the exporter

    files = ParquetFiles()
    while True:
        try:
            name, *arguments = pickle.load(requests)  # noqa: S301  # from the process above
        except EOFError:
            return
        try:
            if name == "read":
                for columns in files.read(*arguments):
                    _send(answers, columns, None)
                _send(answers, None, None)
            else:
                _send(answers, getattr(files, name)(*arguments), None)
        except Exception as error:  # noqa: BLE001  # it is raised where the exporter asked
            _send(answers, None, error)


def _send(answers: IO[bytes], answer: object, error: Exception | None) -> None:
    pickle.dump((answer, error), answers, pickle.HIGHEST_PROTOCOL)
    answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
