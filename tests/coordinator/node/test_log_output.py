"""Log lines are limited by kind, and what libraries write becomes lines, too."""

import os
import sys

import pytest
import structlog

from musterd.coordinator.node import log_output
from musterd.coordinator.node.log_output import KINDS_MAX, PIPE_LINE_MAX, PipeLines, RateLimit


def _passes(limit, event, level="info"):
    try:
        limit(None, level, {"event": event})
    except structlog.DropEvent:
        return False
    return True


def test_of_a_kind_so_many_lines_pass_and_the_others_are_counted():
    """One kind takes nothing from another; what was left out is told once, then all begins anew."""
    limit = RateLimit(3)
    assert [_passes(limit, "often") for _ in range(5)] == [True] * 3 + [False] * 2
    assert _passes(limit, "seldom")
    with structlog.testing.capture_logs() as said:
        limit.tell_left_out()
        limit.tell_left_out()
    assert said == [
        {"event": "lines left out", "log_level": "info", "kind": "often", "left_out": 2}
    ]
    assert _passes(limit, "often")


def test_the_last_words_of_a_node_are_never_left_out():
    """A critical line says why the process ends."""
    limit = RateLimit(0)
    assert not _passes(limit, "x", "error")
    assert _passes(limit, "x", "critical")


def test_kinds_that_are_told_apart_are_bounded():
    """Memory does not grow with what is logged; further kinds share one count."""
    limit = RateLimit(2)
    passed = [_passes(limit, f"kind {number}") for number in range(KINDS_MAX + 10)]
    assert sum(passed) == KINDS_MAX + 2
    with structlog.testing.capture_logs() as said:
        limit.tell_left_out()
    assert [(line["kind"], line["left_out"]) for line in said] == [(log_output.OTHER, 8)]


@pytest.fixture
def pipe():
    """Both ends of a pipe that does not block."""
    ends = os.pipe2(os.O_NONBLOCK)
    yield ends
    for end in ends:
        os.close(end)


def test_what_comes_in_pieces_is_logged_line_by_line(pipe):
    """Half a line waits for its end; an endless one is cut, so that nothing grows."""
    read, write = pipe
    lines = PipeLines(read)
    with structlog.testing.capture_logs() as said:
        os.write(write, b"one\n\ntwo is in ")
        lines.read()
        assert [line["text"] for line in said] == ["one"]
        os.write(write, b"two pieces\n" + b"x" * (PIPE_LINE_MAX + 10))
        lines.read()
        os.write(write, b"the end\xff")
        lines.end()
    texts = [line["text"] for line in said]
    assert texts == ["one", "two is in two pieces", "x" * PIPE_LINE_MAX, "the end\ufffd"]
    assert {line["event"] for line in said} == {"a library wrote"}


def test_our_lines_and_those_of_others_part_ways(capfd):
    """Ours go to the real stderr; what C code writes to file 2 comes out of the pipe, till the end.

    A writer is never held up, even where nobody reads.
    """
    before = sys.stderr
    with log_output.own_stderr() as read:
        os.write(2, b"from a library\n")
        sys.stderr.write("ours\n")
        assert os.read(read, 100) == b"from a library\n"
        os.write(2, b"x" * 65_536)
        with pytest.raises(BlockingIOError):
            os.write(2, b"x")
    assert sys.stderr is before
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "ours\nafterwards\n"
