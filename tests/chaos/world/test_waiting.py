"""Who waits for a disk, and how long a process has run: read as the kernel writes it."""

import os

import pytest

from musterd.chaos.world import process_state

PID = 7


@pytest.fixture
def proc(tmp_path):
    """Writes down a thread: its state, and how often it has waited."""

    def thread(number, state, waits):
        task = tmp_path / f"{PID}/task/{number}"
        task.mkdir(parents=True, exist_ok=True)
        task.joinpath("status").write_text(
            f"Name:\tmuster\nGroups:\t0 \nState:\t{state}\nvoluntary_ctxt_switches:\t{waits}\n"
        )

    thread.folder = tmp_path
    return thread


def test_threads_in_one_and_the_same_wait_are_stuck(proc, monkeypatch):
    """Not who sleeps, runs, or was found in another wait for its disk the second time."""
    for number, state in enumerate(("D (disk sleep)", "S (sleeping)", "D (disk sleep)")):
        proc(number, state, 5)
    monkeypatch.setattr(process_state.time, "sleep", lambda _: proc(2, "D (disk sleep)", 6))
    assert process_state.stuck([PID, 8], proc.folder) == 1


def test_a_process_that_has_ended_is_not_stuck(proc, monkeypatch):
    """Nor one that ends between two looks."""
    monkeypatch.setattr(process_state.time, "sleep", lambda _: None)
    assert process_state.stuck([PID], proc.folder) == 0


def test_own_and_kernel_time_count(proc):
    """In ticks, after a name that may have blanks and brackets."""
    (proc.folder / str(PID)).mkdir()
    fields = ["R", *map(str, range(4, 14)), "30", "20", "0"]
    (proc.folder / f"{PID}/stat").write_text(f"{PID} (a (b) c) {' '.join(fields)}\n")
    assert process_state.ran_s(PID, proc.folder) == 50 / os.sysconf("SC_CLK_TCK")


def test_this_process_is_read_as_it_is():
    """The kernel's own files have this shape."""
    assert process_state.ran_s(os.getpid()) > 0
    assert process_state.stuck([os.getpid()]) == 0


def test_a_process_has_stopped_once_each_of_its_threads_has(tmp_path) -> None:
    """By the state of each, whatever its name."""
    for states, all_stopped in ((("T", "T"), True), (("T", "D"), False), (("R", "T"), False)):
        for number, state in enumerate(states):
            thread = tmp_path / "7/task" / str(number)
            thread.mkdir(parents=True, exist_ok=True)
            (thread / "stat").write_text(f"{number} (a) T (b) {state} 1 7 7")
        assert process_state.stopped(7, tmp_path) is all_stopped
    with pytest.raises(FileNotFoundError):
        process_state.stopped(8, tmp_path)
