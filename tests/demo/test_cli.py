"""`muster demo` as a command: bad options, bad input, and an end that leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from muster.cli.errors import ExitCode

WAIT_S = 120


def muster_demo(*options, cwd):
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "muster.cli", "demo", *options],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nodes", "4"), "give an odd number of --nodes"),
        (("--workers", "9", "--partitions", "8"), "no more --workers than --partitions"),
        (("--nodes", "1"), "--nodes"),
        (("--input", "nowhere"), "there is no such directory"),
        (("--input", "."), "would have 20 lines or more"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_started(options, message, tmp_path):
    """Exit code 2, one sentence, and no report."""
    done = muster_demo(*options, cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def running(tmp_path, users_modules):
    """A demo whose nodes, exporter and workers run, and its processes."""
    source = tmp_path / "input"
    source.mkdir()
    for number in range(8):
        (source / f"{number}.txt").write_text(f"word{number}\n" * 100)
    options = ("--input", str(source), "--workers", "2", "--partitions", "4", "--rate", "10")
    # A shell's background job ignores Ctrl-C, and what it starts inherits that.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    demo = subprocess.Popen(
        [sys.executable, "-m", "muster.cli", "demo", *options],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(users_modules)},
    )
    try:
        while "all workers have their partitions" not in (line := demo.stderr.readline()):
            assert line, f"the demo ended with {demo.wait()}"
        yield demo, psutil.Process(demo.pid).children(recursive=True)
    finally:
        signal.signal(signal.SIGINT, inherited)
        demo.kill()
        demo.wait()
        demo.stderr.close()


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_survives_the_command(number, running, tmp_path):
    """Three nodes, an exporter and two workers, whatever ended the demo."""
    demo, children = running
    assert len(children) >= 6
    demo.send_signal(number)
    said = demo.stderr.read()
    code = demo.wait(WAIT_S)
    gone, alive = psutil.wait_procs(children, timeout=WAIT_S)
    assert not alive
    assert len(gone) == len(children)
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == ExitCode.ERROR
        assert "the demo was interrupted" in said
        assert "Traceback" not in said
        assert not list(tmp_path.glob("muster-demo-*")), "the data was not removed"


@pytest.mark.processes
def test_processes_of_a_run_are_found_by_its_name(monkeypatch):
    """What the last check of a demo looks with; an ended process is not found."""
    from musterd.demo import processes  # noqa: PLC0415  # quick tests need it not

    monkeypatch.setenv(processes.RUN_VARIABLE, "this-run")
    assert processes.of_run("this-run") == []
    sleeper = subprocess.Popen([sys.executable, "-c", "input('')"], stdin=subprocess.PIPE)
    try:
        end_s = time.monotonic() + WAIT_S
        while not (found := processes.of_run("this-run")):
            assert time.monotonic() < end_s
        assert [line.split()[0] for line in found] == [str(sleeper.pid)]
        assert processes.of_run("another-run") == []
    finally:
        sleeper.communicate(b"\n")
    assert processes.of_run("this-run") == []
