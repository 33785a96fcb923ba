"""`--watch`: goes on through failures, is drawn for eyes and appended for pipes, ends quietly."""

import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager

import pytest

from muster.v1 import admin_pb2, group_pb2
from muster.v1.errors_pb2 import Coordinator, ErrorCode
from tests.cli.offset_store import Entry, OffsetStore
from tests.tls_servers import Case, make_certificates, serving

PATIENCE_S = 30
Described = admin_pb2.DescribeGroupsResponse


def _topics(*names):
    listed = [admin_pb2.Topic(name=name, partitions=1) for name in names]
    return admin_pb2.ListTopicsResponse(topics=listed)


@pytest.fixture
def rounds(monkeypatch):
    """End a watch with Ctrl-C after so many rounds; the waits take no time and are noted."""
    waits = []

    def end_after(count, between=lambda: None):
        def sleep(seconds):
            waits.append(seconds)
            if len(waits) == count:
                raise KeyboardInterrupt
            between()

        monkeypatch.setattr("muster.cli.watch._wait", sleep)
        return waits

    return end_after


def in_turn(steps):
    """What makes one of these steps each time."""

    def step():
        next(steps)()

    return step


def test_tables_are_appended_with_an_empty_line_between(cluster, muster, rounds):
    """A pipe sees every round whole; Ctrl-C is how a watch ends, so it is success."""
    cluster.nodes[0].script["ListTopics"] = [_topics("a"), _topics("a", "b")]
    waits = rounds(2)
    ran = muster("topic", "list", "-w", "--interval", "0.7")
    assert (ran.exit_code, ran.err) == (0, "")
    head = "TOPIC  PARTITIONS  ZONES  CREATED\n"
    first, second = "a      1           -      -\n", "b      1           -      -\n"
    assert ran.out == f"{head}{first}\n{head}{first}{second}"
    assert waits == [0.7, 0.7]


def test_json_is_one_line_a_round(cluster, muster, rounds):
    """So a watch is a stream that scripts can read."""
    cluster.nodes[0].script["ListTopics"] = [_topics("a"), _topics(), _topics("b")]
    rounds(3)
    ran = muster("topic", "list", "--watch", "-o", "json")
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert [[one["name"] for one in round_["topics"]] for round_ in found] == [["a"], [], ["b"]]
    assert {round_["schema"] for round_ in found} == {"muster.topic.list/v1"}


def test_a_round_that_fails_is_told_and_the_next_one_tries_again(cluster, muster, rounds, no):
    """Nothing of it is lost: the round's error and its next step, then the result."""
    broken = admin_pb2.ListTopicsResponse(status=no(ErrorCode.UNKNOWN_SERVER_ERROR, "broken"))
    cluster.nodes[0].script["ListTopics"] = [_topics("a"), broken, _topics("b")]
    rounds(3)
    ran = muster("topic", "list", "-w", "-o", "name")
    assert (ran.exit_code, ran.out) == (0, "a\nb\n")
    assert ran.err.startswith("error: UNKNOWN_SERVER_ERROR: broken\nnext: ")


@pytest.mark.parametrize(("code", "expected"), [("TOPIC_AUTHORIZATION_FAILED", 7), ("", 2)])
def test_what_no_further_round_would_change_ends_it(cluster, muster, rounds, no, code, expected):
    """A missing permission and a wrong argument end a watch with their code, at once."""
    waits = rounds(3)
    if code:
        status = no(ErrorCode.Value(code), "no")
        cluster.nodes[0].script["ListTopics"] = admin_pb2.ListTopicsResponse(status=status)
        ran = muster("topic", "list", "-w")
    else:
        ran = muster("group", "list", "--state", "asleep", "-w")
    assert (ran.exit_code, waits) == (expected, [])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Pairs of several authorities."""
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    return folder


def test_certificates_are_renewed_while_a_watch_goes_on(
    certificates, tmp_path, muster, rounds, monkeypatch
):
    """One that is gone for a moment, or is of another key, is no end: the former ones go on."""

    def write(name, of):
        (tmp_path / name).write_bytes((certificates / of).read_bytes())
        monkeypatch.setenv(f"MUSTER_TLS_{name.upper()}", str(tmp_path / name))

    write("ca", "good.pem")
    write("cert", "good.pem")
    write("key", "good.key")
    steps = iter(
        [
            (tmp_path / "key").unlink,
            lambda: write("key", "other.key"),
            lambda: write("cert", "other.pem"),  # a pair again, which this node refuses
        ]
    )
    rounds(9, between=in_turn(steps))
    with serving(certificates, Case("good", "", demands="good")) as endpoint:
        ran = muster("topic", "list", "-w", "-o", "name", "-b", endpoint)
    assert ran.out == "t\n" * 3, ran.err
    assert (ran.exit_code, next(steps, None)) == (7, None), ran.err
    assert "refuses the certificate" in ran.err


def test_a_token_s_file_that_is_written_anew_is_no_end(
    cluster, muster, rounds, monkeypatch, tmp_path
):
    """It is told when it cannot be read, and the next round reads it again."""
    file = tmp_path / "token"
    file.write_text("a.b")
    monkeypatch.setenv("MUSTER_TOKEN_FILE", str(file))
    cluster.nodes[0].script["ListTopics"] = _topics("a")
    steps = iter([file.unlink, lambda: file.write_text("c.d")])
    rounds(3, between=in_turn(steps))
    ran = muster("topic", "list", "-w", "-o", "name")
    assert (ran.exit_code, ran.out) == (0, "a\na\n")
    assert str(file) in ran.err
    assert [one["authorization"] for one in cluster.nodes[0].metadata] == [
        "Bearer a.b",
        "Bearer c.d",
    ]
    file.unlink()
    assert muster("topic", "list", "-w").exit_code == 2


def test_a_node_that_goes_away_is_no_end_though_the_watch_began_there(cluster, muster, rounds):
    """The others were learned in the first round."""
    for node in cluster.nodes:
        node.script["ListGroups"] = admin_pb2.ListGroupsResponse(
            groups=[admin_pb2.ListGroupsResponse.Group(group_id=f"at-{node.node_id}")]
        )
    rounds(2, between=cluster.nodes[0].stop)
    ran = muster("group", "list", "-w", "-o", "json")
    found = [json.loads(line)["groups"] for line in ran.out.splitlines()]
    assert [[group["group_id"] for group in round_] for round_ in found] == [
        ["at-1", "at-2", "at-3"],
        ["at-2", "at-3"],
    ]
    assert "the list is incomplete" in ran.err
    assert muster("group", "list", "--timeout", "0.3").exit_code == 6  # not remembered afterwards


def test_a_coordinator_that_moves_is_followed(cluster, muster, rounds):
    """`group watch` asks for the coordinator in each round; the nodes it heard of are asked."""
    for node in cluster.nodes:
        node.script["DescribeGroups"] = Described(
            groups=[
                Described.Group(
                    group_id="g",
                    state="Empty",
                    coordinator=Coordinator(node_id=node.node_id, endpoint=node.endpoint),
                )
            ]
        )
    everybody = [Coordinator(node_id=n.node_id, endpoint=n.endpoint) for n in cluster.nodes]

    def named(index):
        result = group_pb2.FindCoordinatorResponse.Result(
            group_id="g", coordinator=everybody[index]
        )
        return group_pb2.FindCoordinatorResponse(results=[result], nodes=everybody)

    cluster.nodes[0].script["FindCoordinator"] = named(0)
    for node in cluster.nodes[1:]:
        node.script["FindCoordinator"] = named(2)
    rounds(2, between=cluster.nodes[0].stop)
    ran = muster("group", "watch", "g", "-o", "jsonl")
    assert (ran.exit_code, ran.err) == (0, "")
    found = [json.loads(line)["coordinator"]["node_id"] for line in ran.out.splitlines()]
    assert found == [1, 3]


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "list"),
        ("topic", "describe", "a"),
        ("group", "list"),
        ("group", "describe", "g"),
        ("group", "state", "g"),
        ("group", "members", "g"),
        ("group", "offsets", "g"),
        ("group", "why", "g"),
        ("member", "list"),
        ("member", "describe", "g", "m"),
        ("cluster", "status"),
    ],
)
def test_every_watched_command_shows_the_same_as_once(cluster, muster, rounds, command):
    """Two rounds are the single result twice."""
    group = Described.Group(group_id="g", state="Stable", members=[Described.Member(member_id="m")])
    store = OffsetStore({"g": [Entry(topic="a", partition=0, offset=4)]}, {"a": 1})
    described = admin_pb2.DescribeTopicsResponse.Result
    for node in cluster.nodes:
        node.script |= {
            "ListTopics": _topics("a"),
            "DescribeTopics": admin_pb2.DescribeTopicsResponse(
                results=[described(name="a", topic=admin_pb2.Topic(name="a", partitions=1))]
            ),
            "ListGroups": admin_pb2.ListGroupsResponse(
                groups=[admin_pb2.ListGroupsResponse.Group(group_id="g", members=1)]
            ),
            "DescribeGroups": Described(groups=[group]),
            "OffsetFetch": store.fetch,
            "DescribeRebalances": admin_pb2.DescribeRebalancesResponse(
                rebalances=[{"round": 1, "trigger": "member_joined", "ended": "stable"}]
            ),
        }
    cluster.coordinate(cluster.nodes[1])
    once = muster(*command)
    assert (once.exit_code, once.err) == (0, "")
    rounds(2)
    watched = muster(*command, "-w")
    assert (watched.exit_code, watched.out) == (0, f"{once.out}\n{once.out}")


# ---- a process of its own: signals, pipes, terminals


@contextmanager
def _started(*args, **more):
    """A process of its own that is gone afterwards, whatever happened."""
    command = [sys.executable, "-m", "muster.cli", *args]
    # Whoever runs the tests in the background of a shell ignores Ctrl-C, and so would the child.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **more) as running:
            try:
                yield running
            finally:
                running.kill()
    finally:
        signal.signal(signal.SIGINT, inherited)


def test_ctrl_c_ends_a_watch_with_0_and_without_a_word(cluster):
    """Also in the middle of a wait of an hour."""
    cluster.nodes[0].script["ListTopics"] = _topics("a")
    args = ("topic", "list", "-w", "--interval=3600", "--output=name")
    with _started(*args, stdout=subprocess.PIPE) as running:
        assert running.stdout.readline() == "a\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, out, err) == (0, "", "")


def test_a_reader_that_goes_away_ends_a_watch_with_0_and_without_a_word(cluster):
    """`muster topic list -w | head -1` is nobody's error."""
    cluster.nodes[0].script["ListTopics"] = _topics("a")
    args = ("topic", "list", "-w", "--interval=0.1", "--output=name")
    with _started(*args, stdout=subprocess.PIPE) as running:
        assert running.stdout.readline() == "a\n"
        running.stdout.close()
        assert running.wait(timeout=PATIENCE_S) == 0
        assert running.stderr.read() == ""


def test_a_terminal_is_drawn_anew_and_never_scrolls(cluster, no):
    """Home, the lines that fit, the rest cleared; an error is part of the picture."""
    broken = admin_pb2.ListTopicsResponse(status=no(ErrorCode.UNKNOWN_SERVER_ERROR, "br\x1bken"))
    many = [f"topic-{n:02}" for n in range(30)]
    answers = [_topics(*many), broken]
    cluster.nodes[0].script["ListTopics"] = lambda _: answers.pop(0) if answers else _topics("last")
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 60, 0, 0))
    kept = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES", "NO_COLOR"}}
    args = ("topic", "list", "-w", "--interval=0.1")
    with _started(*args, stdout=theirs, env=kept | {"TERM": "xterm"}) as running:
        os.close(theirs)
        try:
            seen = _read(ours, lambda text: text.count("last") >= 2)
            running.send_signal(signal.SIGINT)
            _, err = running.communicate(timeout=PATIENCE_S)
        finally:
            os.close(ours)
    assert (running.returncode, err) == (0, "")
    assert seen.startswith("\x1b[2J\x1b[H")
    first, second, *_ = [frame.split("\x1b[J")[0] for frame in seen.split("\x1b[H")[1:]]
    assert max(first.count("\r\n"), second.count("\r\n")) < 12
    assert "topic list -w" in first.split("\r\n")[0]
    assert "topic-00" in first
    assert re.search(r"\(\d\d more lines\)", first.split("\r\n")[-2])
    assert "error: UNKNOWN_SERVER_ERROR: br\\x1bken" in second
    assert "topic-00" not in second


def _read(terminal, enough):
    """What a terminal shows until that is enough."""
    seen = b""
    end_s = time.monotonic() + PATIENCE_S
    while not enough(seen.decode(errors="replace")):
        assert time.monotonic() < end_s, seen
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536)
    return seen.decode(errors="replace")
