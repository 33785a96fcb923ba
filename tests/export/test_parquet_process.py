"""The process that writes an exporter's Parquet files: the same files, and gone when at rest."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from musterd.export.errors import ExportError
from musterd.export.layout import BASE
from musterd.export.parquet_files import ParquetFiles
from musterd.export.parquet_process import ParquetProcess

COLUMNS = [[b"a", b"b"], [b"1", b"2"]]


@pytest.fixture
def parquet():
    """Ended after the test."""
    files = ParquetProcess()
    yield files
    files.close()


def test_it_writes_and_reads_as_the_own_process_does_and_ends_when_nothing_is_open(
    parquet, tmp_path
):
    """A file that is open holds it."""
    mine, other = tmp_path / "mine.parquet", tmp_path / "other.parquet"
    assert parquet.append(mine, BASE, COLUMNS) > 0
    child = psutil.Process(parquet.pid)
    parquet.rest()
    assert child.is_running()
    parquet.finish(mine)
    files = ParquetFiles()
    files.append(other, BASE, COLUMNS)
    files.finish(other)
    assert mine.read_bytes() == other.read_bytes()
    assert list(parquet.read(other, BASE)) == [COLUMNS]
    parquet.rest()
    assert parquet.pid is None
    assert not child.is_running()
    assert list(parquet.read(mine, BASE)) == [COLUMNS]


def test_what_goes_wrong_there_is_raised_here_and_it_goes_on(parquet, tmp_path):
    """As if it had been done here."""
    with pytest.raises(FileNotFoundError):
        parquet.append(tmp_path / "no" / "folder", BASE, COLUMNS)
    parquet.drop(tmp_path / "no" / "folder")
    kept = tmp_path / "kept"
    parquet.append(kept, BASE, COLUMNS)
    parquet.drop(kept)
    assert not kept.exists()


def test_a_file_that_was_open_when_the_process_ended_is_not_begun_anew(parquet, tmp_path):
    """Killed, or let go amid a read: its first rows are gone. Dropped, it may be begun."""
    done, killed, read = (tmp_path / name for name in ("done", "killed", "read"))
    parquet.append(done, BASE, COLUMNS)
    parquet.finish(done)
    parquet.append(killed, BASE, COLUMNS)
    os.kill(parquet.pid, signal.SIGKILL)
    with pytest.raises(ExportError):
        parquet.append(killed, BASE, COLUMNS)
    with pytest.raises(ExportError, match="ended"):
        parquet.append(killed, BASE, COLUMNS)
    parquet.drop(killed)
    assert not killed.exists()
    parquet.append(read, BASE, COLUMNS)
    rows = parquet.read(done, BASE)
    next(rows)
    rows.close()
    with pytest.raises(ExportError, match="ended"):
        parquet.append(read, BASE, COLUMNS)
    parquet.drop(read)
    assert parquet.append(read, BASE, COLUMNS) > 0
    parquet.finish(read)


def test_a_file_is_removed_though_the_process_was_killed(parquet, tmp_path):
    """And why the export gives up is not hidden by it."""
    path = tmp_path / "open"
    parquet.append(path, BASE, COLUMNS)
    os.kill(parquet.pid, signal.SIGKILL)
    psutil.Process(parquet.pid).wait(10)
    parquet.drop(path)
    assert not path.exists()


def test_one_that_was_killed_ends_the_export_with_its_reason(parquet, tmp_path):
    """What was open is never taken for finished."""
    parquet.append(tmp_path / "file", BASE, COLUMNS)
    os.kill(parquet.pid, signal.SIGKILL)
    with pytest.raises(ExportError, match="ended"):
        parquet.finish(tmp_path / "file")


def test_signals_to_stop_are_for_the_exporter(parquet, tmp_path):
    """Which has files to finish then: a service manager sends them to all of its processes."""
    parquet.append(tmp_path / "file", BASE, COLUMNS)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(parquet.pid, number)
    parquet.finish(tmp_path / "file")
    assert list(parquet.read(tmp_path / "file", BASE)) == [COLUMNS]


def test_whoever_stops_reading_ends_it_and_the_next_question_has_its_own_answer(parquet, tmp_path):
    """The rest of the answers would be taken for others."""
    parquet.append(tmp_path / "file", BASE, [[b"k"] * 10_000, [b"v"] * 10_000])
    parquet.finish(tmp_path / "file")
    reading = parquet.read(tmp_path / "file", BASE)
    next(reading)
    reading.close()
    assert parquet.append(tmp_path / "next", BASE, COLUMNS) > 0


def test_an_exporter_does_without_pyarrow_in_its_own_process():
    """It is 60 MiB of memory, which an exporter at rest needs for a moment every ten minutes."""
    code = "import sys, musterd.export.process; print('pyarrow' in sys.modules)"
    command = [sys.executable, "-P", "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
