"""Tables on a real terminal: a pseudo-terminal of 80, 100 and 160 columns, golden screens."""

import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from muster.cli.terminal_table import draw, whole
from tests.cli.test_golden import Described, _assignment, scene  # noqa: F401

SCREENS = Path(__file__).parents[1] / "testdata" / "cli" / "screens"
COMMANDS = (
    "topic list",
    "group list",
    "group describe billing",
    "group members billing",
    "group members fleet",
    "group offsets billing",
    "group offsets billing --wide",
    "group why billing",
    "group config billing",
    "member describe billing worker-1-aa",
    "cluster status",
)
RUN = """
import shlex, sys
from muster.cli import main
for command in sys.argv[1:]:
    print("$ muster " + command, flush=True)
    sys.argv = ["muster", *shlex.split(command)]
    try:
        main()
    except SystemExit:
        pass
    print(flush=True)
"""
WAIT_S = 60


def screen(width, bootstrap, commands=COMMANDS):
    """What a terminal of so many columns is sent by the commands."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    unset = ("COLUMNS", "LINES", "MUSTER_OUTPUT", "MUSTER_TIMEOUT")
    env = {name: value for name, value in os.environ.items() if name not in unset}
    env |= {"TERM": "xterm", "MUSTER_BOOTSTRAP": bootstrap}
    argv = [sys.executable, "-c", RUN, *commands]
    shown = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    seen = b""
    try:
        while piece := _read(ours):
            seen += piece
        assert shown.wait(WAIT_S) == 0, seen.decode()
    finally:
        shown.kill()
        shown.wait(WAIT_S)
        os.close(ours)
    return seen.decode().replace("\r\n", "\n")


def _read(terminal):
    try:
        return os.read(terminal, 65_536)
    except OSError:  # EIO: nobody has the other end any more
        return b""


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_terminal_shows_what_is_recorded(width, scene, cluster, muster, masked, request):  # noqa: F811
    """No line is longer than the terminal is wide but for `--wide`, and every header is whole."""
    text = masked(screen(width, cluster.nodes[0].endpoint))
    compare(text, f"{width}.txt", request)
    for command in text.split("$ muster ")[1:]:
        name, *lines = command.splitlines()
        tables = [one for one in lines if not one.startswith(STDERR)]
        assert "--wide" in name or max(map(len, tables)) <= width, name
        words = set(re.split(r"  +|\n|: ", "\n".join(tables)))
        assert headers(muster(*shlex.split(name)).out) <= words, name


def compare(text, name, request):
    """Hold a screen against the one that is recorded."""
    path = SCREENS / name
    if request.config.getoption("--rewrite", default=False):
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8"), "pytest --rewrite writes it anew"


def test_the_partitions_of_a_member_that_has_forty_go_over_several_lines(cluster, masked, request):
    """Each line ends with a comma, and no number is cut."""
    cluster.coordinate(cluster.nodes[0])
    group = Described.Group(group_id="fleet", state="Stable", protocol_type="consumer")
    for number, member in enumerate(("worker-1-aa", "worker-2-bb")):
        mine = _assignment(events=list(range(40 * number, 40 * number + 40)))
        group.members.add(member_id=member, client_id="worker", host="h", assignment=mine)
    cluster.nodes[0].script["DescribeGroups"] = Described(groups=[group])
    text = masked(screen(80, cluster.nodes[0].endpoint, ["group members fleet"]))
    compare(text, "forty-partitions.txt", request)
    assert max(map(len, text.splitlines())) <= 80


def test_topics_that_go_together_are_shown_with_what_of_that_cannot_be_done(cluster, muster):
    """A row for each problem, and one for a set without any; none where nothing is co-located."""
    cluster.coordinate(cluster.nodes[0])
    group = Described.Group(group_id="fleet", state="Stable", protocol_type="consumer")
    group.colocated.add(topics=["clicks", "views"])
    group.colocated.add(topics=["orders", "refunds"], problems=["one", "another"])
    cluster.nodes[0].script["DescribeGroups"] = Described(groups=[group])
    at = ("--bootstrap", cluster.nodes[0].endpoint)
    *_, last = muster("group", "describe", "fleet", *at).out.split("\n\n")
    rows = [re.split(r"  +", row.strip()) for row in last.splitlines()]
    assert rows == [
        ["GROUP", "CO-LOCATED", "PROBLEM"],
        ["fleet", "clicks,views", "-"],
        ["fleet", "orders,refunds", "one"],
        ["fleet", "orders,refunds", "another"],
    ]
    (told,) = json.loads(muster("group", "describe", "fleet", *at, "-o", "json").out)["groups"]
    assert told["colocated"] == [
        {"topics": ["clicks", "views"], "problems": []},
        {"topics": ["orders", "refunds"], "problems": ["one", "another"]},
    ]


def test_what_partitions_weigh_is_shown_with_what_of_that_has_no_effect(cluster, muster):
    """A row for each problem, and one for a topic without any; none where nothing is set."""
    cluster.coordinate(cluster.nodes[0])
    group = Described.Group(group_id="fleet", state="Stable", protocol_type="consumer")
    group.weights.add(topic="clicks", text="clicks=2;clicks[7]=5.5")
    group.weights.add(topic="orders", text="orders[3-9]=4", problems=["one", "another"])
    cluster.nodes[0].script["DescribeGroups"] = Described(groups=[group])
    at = ("--bootstrap", cluster.nodes[0].endpoint)
    *_, last = muster("group", "describe", "fleet", *at).out.split("\n\n")
    rows = [re.split(r"  +", row.strip()) for row in last.splitlines()]
    assert rows == [
        ["GROUP", "WEIGHTS", "PROBLEM"],
        ["fleet", "clicks=2;clicks[7]=5.5", "-"],
        ["fleet", "orders[3-9]=4", "one"],
        ["fleet", "orders[3-9]=4", "another"],
    ]
    (told,) = json.loads(muster("group", "describe", "fleet", *at, "-o", "json").out)["groups"]
    assert told["weights"] == [
        {"topic": "clicks", "text": "clicks=2;clicks[7]=5.5", "problems": []},
        {"topic": "orders", "text": "orders[3-9]=4", "problems": ["one", "another"]},
    ]


def test_what_nobody_has_and_what_members_claim_is_shown_with_when(cluster, muster):
    """Those that are not named are counted; who is away is shown with until when."""
    cluster.coordinate(cluster.nodes[0])
    group = Described.Group(group_id="fleet", state="Stable", protocol_type="consumer")
    group.unowned.add(
        topic="t",
        partitions=[1, 2],
        reason="away",
        since_wall_ms=1_000,
        member_id="m",
        until_wall_ms=61_000,
    )
    group.unowned.add(topic="u", partitions=[0], reason="over_limit", since_wall_ms=2_000)
    group.unowned_by_reason.update({"away": 2, "over_limit": 5})
    group.claims.add(
        topic="t",
        partition=3,
        partitions=2,
        claimant="late",
        owner="m",
        last_wall_ms=3_000,
        requests=4,
    )
    cluster.nodes[0].script["DescribeGroups"] = Described(groups=[group])
    at = ("--bootstrap", cluster.nodes[0].endpoint)
    *_, unowned, claims = muster("group", "describe", "fleet", *at).out.split("\n\n")
    rows = [re.split(r"  +", row.strip()) for row in (*unowned.splitlines(), *claims.splitlines())]
    since = ("1970-01-01T00:00:01.000Z", "1970-01-01T00:00:02.000Z", "1970-01-01T00:00:03.000Z")
    until = "1970-01-01T00:01:01.000Z"
    assert rows == [
        ["GROUP", "UNOWNED", "#PARTITIONS", "REASON", "SINCE", "MEMBER"],
        ["fleet", "t(1,2)", "2", f"away until {until}", since[0], "m"],
        ["fleet", "u(0)", "1", "over_limit", since[1], "-"],
        ["fleet", "(others)", "4", "over_limit", "-", "-"],
        ["GROUP", "CLAIMED", "#PARTITIONS", "BY", "OWNER", "LAST", "REQUESTS"],
        ["fleet", "t(3)", "2", "late", "m", since[2], "4"],
    ]
    (told,) = json.loads(muster("group", "describe", "fleet", *at, "-o", "json").out)["groups"]
    assert told["unowned_by_reason"] == {"away": 2, "over_limit": 5}
    assert told["unowned"][0] == {
        "topic": "t",
        "partitions": [1, 2],
        "reason": "away",
        "since": since[0],
        "member_id": "m",
        "away_until": until,
    }
    assert told["claims"] == [
        {
            "topic": "t",
            "partition": 3,
            "partitions": 2,
            "claimant": "late",
            "owner": "m",
            "last": since[2],
            "requests": 4,
        }
    ]


def headers(text):
    """Of all tables that a pipe gets."""
    firsts = [block.splitlines()[0] for block in text.split("\n\n")]
    return {header for first in firsts for header in re.split(r"  +", first)}


STDERR = ("error: ", "next: ", "note: ")


def test_a_pipe_is_never_wrapped(scene, muster, monkeypatch):  # noqa: F811
    """However narrow the terminal is that the shell has."""
    wide = muster("group", "describe", "billing").out
    monkeypatch.setenv("COLUMNS", "20")
    assert muster("group", "describe", "billing").out == wide
    assert "…" not in wide


def test_an_id_loses_its_middle_and_no_more_than_is_needed():
    """Both ends stay: members of one client differ at the end, clients at the beginning."""
    ids = [f"worker-{n}-4f3a9c0d7be14a02b1c8e5d96f{n}a7" for n in (1, 2)]
    rows = [[one, "orders", "1"] for one in ids]
    text = draw(("CONSUMER-ID", "TOPIC", "PARTITION"), rows, 40)
    assert max(map(len, text.splitlines())) == 40
    for number, one in zip((1, 2), text.splitlines()[2:], strict=True):
        assert re.match(rf"worker-{number}-\w+…\w+{number}a7  orders", one)
    assert ids[0] in whole(("CONSUMER-ID", "TOPIC", "PARTITION"), rows)
